"""The skyfiles that the portal keeps on disk: one directory for each, complete or absent.

    <data>/lock                       held while a portal runs here
    <data>/v1/incoming/<random>/      uploads in progress; emptied at start
    <data>/v1/skyfiles/<xx>/<skylink>/    xx: first byte of the Merkle root in hex
        base        used bytes of the base sector; all of a small skyfile
        payload     content of a large one
        extension   spilled sectors, padded to 4 MiB each, when metadata did not fit the base
        roots       Merkle roots of the payload's sectors, when it is encrypted and large

Base and payload of an encrypted skyfile are whole encrypted sectors, stored as they are served.

Every function blocks on the disk: async code calls it in a thread.
"""

import errno
import fcntl
import os
import secrets
import shutil
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from skymount import file_permissions
from skymount.errors import MalformedError, StorageError
from skymount.server.storage.disk_errors import disk_errors
from skymount.server.storage.stored_range import StoredFile, StoredRange
from skymount.server.storage.stored_skyfile import SMALL_SIZE, BuiltSkyfile, StoredSkyfile
from skymount.storage import atomic_file
from skymount.wire.base_sector import Layout
from skymount.wire.skylink import SECTOR_SIZE, Skylink

FORMAT = "v1"
BASE, PAYLOAD, EXTENSION, ROOTS = "base", "payload", "extension", "roots"
SHARDS = range(256)
"""The directories of skyfiles, by the first byte of the Merkle root."""


class InUseError(StorageError):
    """Another process has locked the data directory."""


def _check_own(path: Path) -> None:
    """StorageError if another user can change what is in a directory, or replace it."""
    if problem := file_permissions.directory_problem(path):
        raise StorageError(f"{path} cannot be used: {problem}")


class SkyfileStore:
    """The directory of one portal. Use `open`, and `close` it."""

    takes_parts = True

    def __init__(self, root: Path, lock: int) -> None:
        self._lock = lock
        self._changing = threading.Lock()  # what is stored again is not removed as old
        self._incoming = root / FORMAT / "incoming"
        self._skyfiles = root / FORMAT / "skyfiles"

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
            os.close(lock)
            raise InUseError(f"another portal is running on the data directory {root}") from None
        try:
            store = cls(root, lock)
            with disk_errors(f"use the data directory {root}"):
                store._prepare(root)
        except BaseException:
            os.close(lock)
            raise
        return store

    def _prepare(self, root: Path) -> None:
        for directory in (self._skyfiles.parent, self._incoming, self._skyfiles):
            file_permissions.make_directory(directory)
            _check_own(directory)
            file_permissions.restrict_directory(directory)
        for shard in SHARDS:
            self._shard(shard).mkdir(mode=0o700, exist_ok=True)
        for directory in (self._skyfiles, self._skyfiles.parent, root):
            atomic_file.sync_directory(directory)
        for leftover in self._incoming.iterdir():
            shutil.rmtree(leftover)

    @classmethod
    def beside(cls, root: Path) -> "SkyfileStore":
        """Return the store of a data directory that may be in use, to read from. Do not close
        it.
        """
        return cls(root, -1)

    def close(self) -> None:
        os.close(self._lock)

    def begin(self) -> "LocalUpload":
        with disk_errors("begin an upload"):
            path = self._incoming / secrets.token_hex(16)
            path.mkdir(mode=0o700)
            return LocalUpload(self, path)

    def publish(self, directory: Path, skylink: Skylink) -> None:
        """Give a directory that is complete the name of its skyfile, for good. If that is stored
        already, the directory is dropped, and the time of what is stored renewed.
        """
        target = self._directory(skylink)
        with self._changing:
            try:
                os.rename(directory, target)
                is_new = True
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                os.utime(target / BASE)
                is_new = False
        if not is_new:
            shutil.rmtree(directory)
        atomic_file.sync_directory(target.parent)

    def remove(self, skylink: Skylink, stored_before: float | None = None) -> bool:
        """Remove a skyfile in one step; return whether it was here. With a time only if it was
        stored before, and not stored again meanwhile.
        """
        with disk_errors("remove stored content"):
            source = self._directory(skylink)
            removed = self._incoming / secrets.token_hex(16)
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
        directory = self._directory(skylink)
        with disk_errors("read stored content"):
            try:
                with open(directory / BASE, "rb") as file:
                    size = os.fstat(file.fileno()).st_size
                    start = file.read(SMALL_SIZE)
            except FileNotFoundError:
                return None
        return StoredSkyfile.of(skylink, start, size, _Directory(directory))

    def find_sector(self, root: bytes) -> StoredRange | None:
        """Return nothing: all sectors here are of skyfiles."""

    def skylinks(self, shard: int) -> Iterator[Skylink]:
        """Yield the skylinks of a shard, in no order. Other names on disk are skipped."""
        with disk_errors("list stored content"):
            names = os.listdir(self._shard(shard))
        for name in names:
            with suppress(MalformedError):
                yield Skylink.parse(name)

    def shard_times(self) -> list[int]:
        """Return for each shard when a skyfile was added or removed last, in nanoseconds."""
        with disk_errors("list stored content"):
            return [self._shard(shard).stat().st_mtime_ns for shard in SHARDS]

    def sizes(self, skylink: Skylink) -> tuple[int, float] | None:
        """Return a skyfile's bytes on disk and when it was stored; None if it is not here."""
        with disk_errors("read stored content"):
            try:
                found = {entry.name: entry.stat() for entry in os.scandir(self._directory(skylink))}
            except (FileNotFoundError, NotADirectoryError):
                return None
        stored = found[BASE].st_mtime if BASE in found else 0.0
        return sum(stat.st_size for stat in found.values()), stored

    def _shard(self, shard: int) -> Path:
        return self._skyfiles / f"{shard:02x}"

    def _directory(self, skylink: Skylink) -> Path:
        return self._shard(skylink.root[0]) / str(skylink)


class LocalUpload:
    """An upload in progress: a directory that nobody else uses."""

    def __init__(self, store: SkyfileStore, directory: Path) -> None:
        self._store = store
        self._directory: Path | None = directory
        self._payload: int | None = None
        self._opening = threading.Lock()

    def put_sector(self, index: int, root: bytes, sector: bytes) -> None:
        self.put_part(index * SECTOR_SIZE, sector)

    def put_part(self, offset: int, part: bytes | bytearray) -> None:
        with disk_errors("write an upload"):
            atomic_file.write_all_at(self._open_payload(), part, offset)

    def take_parts(self) -> bytes:
        payload = self._payload
        assert self._directory is not None
        assert payload is not None
        with disk_errors("write an upload"):
            path = self._directory / PAYLOAD
            content = path.read_bytes()
            path.unlink()
            self._payload = None
            os.close(payload)
        return content

    def _open_payload(self) -> int:
        with self._opening:
            if self._payload is None:
                assert self._directory is not None
                path = self._directory / PAYLOAD
                self._payload = file_permissions.open_or_create_file(path)
            return self._payload

    def publish(self, skylink: Skylink, built: BuiltSkyfile) -> None:
        """Publish the upload in one step. It survives a power cut once this returns."""
        directory = self._directory
        assert directory is not None
        with disk_errors("store an upload"):
            if self._payload is not None:
                os.fsync(self._payload)
            atomic_file.create(directory / BASE, built.base)
            if built.roots and built.is_encrypted:
                atomic_file.create(directory / ROOTS, built.roots)
            if built.spilled:
                padded = (sector.ljust(SECTOR_SIZE, b"\0") for sector in built.spilled)
                atomic_file.create(directory / EXTENSION, b"".join(padded))
            atomic_file.sync_directory(directory)
            self._store.publish(directory, skylink)
            self._directory = None

    def close(self) -> None:
        """Drop what was not published."""
        if self._payload is not None:
            os.close(self._payload)
            self._payload = None
        if self._directory is not None:
            with disk_errors("remove an upload"), suppress(FileNotFoundError):
                shutil.rmtree(self._directory)
            self._directory = None


@dataclass(frozen=True, slots=True)
class _Directory:
    """The parts of a skyfile in its directory."""

    path: Path

    @property
    def base(self) -> StoredFile:
        return StoredFile(self.path / BASE)

    @property
    def payload(self) -> StoredFile:
        return StoredFile(self.path / PAYLOAD)

    @property
    def extension(self) -> StoredFile:
        return StoredFile(self.path / EXTENSION)

    def encrypted_payload(self, fanout: StoredRange, layout: Layout) -> StoredFile:
        return self.payload

    def encrypted_roots(self) -> bytes:
        with disk_errors("read stored content"):
            roots = self.path / ROOTS
            return roots.read_bytes() if roots.exists() else b""
