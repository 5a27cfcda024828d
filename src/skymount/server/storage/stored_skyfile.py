"""A skyfile of the store: its parts, the ranges in them, and its sectors.

Functions that read block: async code calls them in a thread.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from skymount.errors import MalformedError, StorageError
from skymount.server.storage.stored_range import InMemory, StoredBytes, StoredRange, read_range
from skymount.wire.base_sector import LAYOUT_SIZE, Layout, spill_sizes
from skymount.wire.metadata import INTEGER_LIMIT
from skymount.wire.skyfile_encryption import SkyfileKey, is_encrypted
from skymount.wire.skylink import ROOT_SIZE, SECTOR_SIZE, Skylink


class SkyfileParts(Protocol):
    """What a store keeps of one skyfile. Methods block; StorageError."""

    @property
    def base(self) -> StoredBytes:
        """The used bytes of the base sector; all of a small skyfile."""

    @property
    def payload(self) -> StoredBytes:
        """The content of a large one."""

    @property
    def extension(self) -> StoredBytes:
        """Spilled sectors, padded, when metadata did not fit the base."""

    def encrypted_payload(self, fanout: StoredRange, layout: Layout) -> StoredBytes:
        """Return the sectors of an encrypted payload; what the arguments say is decrypted."""

    def encrypted_roots(self) -> bytes:
        """Return the roots of the payload's sectors if it is encrypted: the fan-out is secret."""


SMALL_SIZE = 32 << 10
"""Bytes of a base sector that a store reads with its layout: a smaller one is then in memory."""


@dataclass(frozen=True, slots=True)
class BuiltSkyfile:
    """What an upload ends with, once the sectors of its payload are written."""

    base: bytes
    spilled: tuple[bytes, ...] = ()
    """Sectors of metadata and fan-out that did not fit the base, without padding."""
    roots: bytes = b""
    """Merkle roots of the payload's sectors."""

    @property
    def is_encrypted(self) -> bool:
        return is_encrypted(Layout.parse(self.base))

    @property
    def is_small(self) -> bool:
        """Whether the base sector is all of it, and at most `SMALL_SIZE`."""
        return len(self.base) <= SMALL_SIZE and not (self.roots or self.spilled)

    def disk_size(self, content: int) -> int:
        """Return the bytes on disk, with that many of content and all padding."""
        size = len(self.base) + len(self.spilled) * SECTOR_SIZE
        if not self.roots:
            return size
        if self.is_encrypted:
            return size + len(self.roots) // ROOT_SIZE * SECTOR_SIZE + len(self.roots)
        return size + content


@dataclass(frozen=True, slots=True)
class StoredSkyfile:
    """Where the parts of a skyfile are; of an encrypted one only `base` before `decrypt_layout`."""

    skylink: Skylink
    layout: Layout
    parts: SkyfileParts
    base: StoredRange
    metadata: StoredRange
    fanout: StoredRange
    payload: StoredRange

    @classmethod
    def of(cls, skylink: Skylink, start: bytes, size: int, parts: SkyfileParts) -> "StoredSkyfile":
        """Make one of the first bytes of its base sector, which has `size`; StorageError."""
        try:
            layout = Layout.parse(start[:LAYOUT_SIZE])
        except MalformedError as error:
            raise StorageError(f"stored skyfile {skylink} is damaged: {error}") from None
        source = InMemory("base", start) if len(start) == size else parts.base
        base = StoredRange(source, 0, size)
        nothing = replace(base, length=0)
        skyfile = cls(skylink, layout, parts, base, nothing, nothing, nothing)
        if skyfile._is_cut_short:
            raise StorageError(f"stored skyfile {skylink} is damaged: its base sector is cut short")
        return skyfile if is_encrypted(layout) else _with_ranges(skyfile, layout)

    @property
    def is_encrypted(self) -> bool:
        return is_encrypted(self.layout)

    @property
    def _is_cut_short(self) -> bool:
        """Whether bytes of the base sector are missing. Zeros at its end do not change its root."""
        layout = self.layout
        if self.is_encrypted:
            return self.base.length < SECTOR_SIZE
        used = LAYOUT_SIZE + spill_sizes(layout.body_size)[0]
        return self.base.length < used + (layout.filesize if layout.is_inline else 0)


def _with_ranges(
    skyfile: StoredSkyfile, layout: Layout, key: SkyfileKey | None = None
) -> StoredSkyfile:
    """Return a skyfile with the ranges that its layout describes (docs/wire.md 2.1, 2.2)."""
    if LAYOUT_SIZE + layout.body_size + layout.filesize >= INTEGER_LIMIT:
        raise StorageError(f"stored skyfile {skyfile.skylink} is damaged: its sizes are too large")
    parts, base = skyfile.parts, skyfile.base.source
    decrypt, decrypt_payload = (key.base.apply, key.open_payload) if key else (None, None)
    body, start = (parts.extension, 0) if layout.is_extended else (base, LAYOUT_SIZE)
    fanout = StoredRange(body, start, layout.fanout_size, decrypt)
    if layout.is_inline:
        payload = StoredRange(base, LAYOUT_SIZE + layout.metadata_size, layout.filesize, decrypt)
    else:
        source = parts.payload if key is None else parts.encrypted_payload(fanout, layout)
        payload = StoredRange(source, 0, layout.filesize, decrypt_payload)
    return replace(
        skyfile,
        layout=layout,
        metadata=StoredRange(body, start + layout.fanout_size, layout.metadata_size, decrypt),
        fanout=fanout,
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
    """Yield every sector of a skyfile. The Merkle roots are read, not computed."""
    yield skyfile.skylink.root, skyfile.base
    if skyfile.is_encrypted:
        yield from _consecutive_sectors(skyfile.parts.encrypted_roots(), skyfile.parts.payload)
    elif not skyfile.layout.is_inline:
        payload = skyfile.payload
        yield from _consecutive_sectors(read_range(skyfile.fanout), payload.source, payload.length)
        if skyfile.layout.is_extended:
            yield from _spilled_sectors(skyfile)


def _consecutive_sectors(
    roots: bytes, source: StoredBytes, length: int | None = None, *, start: int = 0
) -> Iterator[Sector]:
    """Yield consecutive sectors from `start` on. With a `length` the last one is shorter."""
    for index in range(len(roots) // ROOT_SIZE):
        offset = index * SECTOR_SIZE
        size = SECTOR_SIZE if length is None else min(SECTOR_SIZE, length - offset)
        root = roots[index * ROOT_SIZE : (index + 1) * ROOT_SIZE]
        yield root, StoredRange(source, start + offset, size)


def _spilled_sectors(skyfile: StoredSkyfile) -> Iterator[Sector]:
    """Yield the sectors of the extension. The bytes of each level are the roots of the next."""
    extension = skyfile.parts.extension
    levels = spill_sizes(skyfile.layout.body_size)
    roots = read_range(StoredRange(skyfile.parts.base, LAYOUT_SIZE, levels[0]))
    starts, offset = {}, 0
    for depth in range(len(levels) - 1, 0, -1):  # the lowest level comes first
        starts[depth] = offset
        offset += -(-levels[depth] // SECTOR_SIZE) * SECTOR_SIZE
    for depth in range(1, len(levels)):
        yield from _consecutive_sectors(roots, extension, start=starts[depth])
        roots = read_range(StoredRange(extension, starts[depth], levels[depth]))
