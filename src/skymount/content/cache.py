"""Owns the memory that content may take: an LRU of units, bounded in bytes."""

from cachetools import LRUCache

from skymount.content.skyfile import UnitKey

DEFAULT_SIZE = 128 << 20
"""Bytes; enough for several sequential readers at once."""


class MemoryCache:
    """Keeps the units of payload that were used last; of those larger than all of it, one."""

    def __init__(self, size: int = DEFAULT_SIZE) -> None:
        self.size = size
        self._oversized: tuple[UnitKey, bytes] | None = None
        self._units: LRUCache[UnitKey, bytes] = LRUCache(size, getsizeof=len)

    @property
    def used(self) -> int:
        """Bytes held now."""
        return int(self._units.currsize)

    def get(self, key: UnitKey) -> bytes | None:
        """Return a unit and make it the most recently used."""
        if self._oversized is not None and self._oversized[0] == key:
            return self._oversized[1]
        return self._units.get(key)

    def put(self, key: UnitKey, data: bytes) -> None:
        """Keep a unit; one that is larger than the whole cache until the next such one.

        Without it each read of a part of it would fetch the whole of it anew.
        """
        if len(data) <= self.size:
            self._units[key] = data
        elif self.size:
            self._oversized = (key, data)

    def __contains__(self, key: UnitKey) -> bool:
        return key in self._units or (self._oversized is not None and self._oversized[0] == key)
