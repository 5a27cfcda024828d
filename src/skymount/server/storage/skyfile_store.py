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
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from skymount import file_permissions
from skymount.errors import MalformedError, StorageError
from skymount.server.storage.disk_errors import disk_errors
from skymount.server.storage.stored_range import StoredRange, read_range
from skymount.storage import atomic_file
from skymount.wire.base_sector import LAYOUT_SIZE, Layout, spill_sizes
from skymount.wire.metadata import INTEGER_LIMIT
from skymount.wire.skyfile_encryption import SkyfileKey, is_encrypted
from skymount.wire.skylink import ROOT_SIZE, SECTOR_SIZE, Skylink

FORMAT = "v1"
BASE, PAYLOAD, EXTENSION, ROOTS = "base", "payload", "extension", "roots"
SHARDS = range(256)
"""The directories of skyfiles, by the first byte of the Merkle root."""


@dataclass(frozen=True, slots=True)
class StoredSkyfile:
    """Where the parts of a skyfile are; of an encrypted one only `base` before `decrypt_layout`."""

    skylink: Skylink
    layout: Layout
    base: StoredRange
    metadata: StoredRange
    fanout: StoredRange
    payload: StoredRange

    @property
    def is_encrypted(self) -> bool:
        return is_encrypted(self.layout)


def _check_own(path: Path) -> None:
    """StorageError if another user can change what is in a directory, or replace it."""
    if problem := file_permissions.directory_problem(path):
        raise StorageError(f"{path} cannot be used: {problem}")


class SkyfileStore:
    """The directory of one portal. Use `open`, and `close` it."""

    def __init__(self, root: Path, lock: int) -> None:
        self._lock = lock
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
            raise StorageError(f"another portal is running on the data directory {root}") from None
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

    def close(self) -> None:
        os.close(self._lock)

    def begin(self) -> Path:
        """Return a new directory for an upload in progress; `commit` or `discard` ends it."""
        with disk_errors("begin an upload"):
            path = self._incoming / secrets.token_hex(16)
            path.mkdir(mode=0o700)
            return path

    def discard(self, upload: Path) -> None:
        with disk_errors("remove an upload"):
            shutil.rmtree(upload)

    def commit(
        self,
        upload: Path,
        skylink: Skylink,
        base: bytes,
        spilled: list[bytes],
        roots: bytes = b"",
    ) -> None:
        """Publish an upload. A payload file must be in its directory already, and synced.

        The skyfile appears in one step and survives a power cut once this returns. If it is stored
        already, the upload is dropped, and its time renewed. `roots` are those of the sectors of
        an encrypted payload.
        """
        with disk_errors("store an upload"):
            atomic_file.create(upload / BASE, base)
            if roots:
                atomic_file.create(upload / ROOTS, roots)
            if spilled:
                padded = (sector.ljust(SECTOR_SIZE, b"\0") for sector in spilled)
                atomic_file.create(upload / EXTENSION, b"".join(padded))
            atomic_file.sync_directory(upload)
            target = self._directory(skylink)
            try:
                os.rename(upload, target)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                os.utime(target / BASE)
                shutil.rmtree(upload)
            atomic_file.sync_directory(target.parent)

    def find(self, skylink: Skylink) -> StoredSkyfile | None:
        directory = self._directory(skylink)
        with disk_errors("read stored content"):
            try:
                with open(directory / BASE, "rb") as file:
                    size = os.fstat(file.fileno()).st_size
                    layout = Layout.parse(file.read(LAYOUT_SIZE))
            except FileNotFoundError:
                return None
            except MalformedError as error:
                raise StorageError(f"stored skyfile {skylink} is damaged: {error}") from None
        base = StoredRange(directory / BASE, 0, size)
        nothing = replace(base, length=0)
        skyfile = StoredSkyfile(skylink, layout, base, nothing, nothing, nothing)
        return skyfile if is_encrypted(layout) else _with_ranges(skyfile, layout)

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
                return sum(stat.st_size for stat in found.values()), found[BASE].st_mtime
            except (FileNotFoundError, NotADirectoryError, KeyError):
                return None

    def _shard(self, shard: int) -> Path:
        return self._skyfiles / f"{shard:02x}"

    def _directory(self, skylink: Skylink) -> Path:
        return self._shard(skylink.root[0]) / str(skylink)


def _with_ranges(
    skyfile: StoredSkyfile, layout: Layout, key: SkyfileKey | None = None
) -> StoredSkyfile:
    """Return a skyfile with the ranges that its layout describes (wire notes 2.1, 2.2)."""
    if LAYOUT_SIZE + layout.body_size + layout.filesize >= INTEGER_LIMIT:
        raise StorageError(f"stored skyfile {skyfile.skylink} is damaged: its sizes are too large")
    base = skyfile.base.file
    decrypt, decrypt_payload = (key.base.apply, key.open_payload) if key else (None, None)
    if layout.is_inline:
        start = LAYOUT_SIZE + layout.metadata_size
        payload = StoredRange(base, start, layout.filesize, decrypt)
    else:
        payload = StoredRange(base.with_name(PAYLOAD), 0, layout.filesize, decrypt_payload)
    body, start = (base.with_name(EXTENSION), 0) if layout.is_extended else (base, LAYOUT_SIZE)
    return replace(
        skyfile,
        layout=layout,
        metadata=StoredRange(body, start + layout.fanout_size, layout.metadata_size, decrypt),
        fanout=StoredRange(body, start, layout.fanout_size, decrypt),
        payload=payload,
    )


def decrypt_layout(skyfile: StoredSkyfile, key: SkyfileKey) -> StoredSkyfile:
    """Return an encrypted skyfile with its layout decrypted and all its ranges known."""
    try:
        layout = key.open_layout(read_range(replace(skyfile.base, length=LAYOUT_SIZE)))
    except MalformedError as error:
        raise StorageError(f"stored skyfile {skyfile.skylink} is damaged: {error}") from None
    return _with_ranges(skyfile, layout, key)


Sector = tuple[bytes, StoredRange]  # its Merkle root, and its bytes without padding


def list_sectors(skyfile: StoredSkyfile) -> Iterator[Sector]:
    """Yield every sector of a skyfile. The Merkle roots are read from disk, not computed."""
    yield skyfile.skylink.root, skyfile.base
    if skyfile.is_encrypted:
        roots = skyfile.base.file.with_name(ROOTS)
        with disk_errors("read stored content"):
            joined = roots.read_bytes() if roots.exists() else b""
        yield from _consecutive_sectors(joined, roots.with_name(PAYLOAD))
    elif not skyfile.layout.is_inline:
        payload = skyfile.payload
        yield from _consecutive_sectors(read_range(skyfile.fanout), payload.file, payload.length)
        if skyfile.layout.is_extended:
            yield from _spilled_sectors(skyfile)


def _consecutive_sectors(
    roots: bytes, file: Path, length: int | None = None, *, start: int = 0
) -> Iterator[Sector]:
    """Yield the sectors of a file from `start` on. With a `length` the last one is shorter."""
    for index in range(len(roots) // ROOT_SIZE):
        offset = index * SECTOR_SIZE
        size = SECTOR_SIZE if length is None else min(SECTOR_SIZE, length - offset)
        root = roots[index * ROOT_SIZE : (index + 1) * ROOT_SIZE]
        yield root, StoredRange(file, start + offset, size)


def _spilled_sectors(skyfile: StoredSkyfile) -> Iterator[Sector]:
    """Yield the sectors of the extension. The bytes of each level are the roots of the next."""
    file = skyfile.metadata.file
    levels = spill_sizes(skyfile.layout.body_size)
    roots = read_range(StoredRange(skyfile.base.file, LAYOUT_SIZE, levels[0]))
    starts, offset = {}, 0
    for depth in range(len(levels) - 1, 0, -1):  # the lowest level comes first in the file
        starts[depth] = offset
        offset += -(-levels[depth] // SECTOR_SIZE) * SECTOR_SIZE
    for depth in range(1, len(levels)):
        yield from _consecutive_sectors(roots, file, start=starts[depth])
        roots = read_range(StoredRange(file, starts[depth], levels[depth]))
