"""Which trees stay in memory: those in use, and of the others those used last, within a bound."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from skymount.content.model.skyfile import Skyfile
from skymount.fs.skylinks.mounted_name import TreeVersion
from skymount.settings import DEFAULTS

_OVERHEAD = 6 << 10
"""Bytes that a tree takes beside its listing: mostly the views of the listing's columns."""

Evict = Callable[[TreeVersion], None]


@dataclass(frozen=True, slots=True)
class TreeCacheConfig:
    """Bounds of all trees together."""

    size: int = DEFAULTS.tree_cache  # bytes
    count: int = 512  # trees, and names whose tree is not loaded


class TreeCache:
    """The versions that may be evicted, least recently used first, and the bytes of all trees.

    A version with open handles is never evicted.
    """

    def __init__(self, config: TreeCacheConfig | None = None) -> None:
        self.config = config or TreeCacheConfig()
        self._idle: OrderedDict[TreeVersion, Evict] = OrderedDict()
        self._sizes: dict[TreeVersion, int] = {}
        self.used = 0

    def __len__(self) -> int:
        return len(self._sizes)

    def touch(self, version: TreeVersion, evict: Evict) -> None:
        """Make a version the last to be evicted."""
        if not version.handles:
            self._idle[version] = evict
            self._idle.move_to_end(version)

    def loaded(self, version: TreeVersion, skyfile: Skyfile) -> None:
        self.unloaded(version)
        self._sizes[version] = size = size_of(skyfile)
        self.used += size

    def unloaded(self, version: TreeVersion) -> None:
        self.used -= self._sizes.pop(version, 0)

    def pin(self, version: TreeVersion) -> None:
        """Keep a version until it is touched again."""
        self._idle.pop(version, None)

    def forget(self, version: TreeVersion) -> None:
        self.pin(version)
        self.unloaded(version)

    def evict(self) -> None:
        """Evict until the bounds hold; the version that was used last stays.

        One that cannot be evicted is touched again when that may have changed.
        """
        size, count = self.config.size, self.config.count
        while len(self._idle) > 1 and (self.used > size or len(self._idle) > count):
            version, evict = self._idle.popitem(last=False)
            evict(version)


def size_of(skyfile: Skyfile) -> int:
    """Return the bytes that a tree takes in memory."""
    return len(skyfile.listing.packed) + len(skyfile.fanout) + _OVERHEAD
