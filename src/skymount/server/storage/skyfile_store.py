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
from skymount.wire.skyfile_encryption import SkyfileKey, is_encrypted
from skymount.wire.skylink import ROOT_SIZE, SECTOR_SIZE, Skylink

FORMAT = "v1"
BASE, PAYLOAD, EXTENSION, ROOTS = "base", "payload", "extension", "roots"


@dataclass(frozen=True, slots=True)
class StoredSkyfile:
    """Where the parts of one skyfile are stored.

    Of an encrypted one only the base is known before `decrypt_layout`; the other ranges are empty.
    """

    skylink: Skylink
    layout: Layout
    base: StoredRange
    """The used bytes of the base sector."""
    metadata: StoredRange
    fanout: StoredRange
    payload: StoredRange

    @property
    def is_encrypted(self) -> bool:
        """Whether it is stored encrypted; its layout may be decrypted already."""
        return is_encrypted(self.layout)


def _check_own(path: Path) -> None:
    """StorageError if another user can change what is in a directory, or replace it."""
    if problem := file_permissions.permission_problem(
        path, path.stat(), file_permissions.WRITE_ACCESS
    ) or (file_permissions.path_problem(path)):
        raise StorageError(f"{path} cannot be used: {problem}")


class SkyfileStore:
    """The directory of one portal. Use `open`, and `close` it."""

    def __init__(self, root: Path, lock: int) -> None:
        self._lock = lock
        self._incoming = root / FORMAT / "incoming"
        self._skyfiles = root / FORMAT / "skyfiles"

    @classmethod
    def open(cls, root: Path) -> "SkyfileStore":
        """Lock the directory, made when absent, and remove interrupted uploads.

        StorageError when it cannot be used, others could change what is in it, or another portal
        runs on it.
        """
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
        for first_byte in range(256):
            (self._skyfiles / f"{first_byte:02x}").mkdir(mode=0o700, exist_ok=True)
        for directory in (self._skyfiles, self._skyfiles.parent, root):
            atomic_file.sync_directory(directory)
        for leftover in self._incoming.iterdir():
            shutil.rmtree(leftover)

    def close(self) -> None:
        """Let another portal use the directory."""
        os.close(self._lock)

    def begin(self) -> Path:
        """Return a new directory for an upload in progress; `commit` or `discard` ends it."""
        with disk_errors("begin an upload"):
            path = self._incoming / secrets.token_hex(16)
            path.mkdir(mode=0o700)
            return path

    def discard(self, upload: Path) -> None:
        """Remove an upload that is not kept."""
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
        already, the upload is dropped. `roots` are those of an encrypted payload's sectors.
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
                shutil.rmtree(upload)
            atomic_file.sync_directory(target.parent)

    def find(self, skylink: Skylink) -> StoredSkyfile | None:
        """Return where a skyfile is stored; None when it is not."""
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
        return _locate(directory, skylink, layout, size)

    def skylinks(self) -> Iterator[Skylink]:
        """Yield the skylinks of all skyfiles, in no order. Other names on disk are skipped."""
        with disk_errors("list stored content"):
            names = [name for shard in self._skyfiles.iterdir() for name in os.listdir(shard)]
        for name in names:
            with suppress(MalformedError):
                yield Skylink.parse(name)

    def totals(self) -> tuple[int, int]:
        """Return how many skyfiles are stored, and the bytes of all their files."""
        count = size = 0
        with disk_errors("count stored content"):
            for shard in self._skyfiles.iterdir():
                for directory in shard.iterdir():
                    with suppress(FileNotFoundError, NotADirectoryError):
                        sizes = [entry.stat().st_size for entry in os.scandir(directory)]
                        count, size = count + 1, size + sum(sizes)
        return count, size

    def _directory(self, skylink: Skylink) -> Path:
        return self._skyfiles / f"{skylink.root[0]:02x}" / str(skylink)


def _locate(directory: Path, skylink: Skylink, layout: Layout, size: int) -> StoredSkyfile:
    """Find the parts of a skyfile by its layout (wire notes 2.1, 2.2)."""
    base = directory / BASE
    if is_encrypted(layout):
        nothing = StoredRange(base, 0, 0)
        return StoredSkyfile(skylink, layout, StoredRange(base, 0, size), nothing, nothing, nothing)
    if layout.is_inline:
        start = LAYOUT_SIZE + layout.metadata_size
        payload = StoredRange(base, start, layout.filesize)
    else:
        payload = StoredRange(directory / PAYLOAD, 0, layout.filesize)
    body, start = (directory / EXTENSION, 0) if layout.is_extended else (base, LAYOUT_SIZE)
    return StoredSkyfile(
        skylink,
        layout,
        base=StoredRange(base, 0, size),
        metadata=StoredRange(body, start + layout.fanout_size, layout.metadata_size),
        fanout=StoredRange(body, start, layout.fanout_size),
        payload=payload,
    )


def decrypt_layout(skyfile: StoredSkyfile, key: SkyfileKey) -> StoredSkyfile:
    """Return an encrypted skyfile with its layout decrypted and all its ranges known."""
    base = skyfile.base.file
    try:
        layout = key.open_layout(read_range(StoredRange(base, 0, LAYOUT_SIZE)))
    except MalformedError as error:
        raise StorageError(f"stored skyfile {skyfile.skylink} is damaged: {error}") from None
    if layout.is_inline:
        start = LAYOUT_SIZE + layout.metadata_size
        payload = StoredRange(base, start, layout.filesize, key.base.apply)
    else:
        payload = StoredRange(base.with_name(PAYLOAD), 0, layout.filesize, key.open_payload)
    start = LAYOUT_SIZE + layout.fanout_size
    return replace(
        skyfile,
        layout=layout,
        metadata=StoredRange(base, start, layout.metadata_size, key.base.apply),
        fanout=StoredRange(base, LAYOUT_SIZE, layout.fanout_size, key.base.apply),
        payload=payload,
    )


@dataclass(frozen=True, slots=True)
class SectorLocation:
    """Where a sector is stored. It is padded with zeros up to `SECTOR_SIZE`."""

    root: bytes
    """Its Merkle root."""
    stored: StoredRange


def list_sectors(skyfile: StoredSkyfile) -> Iterator[SectorLocation]:
    """Yield every sector of a skyfile. The Merkle roots are read from disk, not computed."""
    yield SectorLocation(skyfile.skylink.root, skyfile.base)
    if skyfile.is_encrypted:
        yield from _encrypted_sectors(skyfile)
        return
    if skyfile.layout.is_inline:
        return
    fanout, size = read_range(skyfile.fanout), skyfile.payload.length
    for index in range(len(fanout) // ROOT_SIZE):
        offset = index * SECTOR_SIZE
        stored = StoredRange(skyfile.payload.file, offset, min(SECTOR_SIZE, size - offset))
        yield SectorLocation(_root_at(fanout, index), stored)
    if skyfile.layout.is_extended:
        yield from _spilled_sectors(skyfile)


def _encrypted_sectors(skyfile: StoredSkyfile) -> Iterator[SectorLocation]:
    """Yield the sectors of an encrypted payload; no skykey is needed."""
    payload, roots = (skyfile.base.file.with_name(name) for name in (PAYLOAD, ROOTS))
    with disk_errors("read stored content"):
        joined = roots.read_bytes() if roots.exists() else b""
    for index in range(len(joined) // ROOT_SIZE):
        stored = StoredRange(payload, index * SECTOR_SIZE, SECTOR_SIZE)
        yield SectorLocation(_root_at(joined, index), stored)


def _spilled_sectors(skyfile: StoredSkyfile) -> Iterator[SectorLocation]:
    """Yield the sectors of the extension. The bytes of each level are the roots of the next."""
    file = skyfile.metadata.file
    levels = spill_sizes(skyfile.layout.body_size)
    roots = read_range(StoredRange(skyfile.base.file, LAYOUT_SIZE, levels[0]))
    starts, at = {}, 0
    for depth in range(len(levels) - 1, 0, -1):  # the body is written first, then what is above
        starts[depth] = at
        at += -(-levels[depth] // SECTOR_SIZE) * SECTOR_SIZE
    for depth in range(1, len(levels)):
        for index in range(len(roots) // ROOT_SIZE):
            stored = StoredRange(file, starts[depth] + index * SECTOR_SIZE, SECTOR_SIZE)
            yield SectorLocation(_root_at(roots, index), stored)
        roots = read_range(StoredRange(file, starts[depth], levels[depth]))


def _root_at(roots: bytes, index: int) -> bytes:
    return roots[index * ROOT_SIZE : (index + 1) * ROOT_SIZE]
