"""Owns the memory that content may take: the units that were used last, and the room for those on
their way, bounded in bytes together. What was read in order goes first, then what was used longest
ago.
"""

import trio
from cachetools import LRUCache

from skymount.content.cache.buffer_pool import BufferPool
from skymount.content.model.skyfile import UnitKey

Data = bytes | memoryview


class MemoryCache:
    """Keeps the units of payload that were used last; of those larger than all of it, one."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.ahead = size * 7 // 8
        """Bytes that may be filled with what is only likely to be read."""
        self.buffers = BufferPool()
        self._oversized: tuple[UnitKey, Data] | None = None
        self._units: LRUCache[UnitKey, Data] = LRUCache(size, getsizeof=len)
        self._left: LRUCache[UnitKey, Data] = LRUCache(size, getsizeof=len)
        """Those that are not likely to be used again."""
        self._reserved = 0
        self._first = trio.StrictFIFOLock()
        """Held by the first of those who wait for room; the others stand behind it."""
        self._released = trio.lowlevel.ParkingLot()

    @property
    def used(self) -> int:
        """Bytes held now."""
        oversized = 0 if self._oversized is None else len(self._oversized[1])
        return int(self._units.currsize + self._left.currsize) + oversized

    @property
    def reserved(self) -> int:
        """Bytes that are on their way."""
        return self._reserved

    def get(self, key: UnitKey) -> Data | None:
        """Return a unit and make it the most recently used."""
        found = self._units.get(key)
        if found is None and (found := self._left.pop(key, None)) is not None:
            self._units[key] = found
        if found is None and self._oversized is not None and self._oversized[0] == key:
            return self._oversized[1]
        return found

    def leave(self, key: UnitKey) -> None:
        """Let a unit go before all others, unless it is used again: who reads in order has read it,
        and the kernel has its pages. Else what was just read would push out what is read next.
        """
        data = self._units.pop(key, None)
        if data is not None:
            self._left[key] = data

    def put(self, key: UnitKey, data: Data) -> None:
        """Keep a unit; one that is larger than the whole cache alone, until anything needs room.

        Without it each read of a part of it would fetch the whole of it anew.
        """
        if not self.size:
            return
        self._make_room(len(data))
        if len(data) <= self.size:
            self._left.pop(key, None)
            self._units[key] = data
        elif not self._reserved:
            self._oversized = (key, data)

    def drop(self, key: UnitKey) -> None:
        """Keep a unit no longer, if it is there."""
        data = self._left.pop(key, None) or self._units.pop(key, None)
        if data is not None:
            self._give_back(data)

    def __contains__(self, key: UnitKey) -> bool:
        return (
            key in self._units
            or key in self._left
            or (self._oversized is not None and self._oversized[0] == key)
        )

    # What is on its way

    async def reserve(self, size: int) -> None:
        """Wait until there is room for so many bytes that are on their way, and count them.

        Who came first gets it first. What is larger than everything gets its turn when nothing
        else is on its way.
        """
        if self._first.locked() or not self._has_room(size):
            async with self._first:
                while not self._has_room(size):
                    await self._released.park()
        self._reserve(size)

    def try_reserve(self, size: int, limit: int) -> bool:
        """Count bytes that are on their way, unless they would be more than `limit` together.

        Never before somebody who waits.
        """
        if self._first.locked() or self._reserved + size > limit:
            return False
        self._reserve(size)
        return True

    def _has_room(self, size: int) -> bool:
        return not self._reserved or self._reserved + size <= self.size

    def _reserve(self, size: int) -> None:
        self._reserved += size
        self._make_room(0)

    def release(self, size: int) -> None:
        """Count off bytes that are no longer on their way: they are here, or will not come."""
        self._reserved -= size
        self._released.unpark_all()

    def _make_room(self, size: int) -> None:
        """Drop what was left or used longest ago until so many bytes more fit."""
        size += self._reserved
        while self._left and self._left.currsize + self._units.currsize + size > self.size:
            self._give_back(self._left.popitem()[1])
        while self._units and self._units.currsize + size > self.size:
            self._give_back(self._units.popitem()[1])
        if self._oversized is not None and size:
            _, data = self._oversized
            self._oversized = None
            self._give_back(data)

    def _give_back(self, data: Data) -> None:
        if isinstance(data, memoryview):
            self.buffers.give_back(data)
