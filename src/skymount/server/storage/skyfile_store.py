"""The skyfiles that the portal keeps on disk: each complete or absent.

    <data>/lock                       held while a portal runs here
    <data>/v1/small.sqlite3           small skyfiles: `small_skyfiles`
    <data>/v1/skyfiles/<xx>/<skylink>/    others: `skyfile_files`; xx: first byte of the root in hex
    <data>/v1/incoming/<random>/      uploads in progress; emptied at start

Functions that are not async block on the disk: async code calls them in a thread.
"""

import errno
import fcntl
import math
import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import trio

from skymount import file_permissions
from skymount.errors import MalformedError, StorageError
from skymount.server.storage.disk_errors import disk_errors
from skymount.server.storage.local.skyfile_files import BASE, LocalUpload, SkyfileFiles
from skymount.server.storage.local.skylink_keys import from_key, to_key
from skymount.server.storage.local.small_skyfiles import SmallSkyfiles
from skymount.server.storage.stored_range import StoredRange
from skymount.server.storage.stored_skyfile import SMALL_SIZE, StoredSkyfile
from skymount.storage import atomic_file
from skymount.storage.group_commit import GroupCommit
from skymount.wire.skylink import Skylink

FORMAT = "v1"
SHARDS = range(256)
"""The directories of skyfiles, by the first byte of the Merkle root."""

_TRIED = 64 << 10  # bytes that are written to see whether that works
_PID_LIMIT = 20  # bytes of the lock's file


class InUseError(StorageError):
    """Another process has locked the data directory."""


def _check_own(path: Path) -> None:
    """StorageError if another user can change what is in a directory, or replace it."""
    if problem := file_permissions.directory_problem(path):
        raise StorageError(f"{path} cannot be used: {problem}")


class _SmallUploads:
    """Stores small skyfiles, those that come at the same time together."""

    def __init__(self, store: Callable[[list[tuple[Skylink, bytes]]], None]) -> None:
        self._store = store
        self._together = GroupCommit(self._store_in_thread)

    async def put(self, skyfile: tuple[Skylink, bytes]) -> None:
        try:
            await self._together.put(skyfile)
        except StorageError:  # maybe of another one: none of them was stored
            await self._store_in_thread([skyfile])

    async def _store_in_thread(self, skyfiles: list[tuple[Skylink, bytes]]) -> None:
        await trio.to_thread.run_sync(self._store, skyfiles)


class SkyfileStore:
    """The skyfiles of one portal. Use `open` or `beside`, and `close`."""

    memory_time = math.inf

    def __init__(self, root: Path, lock: int | None = None) -> None:
        self._lock = lock
        self._changing = threading.Lock()  # what is stored again is not removed as old
        self.incoming = root / FORMAT / "incoming"
        """Where uploads make their files."""
        self._skyfiles = root / FORMAT / "skyfiles"
        self._shards = [self._skyfiles / f"{shard:02x}" for shard in SHARDS]
        self._small = SmallSkyfiles(root / FORMAT)
        self.small = _SmallUploads(self._small.put)

    @classmethod
    def open(cls, root: Path) -> "SkyfileStore":
        """Lock the directory, create what is missing, remove interrupted uploads; StorageError."""
        with disk_errors(f"use the data directory {root}"):
            file_permissions.make_directory(root)
            _check_own(root)
            lock = file_permissions.open_or_create_file(root / "lock")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.pread(lock, _PID_LIMIT, 0).decode("ascii", "replace").strip()
            os.close(lock)
            which = f": process {owner}" if owner.isdecimal() else ""
            text = f"another portal is running on the data directory {root}{which}"
            raise InUseError(text) from None
        with disk_errors(f"use the data directory {root}"):
            os.ftruncate(lock, 0)
            os.pwrite(lock, b"%d\n" % os.getpid(), 0)
        store = cls(root, lock)
        try:
            with disk_errors(f"use the data directory {root}"):
                store._prepare(root)
            store._small.open()
        except BaseException:
            store.close()
            raise
        return store

    def _prepare(self, root: Path) -> None:
        for directory in (self._skyfiles.parent, self.incoming, self._skyfiles):
            file_permissions.make_directory(directory)
            _check_own(directory)
            file_permissions.restrict_directory(directory)
        for shard in SHARDS:
            self._shard(shard).mkdir(mode=0o700, exist_ok=True)
        for directory in (self._skyfiles, self._skyfiles.parent, root):
            atomic_file.sync_directory(directory)
        for leftover in self.incoming.iterdir():
            shutil.rmtree(leftover)

    @classmethod
    def beside(cls, root: Path) -> "SkyfileStore":
        """Return the store of a data directory that may be in use, to read from."""
        store = cls(root)
        store._small.open_beside()
        return store

    def close(self) -> None:
        self._small.close()
        if self._lock is not None:
            os.close(self._lock)

    def check_reading(self) -> None:
        """StorageError if nothing can be read."""
        with disk_errors("read stored content"):
            os.listdir(self._skyfiles)
            os.stat(self._small.path)  # one that was removed is written to all the same
        self._small.newest()

    def check_storing(self) -> None:
        """StorageError if nothing can be stored."""
        self._small.check_room(_TRIED)
        with (
            disk_errors("store an upload"),
            tempfile.TemporaryFile(dir=self.incoming, buffering=0) as file,
        ):
            file.write(bytes(_TRIED))

    def begin(self) -> LocalUpload:
        return LocalUpload(self)

    def begin_in_parts(self) -> LocalUpload:
        return LocalUpload(self)

    def put_small(self, skylink: Skylink, base: bytes) -> None:
        """Store a small skyfile, durable once this returns."""
        self._small.put([(skylink, base)])

    def publish(self, directory: Path, skylink: Skylink) -> None:
        """Give a directory that is complete the name of its skyfile, for good. If that is stored
        already, each of its files is replaced, as it may be damaged.
        """
        target = self.directory(skylink)
        with self._changing:
            try:
                os.rename(directory, target)
                is_new = True
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                for name in os.listdir(directory):
                    os.rename(directory / name, target / name)
                is_new = False
        if not is_new:
            os.rmdir(directory)
            atomic_file.sync_directory(target)
        atomic_file.sync_directory(target.parent)

    def remove(self, skylink: Skylink, stored_before: float | None = None) -> bool:
        """Remove a skyfile in one step; return whether it was here. With a time only if it was
        stored before, and not stored again meanwhile.
        """
        if self._small.remove(skylink, stored_before):
            return True
        with disk_errors("remove stored content"):
            source = self.directory(skylink)
            removed = self.incoming / secrets.token_hex(16)
            with self._changing:
                try:
                    if stored_before is not None and (
                        (source / BASE).stat().st_mtime >= stored_before
                    ):
                        return False
                    os.rename(source, removed)
                except FileNotFoundError:
                    return False
            atomic_file.sync_directory(source.parent)
            shutil.rmtree(removed)
            return True

    def find(self, skylink: Skylink) -> StoredSkyfile | None:
        directory = self.directory(skylink)
        with disk_errors("read stored content"):
            try:
                with open(directory / BASE, "rb") as file:
                    size = os.fstat(file.fileno()).st_size
                    start = file.read(SMALL_SIZE)
            except FileNotFoundError:
                small = self._small.find(skylink)
                if small is None:
                    return None
                start, size = small, len(small)
        return StoredSkyfile.of(skylink, start, size, SkyfileFiles(directory))

    def has(self, skylink: Skylink) -> bool:
        """Whether anything of a skyfile is here, damaged or not."""
        return self.directory(skylink).exists() or self._small.has(skylink)

    def find_sector(self, root: bytes) -> StoredRange | None:
        """Return nothing: all sectors here are of skyfiles."""

    def skylinks(self, shard: int) -> Iterator[Skylink]:
        """Yield the skylinks of a shard, in no order."""
        for key in self.keys(shard):
            try:
                yield from_key(key)
            except ValueError as error:
                raise StorageError(f"the small skyfiles are damaged: {error}") from None

    def keys(self, shard: int) -> set[bytes]:
        """Return the keys of a shard's skylinks. Other names on disk are skipped."""
        with disk_errors("list stored content"):
            names = os.listdir(self._shard(shard))
        found = self._small.keys(shard)
        for name in names:
            with suppress(MalformedError):
                found.add(to_key(Skylink(name)))
        return found

    def shard_times(self) -> list[int]:
        """Return for each shard when files were added or removed last, in nanoseconds."""
        with disk_errors("list stored content"):
            return [self._shard(shard).stat().st_mtime_ns for shard in SHARDS]

    def newest_small(self) -> int:
        """Return a number that is another one after a small skyfile was added."""
        return self._small.newest()

    def sizes(self, skylink: Skylink) -> tuple[int, float] | None:
        """Return a skyfile's bytes on disk and when it was stored; None if it is not here."""
        with disk_errors("read stored content"):
            try:
                with os.scandir(self.directory(skylink)) as entries:
                    found = {entry.name: entry.stat() for entry in entries}
            except (FileNotFoundError, NotADirectoryError):
                found = {}
        if not found:
            return self.small_sizes(skylink)
        stored = found[BASE].st_mtime if BASE in found else 0.0
        return sum(stat.st_size for stat in found.values()), stored

    def small_sizes(self, skylink: Skylink) -> tuple[int, float] | None:
        """The same of a row."""
        return self._small.sizes(skylink)

    def _shard(self, shard: int) -> Path:
        return self._shards[shard]

    def directory(self, skylink: Skylink) -> Path:
        """Return where the files of a skyfile are."""
        return self._shard(skylink.root[0]) / str(skylink)
