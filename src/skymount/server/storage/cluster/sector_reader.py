"""Reads consecutive sectors of an object store as if they were one file. Everything blocks."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from skymount.server.storage.cluster.objects import Objects
from skymount.server.storage.stored_range import Announced
from skymount.wire.skylink import SECTOR_SIZE

_AHEAD = 2  # sectors that are fetched while one is read
_IN_MEMORY = 64  # sectors of all readers of a portal; further readers read in smaller pieces


def sector_name(root: bytes) -> str:
    """Return the name of the object of a sector."""
    return f"sectors/{root.hex()}"


def without_padding(sector: bytes) -> bytes:
    """Return what is stored of a sector. Zeros at its end do not change its Merkle root, so all
    sectors of one root are stored alike.
    """
    return sector.rstrip(b"\0")


class Fetching:
    """What the readers of one portal share: threads, and room for the sectors in memory."""

    def __init__(self, threads: int, sectors: int = _IN_MEMORY) -> None:
        self.threads = ThreadPoolExecutor(threads, "get")
        self.room = threading.BoundedSemaphore(sectors)

    def close(self) -> None:
        self.threads.shutdown(wait=False, cancel_futures=True)


class SectorReader(Announced):
    """An open payload or extension. What is announced is fetched ahead, sector by sector."""

    def __init__(self, objects: Objects, fetching: Fetching, roots: Sequence[bytes]) -> None:
        self._objects = objects
        self.fetching = fetching
        self.roots = roots
        self._fetched: dict[int, Future[bytes]] = {}
        self._announced = (0, 0)

    def announce(self, offset: int, length: int) -> None:
        self.close()
        self._announced = (offset, offset + length)

    def read(self, offset: int, length: int) -> bytes:
        index, start = divmod(offset, SECTOR_SIZE)
        if index >= len(self.roots):
            return b""
        length = min(length, SECTOR_SIZE - start)
        for old in [each for each in self._fetched if each < index]:
            self._drop(old)
        first = index if start == self._start(index) else index + 1
        for ahead in range(first, index + 1 + _AHEAD):
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
        if index in self._fetched or not begin <= offset < end or index >= len(self.roots):
            return
        start, stop = self._start(index), min(SECTOR_SIZE, end - index * SECTOR_SIZE)
        if start < stop and self.fetching.room.acquire(blocking=False):
            fetch = self.fetching.threads.submit
            self._fetched[index] = fetch(self._get, index, start, stop - start)

    def _get(self, index: int, start: int, length: int) -> bytes:
        return self._objects.read(sector_name(self.roots[index]), start, length)

    def close(self) -> None:
        for index in [*self._fetched]:
            self._drop(index)

    def _drop(self, index: int) -> None:
        self._fetched.pop(index).cancel()
        self.fetching.room.release()
