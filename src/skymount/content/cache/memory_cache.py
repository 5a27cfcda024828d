"""The memory that content may take: cached units and room for units in flight, bounded together.

Consumed units of sequential readers are evicted first, then the least recently used ones.
"""

from cachetools import LRUCache

from skymount.content.cache.buffer_pool import BufferPool
from skymount.content.cache.room import Room
from skymount.content.model.skyfile import UnitKey

Data = bytes | memoryview

_MAX_UNITS = 8192
"""Units in the cache. Each takes half a KiB beside its content, which counts if that is tiny."""


class MemoryCache:
    """An LRU cache of payload units, by bytes."""

    def __init__(
        self, size: int, buffers: BufferPool | None = None, *, max_units: int = _MAX_UNITS
    ) -> None:
        self.size = size
        self._max_units = max_units
        self.prefetch_limit = size * 7 // 8
        """Bytes that may be in flight for prefetches."""
        self.buffers = buffers or BufferPool()
        self._oversized: tuple[UnitKey, Data] | None = None
        self._units: LRUCache[UnitKey, Data] = LRUCache(size, getsizeof=len)
        self._consumed: LRUCache[UnitKey, Data] = LRUCache(size, getsizeof=len)
        """Units that are not likely to be read again."""
        self._room = Room(size)

    @property
    def used(self) -> int:
        oversized = 0 if self._oversized is None else len(self._oversized[1])
        return int(self._units.currsize + self._consumed.currsize) + oversized

    @property
    def reserved(self) -> int:
        return self._room.reserved

    def get(self, key: UnitKey) -> Data | None:
        """Return a unit and make it the most recently used."""
        found = self._units.get(key)
        if found is None and (found := self._consumed.pop(key, None)) is not None:
            self._units[key] = found
        if found is None and self._oversized is not None and self._oversized[0] == key:
            return self._oversized[1]
        return found

    def mark_consumed(self, key: UnitKey) -> None:
        """Evict a unit before others, unless it is read again.

        A sequential reader has passed it, and the kernel has its pages. Otherwise units just read
        would evict the ones that are read next.
        """
        data = self._units.pop(key, None)
        if data is not None:
            self._consumed[key] = data

    def put(self, key: UnitKey, data: Data) -> None:
        """Cache a unit. One unit larger than the cache is held until anything else needs room:
        without it each read of a part would fetch the whole unit again.
        """
        if not self.size:
            return
        self._evict(len(data))
        if len(data) <= self.size:
            self._consumed.pop(key, None)
            self._units[key] = data
            while len(self._units) + len(self._consumed) > self._max_units:
                self._give_back((self._consumed or self._units).popitem()[1])
        elif not self.reserved:
            self._oversized = (key, data)

    def drop(self, key: UnitKey) -> None:
        data = self._consumed.pop(key, None) or self._units.pop(key, None)
        if data is not None:
            self._give_back(data)

    def __contains__(self, key: UnitKey) -> bool:
        return (
            key in self._units
            or key in self._consumed
            or (self._oversized is not None and self._oversized[0] == key)
        )

    # --- in flight -----------------------------------------------------------

    async def reserve(self, size: int) -> None:
        """Reserve room for bytes in flight, as `Room.reserve`."""
        await self._room.reserve(size)
        self._evict(0)

    def try_reserve(self, size: int, limit: int) -> bool:
        """Reserve room unless that makes more than `limit` bytes, or a task waits for room."""
        is_reserved = self._room.try_reserve(size, limit)
        if is_reserved:
            self._evict(0)
        return is_reserved

    def release(self, size: int) -> None:
        self._room.release(size)

    def _evict(self, size: int) -> None:
        size += self.reserved
        while self._consumed and self._consumed.currsize + self._units.currsize + size > self.size:
            self._give_back(self._consumed.popitem()[1])
        while self._units and self._units.currsize + size > self.size:
            self._give_back(self._units.popitem()[1])
        if self._oversized is not None and size:
            _, data = self._oversized
            self._oversized = None
            self._give_back(data)

    def _give_back(self, data: Data) -> None:
        if isinstance(data, memoryview):
            self.buffers.give_back(data)
