"""What reads files with the same settings, in trio: content, and the trees used last."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio
from cachetools import LRUCache

from skymount.content.cache.memory_cache import Data
from skymount.content.fetch.reader import ContentFile, ContentReader
from skymount.content.model.skyfile import Skyfile
from skymount.content.opening import (
    SILENT_PORTALS,
    Content,
    ContentSettings,
    DiskSettings,
    open_content,
)
from skymount.default_portal import with_default_portal
from skymount.file_api.options import Settings
from skymount.fs.skylinks.tree import Tree
from skymount.wire.skylink import Skylink

_MIN_MEMORY_CACHE = 16 << 20  # bytes; a chunk has 4 MiB, and some are read ahead
_MAX_MEMORY_CACHE = 128 << 20
_TREES = 64 << 20  # bytes of the trees that are kept
_LEAST_TREE = 64 << 10  # bytes that a tree counts as at least
_PROVISIONAL = 15.0  # seconds for which a tree that is not confirmed is used


@dataclass(frozen=True, slots=True)
class Extent:
    """A part of a skyfile's payload: a file."""

    skyfile: Skyfile
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class Found:
    """What a skylink or a domain leads to."""

    tree: Tree
    is_proved: bool
    """Whether it is proved that it leads there. That says nothing of the content."""


class Session:
    """Reads content. Everything async runs in the trio thread that opened it."""

    def __init__(self, timeout: float, content: Content) -> None:
        self.timeout = timeout
        self.content = content
        self._trees = _TreeCache(content.reader)
        self._provisional: dict[Skylink, float] = {}
        self._loading: dict[Skylink, trio.Lock] = {}
        self._files: dict[int, ContentFile] = {}

    async def find(self, root: Skylink | str) -> Found:
        """Return what a skylink or a domain leads to now, in time."""
        with trio.fail_after(self.timeout):
            if isinstance(root, Skylink) and root.version == 1:
                return Found(await self._load(root), is_proved=True)
            await self.content.entries()
            found = await self.content.names.resolve(root)
            return Found(await self._load(found.skylink), found.verified)

    def outdate_names(self) -> None:
        """Let every name be resolved again when it is used next."""
        self.content.names.outdate_all()

    async def _load(self, skylink: Skylink) -> Tree:
        lock = self._loading.setdefault(skylink, trio.Lock())
        try:
            async with lock:
                if found := self._known(skylink):
                    return found
                tree = Tree(await self.content.reader.load(skylink))
                if tree.skyfile.is_provisional:
                    self._provisional[skylink] = trio.current_time() + _PROVISIONAL
                if _weight(tree) <= _TREES:
                    self._trees[skylink] = tree
                return tree
        finally:
            if not lock.statistics().tasks_waiting:
                self._loading.pop(skylink, None)

    def _known(self, skylink: Skylink) -> Tree | None:
        if trio.current_time() < self._provisional.get(skylink, trio.current_time() + 1):
            return self._trees.get(skylink)
        del self._provisional[skylink]
        self._trees.pop(skylink, None)
        return None

    async def read(self, number: int, extent: Extent, offset: int, length: int) -> Data:
        """Read up to `length` bytes of the open file of a number, which this opens if need be."""
        file = self._files.get(number)
        if file is None:
            file = self.content.reader.open(extent.skyfile, extent.start, extent.size)
            self._files[number] = file
        found = file.ready(offset, length)
        if found is not None:
            return found
        with trio.fail_after(self.timeout):
            return await file.wait(offset, length)

    def close_file(self, number: int) -> None:
        file = self._files.pop(number, None)
        if file is not None:
            file.close()


class _TreeCache(LRUCache[Skylink, Tree]):
    """The trees used last; the reader forgets those that are evicted."""

    def __init__(self, reader: ContentReader) -> None:
        super().__init__(_TREES, getsizeof=_weight)
        self._reader = reader

    def popitem(self) -> tuple[Skylink, Tree]:
        skylink, tree = super().popitem()
        self._reader.forget(tree.skyfile)
        return skylink, tree


def _weight(tree: Tree) -> int:
    return max(_LEAST_TREE, len(tree.listing.packed) + len(tree.skyfile.fanout))


@asynccontextmanager
async def open_session(settings: Settings) -> AsyncIterator[Session]:
    """Open what the settings say; what runs in it ends with the block."""
    config = with_default_portal(settings.config, "portals=URL")
    content = ContentSettings(
        portals=config.portal_options,
        silence=config.timeout / SILENT_PORTALS,
        verify=config.verify,
        memory=min(max(config.memory_cache, _MIN_MEMORY_CACHE), _MAX_MEMORY_CACHE),
        disk=DiskSettings(config.disk_cache) if config.disk_cache else None,
        hns_ttl=config.hns_ttl,
    )
    async with open_content(content) as opened:
        yield Session(config.timeout, opened)
