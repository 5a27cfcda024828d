"""The blocks of content on disk: their directory, its bound, and what is damaged in it.

    <cache>/content/v1/ab/<identity>     a block; `block_format` says what is in it

The time of a file is that of its last use. Several processes share the directory: each one lists it
now and then, and removes the oldest files. Calls block, for threads.
"""

import errno
import heapq
import logging
import os
import struct
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from skymount import file_permissions
from skymount.content.cache import block_file, block_format
from skymount.content.cache.block_format import BlockKey
from skymount.content.cache.buffer_pool import BufferPool
from skymount.errors import CacheError
from skymount.user_directories import user_directory
from skymount.wording import counted

log = logging.getLogger(__name__)

VERSION = "v1"

MIN_SIZE = 32 << 20
"""Bytes of a useful store: no block takes more than a quarter of it, and content commonly comes in
chunks of 4 MiB.
"""

_BEFORE = ("v1/lock", "v1.sqlite3", "v1.sqlite3-wal", "v1.sqlite3-shm")
"""Files that an earlier skymount had beside the blocks."""

_BLOCK = struct.Struct(">dQ32s")
"""Time of use, size and identity of a block; sorted as bytes, the oldest is the first."""

_CLOCK_SKEW = 60.0  # seconds that the clocks of file systems may differ
_ABANDONED = 600.0  # seconds after which nobody writes a temporary file any more
_TRANSIENT = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN}
"""Errors that say nothing about the file."""


@dataclass(frozen=True, slots=True)
class BlockStoreConfig:
    """Limits of a store."""

    pause: float = 60.0
    """Seconds for which nothing is stored after the disk refused a block."""
    max_room: int = 1 << 30
    """Bytes that one eviction makes room for; at most a sixteenth of the store."""


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Blocks in a store."""

    blocks: int
    bytes: int
    """On disk, which is more than the content."""


class _ListedFile(NamedTuple):
    path: str
    identity: bytes | None
    """None: it is not a block."""
    size: int
    used: float
    """Seconds since 1970."""
    is_temporary: bool


def default_path() -> Path:
    """Return where the caches of a user are kept; CacheError without a home."""
    return user_directory("cache", CacheError)


class BlockStore:
    """The most recently used blocks, on disk, not more than a number of bytes; with 0 bytes, which
    others have stored.
    """

    def __init__(
        self,
        root: Path,
        size: int,
        buffers: BufferPool | None = None,
        config: BlockStoreConfig | None = None,
    ) -> None:
        self.root = root
        self.size = size
        self._config = config or BlockStoreConfig()
        self._buffers = buffers or BufferPool()
        self.damaged = 0
        """Blocks that were found damaged, and removed."""
        self._damaged_lock = threading.Lock()
        self._listing_lock = threading.Lock()
        """Held while blocks are listed and evicted; readers take no lock."""
        self._lock = threading.RLock()  # of the three numbers of bytes that follow
        self._room = min(size // 16, self._config.max_room)
        """What may be written before the store has to be measured again."""
        self._under_way = 0
        self._unlisted = 0
        """What was written since the listing began, or may not be in it."""
        self._paused_until = 0.0
        self._refused = 0
        """Bytes of the block that the disk refused; 0: it works."""

    @classmethod
    def open(
        cls,
        path: Path,
        size: int,
        buffers: BufferPool | None = None,
        config: BlockStoreConfig | None = None,
    ) -> Self:
        """Open the store in the directory of caches, made if need be; CacheError if that fails.

        Nothing is listed, however many blocks there are: `make_room` does that.
        """
        place = path / "content" / VERSION
        try:
            file_permissions.make_directory(place)
            for each in (path, place.parent, place):
                block_file.check_private(each)
            file_permissions.restrict_directory(place)  # names tell what was read
        except OSError as error:
            where = error.filename or place
            raise CacheError(f"{where}: not usable as a cache: {error.strerror}") from None
        for name in _BEFORE:
            block_file.remove(str(place.parent / name))
        return cls(place, size, buffers, config)

    @classmethod
    def existing(cls, path: Path, size: int) -> Self | None:
        return cls.open(path, size) if os.path.lexists(path / "content" / VERSION) else None

    # --- one block -----------------------------------------------------------

    def get(self, key: BlockKey) -> memoryview | None:
        """Return a block; None when it is not there. A damaged one is removed."""
        identity = key.identity
        path = self._path(identity)
        try:
            return block_file.read(path, identity, key.length, self._buffers, touch=True)
        except OSError as error:
            if error.errno not in _TRANSIENT:
                self._remove_damaged(path)
        return None

    def touch(self, key: BlockKey) -> None:
        with suppress(OSError):
            os.utime(self._path(key.identity), follow_symlinks=False)

    def put(self, key: BlockKey, data: bytes | memoryview) -> bool:
        """Store a block, evicting others; return whether it was stored."""
        need = block_file.bytes_on_disk(len(data) + block_format.SEAL)
        if need > self.size // 4 or len(data) > block_format.MAX_BLOCK:
            return False
        if time.monotonic() < self._paused_until:
            return False
        try:
            stored = self._store(key.identity, data, need)
        except OSError as error:
            self._pause(error, need)
            return False
        if stored and need >= self._refused:  # on a full disk a small block may find a place
            self._refused = 0
        return stored

    def trim_buffers(self) -> None:
        self._buffers.trim()

    # --- all blocks ----------------------------------------------------------

    def info(self) -> StoreStats:
        sizes = [file.size for file in self._files() if file.identity is not None]
        return StoreStats(len(sizes), sum(sizes))

    def clear(self) -> StoreStats:
        """Remove everything, and return what it was; CacheError if that is not possible."""
        removed: list[_ListedFile] = []
        left = []
        for file in self._files():
            if not block_file.remove(file.path):
                left.append(file.path)
            elif file.identity is not None:
                removed.append(file)
        for each in os.scandir(self.root):
            with suppress(OSError):  # a mount is writing there
                if each.is_dir(follow_symlinks=False):
                    os.rmdir(each.path)
        if left:
            raise CacheError(f"{left[0]}: cannot be removed ({counted(len(left), 'file')} in all)")
        return StoreStats(len(removed), sum(file.size for file in removed))

    def verify(self) -> tuple[int, int]:
        """Read everything, and remove what is damaged; return the numbers of good and removed."""
        good = removed = 0
        for file in self._files():
            if file.is_temporary:
                continue
            try:
                if file.identity is not None and self._is_whole(file.path, file.identity):
                    good += 1
                    continue
            except OSError as error:
                if error.errno in _TRANSIENT:
                    raise CacheError(f"{file.path}: {error.strerror}") from None
            else:
                if file.identity is not None:  # another process removed it
                    continue
            if not self._remove_damaged(file.path):
                raise CacheError(f"{file.path}: damaged, and cannot be removed")
            removed += 1
        return good, removed

    # --- reading -------------------------------------------------------------

    def _path(self, identity: bytes) -> str:
        return os.path.join(self.root, *block_format.file_name(identity))

    def _is_whole(self, path: str, identity: bytes) -> bool:
        return block_file.read(path, identity, 0, self._buffers, touch=False) is not None

    def _remove_damaged(self, path: str) -> bool:
        is_gone = block_file.remove(path)
        log.info("%s: damaged%s", path, ", removed" if is_gone else "")
        with self._damaged_lock:
            self.damaged += 1
        return is_gone

    # --- writing -------------------------------------------------------------

    def _store(self, identity: bytes, data: bytes | memoryview, need: int) -> bool:
        self._admit(need)
        try:
            return block_file.write(self._path(identity), identity, data)
        finally:
            with self._lock:
                self._under_way -= need

    def _pause(self, error: OSError, need: int) -> None:
        self._paused_until = time.monotonic() + self._config.pause
        if not self._refused:
            text = "%s: not cached on disk, tried again each minute: %s"
            log.warning(text, self.root, error.strerror)
        self._refused = max(self._refused, need)

    # --- eviction ------------------------------------------------------------

    def make_room(self) -> None:
        """Measure the store, and evict blocks if it is too large, as after a higher bound.

        Until then a sixteenth of the bound is written unmeasured.
        """
        if not self.size:
            return
        try:
            with self._listing_lock:
                self._evict(0)
        except OSError as error:
            self._pause(error, 0)

    def _admit(self, need: int) -> None:
        """Take room for a block; other blocks are evicted for it. OSError when they cannot be."""
        if self._take(need):
            return
        with self._listing_lock:
            if not (self._take(need) or self._evict(need)):  # another thread may have made room
                raise OSError(errno.ENOSPC, "there is no room, and blocks cannot be removed")

    def _take(self, need: int) -> bool:
        with self._lock:
            fits = need <= self._room
            if fits:
                self._room -= need
                self._under_way += need
                self._unlisted += need
        return fits

    def _evict(self, need: int) -> bool:
        """List all files, remove the blocks that were not used for longest, and take room.

        Other processes write as well. What they write is not known here, so little is written
        before the next listing.
        """
        with self._lock:
            self._unlisted = self._under_way
        room = max(need, min(self.size // 16, self._config.max_room))
        blocks, total = self._by_use()
        for block in blocks:
            if total + self._unlisted + room <= self.size:
                break
            _, size, identity = _BLOCK.unpack(block)
            if block_file.remove(self._path(identity)):
                total -= size
        with self._lock:
            self._room = min(self.size - total - self._unlisted, room)
            return self._take(need)

    def _by_use(self) -> tuple[Iterator[bytes], int]:
        """Return all blocks, the oldest first, and their bytes on disk; remove what nobody uses.

        Directories are sorted one by one: to sort everything would hold up other threads.
        """
        directories: list[list[bytes]] = [[] for _ in range(256)]
        now, total = time.time(), 0
        for file in self._files():
            if file.identity is not None:
                total += file.size
                block = _BLOCK.pack(max(file.used, 0.0), file.size, file.identity)
                directories[file.identity[0]].append(block)
            elif not file.is_temporary or now - file.used > _ABANDONED:
                block_file.remove(file.path)
        for each in directories:
            each.sort()
        return heapq.merge(*directories), total

    def _files(self) -> Iterator[_ListedFile]:
        now = time.time()
        for directory in _scan(self.root):
            inside: Iterable[os.DirEntry[str]] = [directory]
            with suppress(FileNotFoundError):
                if directory.is_dir(follow_symlinks=False):  # what a link leads to is not ours
                    inside = _scan(directory.path)
            for each in inside:
                with suppress(FileNotFoundError):
                    yield _listed(each, directory.name, now)


def _scan(path: "str | Path") -> "list[os.DirEntry[str]]":
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _listed(each: "os.DirEntry[str]", directory: str, now: float) -> _ListedFile:
    found = each.stat(follow_symlinks=False)
    is_file = block_file.is_own(found)
    fits = is_file and found.st_size <= block_format.MAX_BLOCK + block_format.SEAL
    identity = block_format.identity_of(directory, each.name) if fits else None
    is_temporary = is_file and each.name.endswith(block_file.TEMPORARY)
    size, used = block_file.size_of(found), _time_of_use(found, now)
    return _ListedFile(each.path, identity, size, used, is_temporary)


def _time_of_use(found: os.stat_result, now: float) -> float:
    """Return when a file was last used; one from the future is evicted first, not never."""
    return found.st_mtime if found.st_mtime <= now + _CLOCK_SKEW else 0.0
