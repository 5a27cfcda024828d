"""Reads consecutive sectors of an object store as if they were one file. Everything blocks."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from cachetools import LRUCache

from skymount.errors import StorageError
from skymount.server.storage.cluster.objects import Objects
from skymount.server.storage.stored_range import Announced
from skymount.wire import merkle
from skymount.wire.skylink import SECTOR_SIZE

_AHEAD = 2  # sectors that are fetched while one is read
_FIRST = 256 << 10  # bytes of what is announced that are fetched by themselves, to begin soon
_LENGTHS = 4096  # of objects that are shorter than a sector, and whose hash was checked
SECTORS_IN_MEMORY = 64
"""Of all readers of a portal, which may wait for them; further readers read in smaller pieces."""


def sector_name(root: bytes) -> str:
    """Return the name of the object of a sector."""
    return f"sectors/{root.hex()}"


def without_padding(sector: bytes | bytearray) -> bytes | bytearray:
    """Return what is stored of a sector. Zeros at its end do not change its Merkle root, so all
    sectors of one root are stored alike.
    """
    return sector if sector[-1:] != b"\0" else sector.rstrip(b"\0")


class Fetching:
    """What the readers of one portal share: threads, and room for the sectors in memory."""

    def __init__(self, objects: Objects, threads: int, sectors: int = SECTORS_IN_MEMORY) -> None:
        self.threads = ThreadPoolExecutor(threads, "get")
        self.room = threading.BoundedSemaphore(sectors)
        self._objects = objects
        self._lengths: LRUCache[bytes, int] = LRUCache(_LENGTHS)
        self._lock = threading.Lock()

    def get(self, root: bytes, start: int, length: int) -> bytes:
        """Return a part of a sector. StorageError if bytes are missing that are not its padding:
        then the object does not have its root.
        """
        found = self._objects.read(sector_name(root), start, length)
        if len(found) == length:
            return found
        with self._lock:
            known = self._lengths.get(root)
        if known is None or start + len(found) != max(start, known):
            self._check(root, found if start == 0 else self._objects.get(sector_name(root)))
        return found.ljust(length, b"\0")

    def _check(self, root: bytes, stored: bytes | None) -> None:
        whole = stored or b""
        if len(whole) > SECTOR_SIZE or merkle.sector_root(whole) != root:
            raise StorageError(f"stored object {sector_name(root)} is damaged: it is cut short")
        with self._lock:
            self._lengths[root] = len(whole)

    def close(self) -> None:
        self.threads.shutdown(wait=False, cancel_futures=True)


class SectorReader(Announced):
    """An open payload or extension. What is announced is fetched ahead, sector by sector."""

    def __init__(self, fetching: Fetching, roots: Sequence[bytes]) -> None:
        self.fetching = fetching
        self.roots = roots
        self._fetched: dict[int, Future[bytes]] = {}
        self._announced = range(0)
        self._first = range(0)

    def announce(self, offset: int, length: int) -> None:
        self.close()
        self._announced = range(offset, offset + length)
        self._first = self._announced[:_FIRST]

    def read(self, offset: int, length: int) -> bytes:
        index, start = divmod(offset, SECTOR_SIZE)
        if index >= len(self.roots):
            return b""
        length = min(length, SECTOR_SIZE - start)
        for old in [each for each in self._fetched if each < index]:
            self._drop(old)
        is_first = offset in self._first
        if is_first:
            length = min(length, self._first.stop - offset)
        if offset in self._announced:
            for ahead in range(index, index + 1 + (0 if is_first else _AHEAD)):
                self._fetch(ahead)
        begin = self._start(index)
        if start < begin or index not in self._fetched:
            found, begin = self.fetching.get(self.roots[index], start, length), start
        else:
            found = self._fetched[index].result()
        return found[start - begin : start - begin + length]

    def _start(self, index: int) -> int:
        """Return where in a sector begins what is fetched ahead."""
        return max(0, self._first.stop - index * SECTOR_SIZE)

    def _fetch(self, index: int) -> None:
        """Begin to fetch what was announced of a sector, unless that is under way."""
        if index in self._fetched or index >= len(self.roots):
            return
        start = self._start(index)
        stop = min(SECTOR_SIZE, self._announced.stop - index * SECTOR_SIZE)
        if start < stop and self.fetching.room.acquire(blocking=False):
            fetch = self.fetching.threads.submit
            self._fetched[index] = fetch(self.fetching.get, self.roots[index], start, stop - start)

    def close(self) -> None:
        for index in [*self._fetched]:
            self._drop(index)

    def _drop(self, index: int) -> None:
        self._fetched.pop(index).cancel()
        self.fetching.room.release()
