"""The blocks of content on disk: their directory, its bound, and what is damaged in it.

    <cache>/content/v1/ab/<identity>     a block; `block_format` says what is in it
    <cache>/content/v1/lock              held by the process that makes room
    <cache>/content/v1.sqlite3           the index; see `block_index`

Several processes share it. Calls block, for threads.
"""

import errno
import fcntl
import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import randrange
from typing import NamedTuple, Self

from skymount import file_permissions
from skymount.content.cache import block_file, block_format
from skymount.content.cache.block_format import BlockKey
from skymount.content.cache.block_index import BlockIndex, IndexedBlock
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

_LOCK = "lock"
_CLOCK_SKEW = 60.0  # seconds that the clocks of file systems may differ
_ABANDONED = 600.0  # seconds after which nobody writes a temporary file any more
_EVICTED_AT_ONCE = 500  # blocks that are looked at in one step of an eviction
_TRANSIENT = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN}
"""Errors that say nothing about the file."""


@dataclass(frozen=True, slots=True)
class BlockStoreConfig:
    """Limits of a store."""

    pause: float = 60.0
    """Seconds for which nothing is stored after the disk refused a block."""
    max_room: int = 1 << 30
    """Bytes that one eviction makes room for; at most a sixteenth of the store."""
    swept: int = 8
    """Directories, of 256, that each eviction compares with the index."""


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
    """The most recently used blocks, on disk, never more than a number of bytes."""

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
        self._write_lock = threading.Lock()
        """Held while a block is admitted, so while others are evicted; readers do not take it."""
        self._index = BlockIndex(root / _LOCK)
        self._admissible = 0
        """Bytes that may be written before the store has to be measured again."""
        self._next_swept = randrange(256)
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

        Nothing is listed, however many blocks there are.
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
        return cls(place, size, buffers, config)

    @classmethod
    def existing(cls, path: Path, size: int) -> Self | None:
        return cls.open(path, size) if os.path.lexists(path / "content" / VERSION) else None

    def close(self) -> None:
        """Close the index. Using the store opens it again."""
        with self._write_lock:
            self._index.close()

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
        """Count the blocks: by the index, or by listing them while no mount has made one."""
        with suppress(OSError), self._write_lock:
            if self._index.is_complete():
                return StoreStats(*self._index.totals())
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
        self._discard(file.identity for file in removed if file.identity is not None)
        if left:
            raise CacheError(f"{left[0]}: cannot be removed ({counted(len(left), 'file')} in all)")
        return StoreStats(len(removed), sum(file.size for file in removed))

    def verify(self) -> tuple[int, int]:
        """Read everything, and remove what is damaged; return the numbers of good and removed."""
        good = removed = 0
        gone = []
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
            if file.identity is not None:
                gone.append(file.identity)
        self._discard(gone)
        return good, removed

    def _discard(self, identities: Iterable[bytes]) -> None:
        with suppress(OSError), self._write_lock:
            if self._index.is_complete():
                self._index.discard(identities)

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
        with self._write_lock:
            if not self._admit(need):
                return False
            self._index.add(IndexedBlock(time.time(), need, identity))
            self._admissible -= need
        is_stored = False
        try:
            is_stored = block_file.write(self._path(identity), identity, data)
        finally:
            if not is_stored:
                self._discard([identity])
        return is_stored

    def _pause(self, error: OSError, need: int) -> None:
        self._paused_until = time.monotonic() + self._config.pause
        if not self._refused:
            text = "%s: not cached on disk, tried again each minute: %s"
            log.warning(text, self.root, error.strerror)
        self._refused = max(self._refused, need)

    # --- eviction ------------------------------------------------------------

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """Keep other processes from evicting meanwhile; False when one does so."""
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

    def _admit(self, need: int) -> bool:
        """Return whether so many bytes may be written; other blocks are evicted for them."""
        if need <= self._admissible:
            return True
        with self._locked() as held:
            return held and self._make_room(need)

    def _make_room(self, need: int) -> bool:
        """Measure the store, and evict the least recently used blocks if it is too large.

        Other processes write as well. What they write is not known here, so little is written
        before the next measurement.
        """
        if self._index.is_complete():
            self._sweep()
        else:
            self._index.rebuild(self._remove_leftovers(self._files()))
        self._index.forget_times_after(time.time() + _CLOCK_SKEW)
        room = max(need, min(self.size // 16, self._config.max_room))
        goal = self.size - room
        count, total = self._index.totals()
        if total > goal:
            for _ in range(count // _EVICTED_AT_ONCE + 1):
                total -= self._evict(total - goal)
                if total <= goal:
                    break
        self._admissible = min(self.size - total, room)
        return need <= self._admissible

    def _evict(self, excess: int) -> int:
        """Remove some of the least recently used blocks; return how many bytes they took.

        A block that was used after all others in this step stays for the next one.
        """
        blocks = self._index.least_recently_used(_EVICTED_AT_ONCE)
        latest = blocks[-1].used if len(blocks) == _EVICTED_AT_ONCE else float("inf")
        now, freed = time.time(), 0
        candidates, gone, used_later = [], [], []
        for block in blocks:
            try:
                used = _time_of_use(os.lstat(self._path(block.identity)), now)
            except (FileNotFoundError, NotADirectoryError):
                if block.used < now - _ABANDONED:  # else it may be about to be written
                    gone.append((block.identity, block.used))
                    freed += block.size
                continue
            if used > latest:
                used_later.append((used, block.identity, block.used))
            else:
                candidates.append((used, block))
        for _, block in sorted(candidates):
            if freed >= excess:
                break
            if block_file.remove(self._path(block.identity)):
                gone.append((block.identity, block.used))
                freed += block.size
            else:
                used_later.append((now, block.identity, block.used))
        self._index.update(gone, used_later)
        return freed

    def _sweep(self) -> None:
        """Compare some directories with the index, and more while there are unknown blocks.

        There are some after a power cut, and where a skymount that knows no index wrote to them.
        """
        for _ in range(0, 256, self._config.swept):
            found = 0
            for number in range(self._next_swept, self._next_swept + self._config.swept):
                found += self._sweep_directory(number % 256)
            self._next_swept = (self._next_swept + self._config.swept) % 256
            if not found:
                break

    def _sweep_directory(self, number: int) -> int:
        """Compare one; return how many blocks the index did not know."""
        known = self._index.in_directory(number)
        name, now = f"{number:02x}", time.time()
        unknown = []
        path = os.path.join(self.root, name)
        for each in () if os.path.islink(path) else _scan(path):
            identity = block_format.identity_of(name, each.name)
            if identity is None or known.pop(identity, None) is None:
                with suppress(FileNotFoundError):
                    unknown.append(_listed(each, name, now))
        if found := list(self._remove_leftovers(unknown)):
            self._index.add_all(found)
        old = [each for each in known.items() if each[1] < now - _ABANDONED]
        if old:  # their files are gone, and are not about to be written
            self._index.update(gone=old)
        return len(found)

    def _remove_leftovers(self, files: Iterable[_ListedFile]) -> Iterator[IndexedBlock]:
        """Remove what no process uses; yield the blocks."""
        now = time.time()
        for file in files:
            if file.identity is not None:
                yield IndexedBlock(file.used, file.size, file.identity)
            elif not file.is_temporary or now - file.used > _ABANDONED:
                block_file.remove(file.path)

    def _files(self) -> Iterator[_ListedFile]:
        """List everything, except for the lock."""
        now = time.time()
        for directory in _scan(self.root):
            if directory.name == _LOCK:
                continue
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
