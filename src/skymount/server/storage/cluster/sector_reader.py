"""Reads consecutive sectors of an object store as if they were one file. Everything blocks."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from skymount.server.storage.cluster.objects import Objects
from skymount.server.storage.stored_range import Announced
from skymount.wire.skylink import SECTOR_SIZE

_AHEAD = 2  # sectors that are fetched while one is read


def sector_name(root: bytes) -> str:
    """Return the name of the object of a sector."""
    return f"sectors/{root.hex()}"


def without_padding(sector: bytes) -> bytes:
    """Return what is stored of a sector. Zeros at its end do not change its Merkle root, so all
    sectors of one root are stored alike.
    """
    return sector.rstrip(b"\0")


class SectorReader(Announced):
    """An open payload or extension. What is announced is fetched ahead, sector by sector."""

    def __init__(
        self, objects: Objects, threads: ThreadPoolExecutor, roots: Sequence[bytes]
    ) -> None:
        self._objects = objects
        self._threads = threads
        self._roots = roots
        self._fetched: dict[int, Future[bytes]] = {}
        self._announced = (0, 0)

    def announce(self, offset: int, length: int) -> None:
        self.close()
        self._announced = (offset, offset + length)

    def read(self, offset: int, length: int) -> bytes:
        index, start = divmod(offset, SECTOR_SIZE)
        if index >= len(self._roots):
            return b""
        length = min(length, SECTOR_SIZE - start)
        for old in [each for each in self._fetched if each < index]:
            self._fetched.pop(old).cancel()
        for ahead in range(index, index + 1 + _AHEAD):
            self._fetch(ahead, offset)
        if index not in self._fetched:
            found, begin = self._get(index, start, length), start
        else:
            found = self._fetched[index].result()
            begin = self._start(index)
        data = found[start - begin : start - begin + length]
        return data.ljust(length, b"\0")

    def _start(self, index: int) -> int:
        return max(0, self._announced[0] - index * SECTOR_SIZE)

    def _fetch(self, index: int, offset: int) -> None:
        """Begin to fetch what was announced of a sector, unless that is under way."""
        begin, end = self._announced
        if index in self._fetched or not begin <= offset < end or index >= len(self._roots):
            return
        start, stop = self._start(index), min(SECTOR_SIZE, end - index * SECTOR_SIZE)
        if start < stop:
            self._fetched[index] = self._threads.submit(self._get, index, start, stop - start)

    def _get(self, index: int, start: int, length: int) -> bytes:
        return self._objects.read(sector_name(self._roots[index]), start, length)

    def close(self) -> None:
        for fetching in self._fetched.values():
            fetching.cancel()
        self._fetched.clear()
