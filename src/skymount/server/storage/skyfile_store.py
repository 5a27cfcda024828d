"""Owns what the portal keeps on disk: skyfiles, whole or not at all, one directory for each.

    <data>/lock                       held while a portal runs here
    <data>/v1/incoming/<random>/      uploads under way; emptied at start
    <data>/v1/skyfiles/<xx>/<skylink>/    xx: first byte of the Merkle root in hex
        base        used bytes of the base sector; the whole of a small skyfile
        payload     content of a large one
        extension   spilled sectors, padded to 4 MiB each, when metadata did not fit the base
        roots       Merkle roots of the payload's sectors, when it is encrypted and large

An encrypted skyfile is stored as it is handed out: base and payload are encrypted whole sectors.

Every function blocks on the disk: async code calls them in a thread. What the bytes mean is the
wire codec's matter; hashing and receiving are `intake`'s.
"""

import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from skymount import file_permissions
from skymount.errors import MalformedError, StorageError
from skymount.storage import atomic_file
from skymount.wire.base_sector import LAYOUT_SIZE, Layout, spill_sizes
from skymount.wire.skyfile_encryption import SkyfileKey, is_encrypted
from skymount.wire.skylink import ROOT_SIZE, SECTOR_SIZE, Skylink

FORMAT = "v1"
BASE, PAYLOAD, EXTENSION, ROOTS = "base", "payload", "extension", "roots"

Decrypt = Callable[[bytes, int], bytes]
"""Turns stored bytes, which begin at that offset of their file, into content."""


@dataclass(frozen=True, slots=True)
class StoredRange:
    """Bytes of one file of the store."""

    file: Path
    offset: int
    length: int
    decrypt: Decrypt | None = None
    """None when they are content as they are stored."""


@dataclass(frozen=True, slots=True)
class StoredSkyfile:
    """Where the parts of one stored skyfile lie.

    Of an encrypted one only the base is known until it is `opened`: all else is empty.
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


@contextmanager
def _translated(doing: str) -> Iterator[None]:
    """Turn an OSError into a StorageError that says what was being done."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot {doing}: {error.strerror or error}") from error


def _check_own(path: Path) -> None:
    """StorageError unless a directory is the user's own, and nobody else can change what it holds,
    or put another one in its place.
    """
    if objection := file_permissions.permission_problem(
        path, path.stat(), file_permissions.WRITE_ACCESS
    ) or (file_permissions.path_problem(path)):
        raise StorageError(f"{path} cannot be used: {objection}")


def read(extent: StoredRange) -> bytes:
    """Return the bytes of an extent; StorageError when the file is shorter or gone."""
    with _translated("read stored content"), open(extent.file, "rb") as file:
        file.seek(extent.offset)
        data = file.read(extent.length)
    if len(data) != extent.length:
        raise StorageError(f"stored file {extent.file.name} is damaged: shorter than recorded")
    return extent.decrypt(data, extent.offset) if extent.decrypt is not None else data


class SkyfileStore:
    """The directory of one portal. Use `open`, and `close` it."""

    def __init__(self, root: Path, lock: int) -> None:
        self._lock = lock
        self._incoming = root / FORMAT / "incoming"
        self._skyfiles = root / FORMAT / "skyfiles"

    @classmethod
    def open(cls, root: Path) -> "SkyfileStore":
        """Take the directory, creating it when absent, and remove broken-off uploads.

        StorageError when it cannot be used, others could change what is in it, or another portal
        runs on it.
        """
        with _translated(f"use the data directory {root}"):
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
            with _translated(f"use the data directory {root}"):
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
        """Return a new directory for an upload under way; `commit` or `discard` ends it."""
        with _translated("begin an upload"):
            path = self._incoming / secrets.token_hex(16)
            path.mkdir(mode=0o700)
            return path

    def discard(self, upload: Path) -> None:
        """Remove an upload that is not to be kept."""
        with _translated("remove an upload"):
            shutil.rmtree(upload)

    def commit(
        self,
        upload: Path,
        skylink: Skylink,
        base: bytes,
        spilled: list[bytes],
        roots: bytes = b"",
    ) -> None:
        """Publish an upload whose payload, if large, is written and synced already.

        It appears in one step and survives a power cut once this returns. An upload of what is
        stored already is dropped. `roots` are those of the payload's sectors if it is encrypted.
        """
        with _translated("store an upload"):
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
        """Return where a skyfile lies, None when it is not stored."""
        directory = self._directory(skylink)
        try:
            with open(directory / BASE, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                layout = Layout.parse(file.read(LAYOUT_SIZE))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"cannot read stored content: {error.strerror}") from error
        except MalformedError as error:
            raise StorageError(f"stored skyfile {skylink} is damaged: {error}") from None
        return _locate(directory, skylink, layout, size)

    def skylinks(self) -> Iterator[Skylink]:
        """Yield the skylink of all that is stored, in no order; foreign names are passed over."""
        with _translated("list stored content"):
            names = [name for shard in self._skyfiles.iterdir() for name in os.listdir(shard)]
        for name in names:
            with suppress(MalformedError):
                yield Skylink.parse(name)

    def totals(self) -> tuple[int, int]:
        """Return how many skyfiles are stored, and the bytes of all their files."""
        count = size = 0
        with _translated("count stored content"):
            for shard in self._skyfiles.iterdir():
                for directory in shard.iterdir():
                    with suppress(FileNotFoundError, NotADirectoryError):
                        sizes = [entry.stat().st_size for entry in os.scandir(directory)]
                        count, size = count + 1, size + sum(sizes)
        return count, size

    def _directory(self, skylink: Skylink) -> Path:
        return self._skyfiles / f"{skylink.root[0]:02x}" / str(skylink)


def _locate(directory: Path, skylink: Skylink, layout: Layout, size: int) -> StoredSkyfile:
    """Work out where the parts of a skyfile lie from its layout (wire notes 2.1, 2.2)."""
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


def opened(skyfile: StoredSkyfile, key: SkyfileKey) -> StoredSkyfile:
    """Return an encrypted skyfile with its layout decrypted and its parts found."""
    base = skyfile.base.file
    try:
        layout = key.open_layout(read(StoredRange(base, 0, LAYOUT_SIZE)))
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
    """A sector of the store: some bytes, and zeros up to its end."""

    root: bytes
    extent: StoredRange


def sectors(skyfile: StoredSkyfile) -> Iterator[SectorLocation]:
    """Yield every sector of a skyfile with its Merkle root, read off the stored bytes."""
    yield SectorLocation(skyfile.skylink.root, skyfile.base)
    if skyfile.is_encrypted:
        yield from _encrypted_sectors(skyfile)
        return
    if skyfile.layout.is_inline:
        return
    fanout, size = read(skyfile.fanout), skyfile.payload.length
    for index in range(len(fanout) // 32):
        offset = index * SECTOR_SIZE
        length = min(SECTOR_SIZE, size - offset)
        extent = StoredRange(skyfile.payload.file, offset, length)
        yield SectorLocation(fanout[32 * index : 32 * index + 32], extent)
    if skyfile.layout.is_extended:
        yield from _spilled_sectors(skyfile)


def _encrypted_sectors(skyfile: StoredSkyfile) -> Iterator[SectorLocation]:
    """Yield the sectors of an encrypted payload: whoever asks for one needs no skykey."""
    payload, roots = (skyfile.base.file.with_name(name) for name in (PAYLOAD, ROOTS))
    with _translated("read stored content"):
        joined = roots.read_bytes() if roots.exists() else b""
    for index in range(len(joined) // ROOT_SIZE):
        root = joined[index * ROOT_SIZE : (index + 1) * ROOT_SIZE]
        yield SectorLocation(root, StoredRange(payload, index * SECTOR_SIZE, SECTOR_SIZE))


def _spilled_sectors(skyfile: StoredSkyfile) -> Iterator[SectorLocation]:
    """Yield the sectors of the extension: each level's roots are the bytes of the next level."""
    file = skyfile.metadata.file
    levels = spill_sizes(skyfile.layout.body_size)
    roots = read(StoredRange(skyfile.base.file, LAYOUT_SIZE, levels[0]))
    starts, at = {}, 0
    for depth in range(len(levels) - 1, 0, -1):  # the body is written first, then what is above
        starts[depth] = at
        at += -(-levels[depth] // SECTOR_SIZE) * SECTOR_SIZE
    for depth in range(1, len(levels)):
        for index in range(len(roots) // 32):
            extent = StoredRange(file, starts[depth] + index * SECTOR_SIZE, SECTOR_SIZE)
            yield SectorLocation(roots[32 * index : 32 * index + 32], extent)
        roots = read(StoredRange(file, starts[depth], levels[depth]))
