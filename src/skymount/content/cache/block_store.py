"""Owns the blocks of content on disk: their directory, its bound, and what is damaged in it.

    <cache>/content/v1/ab/<identity>     a block; `block` says what is in it
    <cache>/content/v1/lock              held by the process that makes room

Several processes share it. Calls block, for threads.
"""

import errno
import fcntl
import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from heapq import heapify, heappop
from pathlib import Path
from typing import NamedTuple, Self

from skymount import file_permissions
from skymount.content.cache import block_file, block_format
from skymount.content.cache.block_format import BlockKey
from skymount.content.cache.buffer_pool import BufferPool
from skymount.errors import CacheError

log = logging.getLogger(__name__)

VERSION = "v1"

PAUSE = 60.0
"""Seconds for which nothing is stored after the disk refused it."""

MIN_SIZE = 32 << 20
"""Bytes of a store that is of use: no block takes more than a quarter of it, and content commonly
comes in chunks of 4 MiB.
"""

_LOCK = "lock"
_AHEAD = 60.0  # seconds that the clocks of file systems may differ
_ABANDONED = 600.0  # seconds after which a temporary file is nobody's any more
_PASSING = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN}
"""Errors that say nothing of the file."""


@dataclass(frozen=True, slots=True)
class StoreStats:
    """How much there is of something."""

    blocks: int
    bytes: int
    """On disk, which is more than the content."""


class _File(NamedTuple):
    """Something in the store, as a listing shows it."""

    path: str
    identity: bytes | None
    """None: it is no block."""
    size: int
    used: float
    """When it was last, in seconds since 1970."""
    is_temporary: bool


_Block = tuple[float, int, str]
"""(when it was used, bytes, path)"""


def default_path() -> Path:
    """Return where the caches of a user are kept."""
    import platformdirs

    return platformdirs.user_cache_path("skymount")


class BlockStore:
    """Blocks on disk, those that were used last, never more than a number of bytes."""

    def __init__(self, root: Path, size: int, buffers: BufferPool | None = None) -> None:
        self.root = root
        self.size = size
        self._buffers = buffers or BufferPool()
        self.damaged = 0
        """Blocks that were found damaged, and removed."""
        self._counting = threading.Lock()
        self._accounting = threading.Lock()
        """Held while room is made, so not by who reads."""
        self._left = 0
        """Bytes that may be written before it has to be looked again how much there is."""
        self._on_way = 0
        """Of those, bytes that are being written."""
        self._paused_until = 0.0
        self._refused = 0
        """Bytes of the block that the disk refused; 0: it works."""

    @classmethod
    def open(cls, path: Path, size: int, buffers: BufferPool | None = None) -> Self:
        """Open the store in the directory of caches, made if need be; CacheError says why not.

        Blocks are read into memory from `buffers`.
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
        return cls(place, size, buffers)

    @classmethod
    def existing(cls, path: Path, size: int) -> Self | None:
        """Open the store if there is one."""
        return cls.open(path, size) if os.path.lexists(path / "content" / VERSION) else None

    # --- one block -----------------------------------------------------------

    def get(self, key: BlockKey) -> memoryview | None:
        """Return a block; None when it is not there. One that is damaged is removed."""
        identity = key.identity
        path = self._path(identity)
        try:
            return block_file.read(path, identity, key.length, self._buffers, touch=True)
        except OSError as error:
            if error.errno not in _PASSING:
                self._remove_damaged(path)
        return None

    def touch(self, key: BlockKey) -> None:
        """Note that a block is used, if it is there."""
        with suppress(OSError):
            os.utime(self._path(key.identity), follow_symlinks=False)

    def put(self, key: BlockKey, data: bytes | memoryview) -> bool:
        """Keep a block, and say whether it was; other blocks make room."""
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
        if stored and need >= self._refused:  # on a full disk a small one may find a place
            self._refused = 0
        return stored

    def trim_buffers(self) -> None:
        """Give memory back that was used for writing; for when nothing more waits to be written."""
        self._buffers.trim()

    # --- all of them ---------------------------------------------------------

    def info(self) -> StoreStats:
        """Count what is there."""
        sizes = [file.size for file in self._files() if file.identity is not None]
        return StoreStats(len(sizes), sum(sizes))

    def clear(self) -> StoreStats:
        """Remove everything; return what it was. CacheError names what cannot be removed."""
        sizes, left = [], []
        for file in self._files():
            if not block_file.remove(file.path):
                left.append(file.path)
            elif file.identity is not None:
                sizes.append(file.size)
        for each in os.scandir(self.root):
            with suppress(OSError):  # somebody writes to it again
                if each.is_dir(follow_symlinks=False):
                    os.rmdir(each.path)
        if left:
            raise CacheError(f"{left[0]}: cannot be removed ({len(left)} files in all)")
        return StoreStats(len(sizes), sum(sizes))

    def verify(self) -> tuple[int, int]:
        """Read everything, and remove what is damaged; return the numbers of good and removed.

        CacheError names what cannot be.
        """
        good = removed = 0
        for file in self._files():
            if file.is_temporary:
                continue
            try:
                if file.identity is None:
                    self._must_remove(file.path)
                    removed += 1
                elif self._is_whole(file.path, file.identity):
                    good += 1
            except OSError as error:
                if error.errno in _PASSING:
                    raise CacheError(f"{file.path}: {error.strerror}") from None
                self._must_remove(file.path)
                removed += 1
        return good, removed

    # --- reading -------------------------------------------------------------

    def _path(self, identity: bytes) -> str:
        return os.path.join(self.root, *block_format.file_name(identity))

    def _is_whole(self, path: str, identity: bytes) -> bool:
        return block_file.read(path, identity, 0, self._buffers, touch=False) is not None

    def _must_remove(self, path: str) -> None:
        if not self._remove_damaged(path):
            raise CacheError(f"{path}: damaged, and cannot be removed")

    def _remove_damaged(self, path: str) -> bool:
        is_gone = block_file.remove(path)
        log.info("%s: damaged%s", path, ", removed" if is_gone else "")
        with self._counting:
            self.damaged += 1
        return is_gone

    # --- writing -------------------------------------------------------------

    def _store(self, identity: bytes, data: bytes | memoryview, need: int) -> bool:
        with self._accounting:
            if not self._has_room(need + self._on_way):
                return False
            self._on_way += need
        size = None
        try:
            size = block_file.write(self._path(identity), identity, data)
        finally:
            with self._accounting:
                self._on_way -= need
                self._left -= max(need, size or 0)
        return size is not None

    def _pause(self, error: OSError, need: int) -> None:
        """Store nothing for a while; say so if it is new."""
        self._paused_until = time.monotonic() + PAUSE
        if not self._refused:
            text = "%s: not cached on disk, tried again each minute: %s"
            log.warning(text, self.root, error.strerror)
        self._refused = max(self._refused, need)

    # --- making room ---------------------------------------------------------

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """Keep other processes from making room meanwhile; False when one does so."""
        path = self.root / _LOCK
        try:
            fd = file_permissions.open_or_create_file(path)
        except FileNotFoundError:
            file_permissions.make_directory(self.root)
            fd = file_permissions.open_or_create_file(path)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(fd)

    def _has_room(self, need: int) -> bool:
        """Whether so much may be written; other blocks make room for it."""
        if need <= self._left:
            return True
        with self._locked() as held:
            return held and self._make_room(need)

    def _make_room(self, need: int) -> bool:
        """Count what is there, and remove what was not used for longest, if that is too much.

        From then on others may write as well, of which nothing is known here; that is why no more
        than a sixteenth is written before the next count.
        """
        sixteenth = self.size // 16
        goal = self.size - max(need, sixteenth)
        blocks, total = self._count()
        for size, path in _oldest_first(blocks) if total > goal else ():
            if total <= goal:
                break
            if block_file.remove(path):
                total -= size
        self._left = min(self.size - total, max(need, sixteenth))
        return need <= self._left

    def _count(self) -> tuple[list[_Block], int]:
        """Return the blocks, and the bytes of all that is there.

        What is nobody's is removed. Plain tuples: of a hundred thousand other objects the garbage
        collector would look at each one, and everything else would wait for it.
        """
        now = time.time()
        blocks, total = [], 0
        for file in self._files():
            is_leftover = now - file.used > _ABANDONED if file.is_temporary else not file.identity
            if is_leftover and block_file.remove(file.path):
                continue
            total += file.size
            if file.identity is not None:
                blocks.append((file.used, file.size, file.path))
        return blocks, total

    def _files(self) -> Iterator[_File]:
        """List what is there, except for the lock."""
        now = time.time()
        try:
            directories = list(os.scandir(self.root))
        except FileNotFoundError:
            return
        for directory in directories:
            if directory.name == _LOCK:
                continue
            inside = [directory]
            with suppress(FileNotFoundError):
                if directory.is_dir(follow_symlinks=False):  # what a link leads to is not ours
                    inside = list(os.scandir(directory.path))
            for each in inside:
                with suppress(FileNotFoundError):
                    yield _listed(each, directory.name, now)


def _listed(each: "os.DirEntry[str]", directory: str, now: float) -> _File:
    found = each.stat(follow_symlinks=False)
    is_file = block_file.is_own(found)
    fits = is_file and found.st_size <= block_format.MAX_BLOCK + block_format.SEAL
    identity = block_format.identity_of(directory, each.name) if fits else None
    # A clock that was wrong must not keep blocks for ever.
    used = found.st_mtime if found.st_mtime <= now + _AHEAD else 0.0
    is_temporary = is_file and each.name.endswith(block_file.TEMPORARY)
    return _File(each.path, identity, block_file.size_of(found), used, is_temporary)


def _oldest_first(blocks: list[_Block]) -> Iterator[tuple[int, str]]:
    """Yield (bytes, path), what was not used for longest first.

    By seconds: to sort a hundred thousand blocks at once would stop all threads for 50 ms.
    """
    seconds: defaultdict[int, list[_Block]] = defaultdict(list)
    for each in blocks:
        seconds[int(each[0])].append(each)
    coming = list(seconds)
    heapify(coming)
    while coming:
        for _, size, path in sorted(seconds[heappop(coming)]):
            yield size, path
