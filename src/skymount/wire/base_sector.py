"""The base sector of a skyfile: layout, fan-out, metadata and payload (docs/wire.md 2.1 to 2.3).

Fan-out and metadata that do not fit are spilled: they are cut into sectors, and the base sector
holds the Merkle roots of these, again spilled until they fit.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

from skymount.errors import MalformedError
from skymount.wire import merkle
from skymount.wire.metadata import METADATA_LIMIT
from skymount.wire.skylink import ROOT_SIZE, SECTOR_SIZE

Body = TypeVar("Body", bytes, memoryview)

LAYOUT_SIZE = 99
CIPHER_PLAIN = b"\0\0\0\0\0\0\0\1"
CIPHER_LEGACY_PLAIN = bytes(8)  # in uploads before April 2020 (docs/wire.md 2.1)

KEY_DATA_SIZE = 64

FANOUT_LIMIT = 64 << 20  # bytes of fan-out; the roots of 8 TiB of content
CHUNK_LIMIT = 64 << 20  # bytes of a chunk; real portals need 40 MiB (docs/wire.md 2.3)

_PARTS = 4  # of a chunk, each hashed in a thread while the next ones arrive

_LAYOUT = struct.Struct(f"<BQQQBB8s{KEY_DATA_SIZE}s")
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Layout:
    """The 99 bytes at the start of a base sector. Sizes in bytes."""

    filesize: int
    metadata_size: int
    fanout_size: int = 0
    data_pieces: int = 0
    parity_pieces: int = 0
    cipher: bytes = CIPHER_PLAIN
    key_data: bytes = bytes(KEY_DATA_SIZE)

    @classmethod
    def parse(cls, data: bytes) -> Self:
        if len(data) < LAYOUT_SIZE:
            raise MalformedError(f"a layout has {LAYOUT_SIZE} bytes, not {len(data)}")
        version, filesize, metadata, fanout, data_p, parity_p, cipher, key = _LAYOUT.unpack_from(
            data
        )
        if version != _VERSION:
            raise MalformedError(f"unsupported skyfile version {version}")
        return cls(filesize, metadata, fanout, data_p, parity_p, cipher, key)

    def __bytes__(self) -> bytes:
        return _LAYOUT.pack(
            _VERSION,
            self.filesize,
            self.metadata_size,
            self.fanout_size,
            self.data_pieces,
            self.parity_pieces,
            self.cipher,
            self.key_data,
        )

    @property
    def is_plain(self) -> bool:
        return self.cipher in (CIPHER_PLAIN, CIPHER_LEGACY_PLAIN)

    @property
    def body_size(self) -> int:
        return self.fanout_size + self.metadata_size

    @property
    def is_extended(self) -> bool:
        return LAYOUT_SIZE + self.body_size > SECTOR_SIZE

    @property
    def is_inline(self) -> bool:
        return self.fanout_size == 0 and not self.is_extended

    @property
    def chunk_size(self) -> int:
        return max(1, self.data_pieces) * SECTOR_SIZE

    @property
    def is_verifiable(self) -> bool:
        return self.is_inline or self.chunk_size <= CHUNK_LIMIT

    @property
    def roots_per_chunk(self) -> int:
        if self.data_pieces == 1 and self.is_plain:
            return 1
        return self.data_pieces + self.parity_pieces

    @property
    def chunks(self) -> int:
        return -(-self.filesize // self.chunk_size)


@dataclass(frozen=True, slots=True)
class BaseSector:
    """The parsed parts of a base sector."""

    layout: Layout
    roots: bytes  # joined Merkle roots of the top level that was spilled; empty unless extended
    fanout: bytes
    metadata: bytes
    payload: bytes | None  # the content of a small file; None for a large one


def fits_inline(metadata_size: int, payload_size: int) -> bool:
    """Whether content of this size is stored in its base sector (docs/wire.md 2.2)."""
    return LAYOUT_SIZE + metadata_size + payload_size <= SECTOR_SIZE


def build_inline(metadata: bytes, payload: bytes, cipher: bytes = CIPHER_PLAIN) -> bytes:
    """Return the used bytes of a small file's base sector; ValueError when they do not fit."""
    if not fits_inline(len(metadata), len(payload)):
        raise ValueError("metadata and payload do not fit one sector")
    layout = Layout(len(payload), len(metadata), cipher=cipher)
    return bytes(layout) + metadata + payload


def is_inline(root: bytes, metadata: bytes, payload: bytes) -> bool:
    """Whether metadata and payload make the base sector that has this Merkle root."""
    return any(
        merkle.sector_root(build_inline(metadata, payload, cipher)) == root
        for cipher in (CIPHER_PLAIN, CIPHER_LEGACY_PLAIN)
    )


def build_fanned_out(
    filesize: int, fanout: bytes, metadata: bytes, sector_size: int = SECTOR_SIZE
) -> tuple[bytes, list[bytes]]:
    """Return (base sector's used bytes, spilled sectors) of a large file of 1-of-n chunks.

    `fanout` holds the joined Merkle roots of the payload's 4 MiB chunks. The sectors of siad's
    test builds are smaller.
    """
    layout = Layout(filesize, len(metadata), len(fanout), data_pieces=1)
    body = fanout + metadata
    spilled: list[bytes] = []
    while LAYOUT_SIZE + len(body) > sector_size:
        sectors = [body[at : at + sector_size] for at in range(0, len(body), sector_size)]
        spilled += sectors
        body = b"".join(map(merkle.sector_root, sectors))
    return bytes(layout) + body, spilled


def spill_sizes(body_size: int, sector_size: int = SECTOR_SIZE) -> list[int]:
    """Return the bytes of each level, from the base sector's roots down to `body_size` itself."""
    sizes = [body_size]
    while LAYOUT_SIZE + sizes[0] > sector_size:
        sizes.insert(0, -(-sizes[0] // sector_size) * ROOT_SIZE)
    return sizes


def spilled_level_sizes(layout: Layout) -> list[int]:
    """Return the bytes of each level below the base sector; MalformedError when over a limit."""
    if layout.metadata_size > METADATA_LIMIT or layout.fanout_size > FANOUT_LIMIT:
        raise MalformedError("the metadata or the fan-out is over its limit")
    return spill_sizes(layout.body_size)[1:]


def sectors_of_level(roots: bytes, size: int) -> Iterator[tuple[int, bytes, int]]:
    """Yield (offset, Merkle root, length) of each sector of a level of `size` bytes."""
    for number in range(len(roots) // ROOT_SIZE):
        offset = number * SECTOR_SIZE
        root = roots[number * ROOT_SIZE : (number + 1) * ROOT_SIZE]
        yield offset, root, min(SECTOR_SIZE, size - offset)


def split_body(layout: Layout, body: Body) -> tuple[Body, Body]:
    """Return (fan-out, metadata) of the part that follows the layout."""
    if len(body) < layout.body_size:
        raise MalformedError("the base sector is shorter than its layout says")
    return body[: layout.fanout_size], body[layout.fanout_size : layout.body_size]


def parse_base_sector(data: bytes) -> BaseSector:
    """Read a base sector, which padding may follow. Nothing is decrypted."""
    layout = Layout.parse(data)
    if len(data) > SECTOR_SIZE:
        raise MalformedError("a base sector cannot be larger than a sector")
    if layout.is_extended:
        size = spill_sizes(layout.body_size)[0]
        roots = data[LAYOUT_SIZE : LAYOUT_SIZE + size]
        if len(roots) != size:
            raise MalformedError("the base sector is shorter than its layout says")
        return BaseSector(layout, roots, b"", b"", None)
    fanout, metadata = split_body(layout, data[LAYOUT_SIZE:])
    if not layout.is_inline:
        return BaseSector(layout, b"", fanout, metadata, None)
    start = LAYOUT_SIZE + layout.body_size
    payload = data[start : start + layout.filesize]
    if len(payload) != layout.filesize:
        raise MalformedError("the payload is shorter than the layout says")
    return BaseSector(layout, b"", fanout, metadata, payload)


def check_fanout(layout: Layout, fanout: bytes | memoryview) -> None:
    """MalformedError unless the fan-out has the roots of every chunk of the payload."""
    if layout.data_pieces < 1:
        raise MalformedError("a fan-out without data pieces")
    if len(fanout) != layout.chunks * layout.roots_per_chunk * ROOT_SIZE:
        raise MalformedError("the fan-out does not match the size of the content")


def part_size(layout: Layout) -> int:
    """Return the bytes of the parts in which a chunk is hashed; the last may be shorter."""
    return layout.chunk_size // _PARTS


def hash_part(layout: Layout, part: bytes | memoryview) -> tuple[bytes, ...]:
    """Hash a part of a chunk for `is_authentic`: once for each data piece."""
    pieces = layout.data_pieces
    return tuple(merkle.piece_groups(part, piece, pieces) for piece in range(pieces))


def is_authentic(
    layout: Layout, fanout: bytes | memoryview, index: int, parts: Sequence[tuple[bytes, ...]]
) -> bool:
    """Whether parts, hashed by `hash_part`, are the chunk of that index according to the fan-out.

    The caller checks the length, because the last chunk comes without its padding. ValueError when
    the parts are more than a chunk.
    """
    if layout.data_pieces < 1:
        return False
    start = index * layout.roots_per_chunk * ROOT_SIZE
    roots = fanout[start : start + layout.data_pieces * ROOT_SIZE]
    return len(roots) == layout.data_pieces * ROOT_SIZE and all(
        merkle.joined_root(part[piece] for part in parts)
        == roots[piece * ROOT_SIZE : (piece + 1) * ROOT_SIZE]
        for piece in range(layout.data_pieces)
    )
