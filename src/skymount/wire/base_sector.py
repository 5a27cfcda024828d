"""Owns the skyfile's base sector: layout, fan-out, metadata, payload, and how they are packed.

Rules: wire notes 2.1 (order and layout), 2.2 (small or large), 2.3 (fan-out). Metadata that does
not fit is spilled as later servers do: fan-out and metadata together are cut into sectors, and
their Merkle roots (again and again, until they fit) stand in the base sector in their place.
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
CIPHER_LEGACY_PLAIN = bytes(8)
"""What uploads before April 2020 hold; readers take it as plain (wire notes 2.1)."""

KEY_DATA_SIZE = 64

FANOUT_LIMIT = 64 << 20
"""Bytes of fan-out; the roots of 8 TiB of content."""

CHUNK_LIMIT = 64 << 20
"""Bytes of a chunk, which must be held to check any of them; real portals need 40 MiB (wire notes
2.3)."""

_PARTS = 4
"""Of a chunk that somebody waits for: most of it is hashed while the rest arrives. Each costs a
turn of a thread.
"""

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
        """Read the layout at the start of `data`; MalformedError for any but version 1."""
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
        """Whether the content is stored unencrypted."""
        return self.cipher in (CIPHER_PLAIN, CIPHER_LEGACY_PLAIN)

    @property
    def body_size(self) -> int:
        """Bytes of fan-out and metadata together."""
        return self.fanout_size + self.metadata_size

    @property
    def is_extended(self) -> bool:
        """Whether fan-out and metadata were spilled into sectors of their own."""
        return LAYOUT_SIZE + self.body_size > SECTOR_SIZE

    @property
    def is_inline(self) -> bool:
        """Whether the payload lies in the base sector itself."""
        return self.fanout_size == 0 and not self.is_extended

    @property
    def chunk_size(self) -> int:
        """Bytes of payload that the roots of one chunk of the fan-out cover."""
        return max(1, self.data_pieces) * SECTOR_SIZE

    @property
    def is_verifiable(self) -> bool:
        """Whether content can be verified chunk by chunk within the limits of memory."""
        return self.is_inline or self.chunk_size <= CHUNK_LIMIT

    @property
    def roots_per_chunk(self) -> int:
        """Roots that the fan-out holds for each chunk."""
        if self.data_pieces == 1 and self.is_plain:
            return 1
        return self.data_pieces + self.parity_pieces

    @property
    def chunks(self) -> int:
        """Number of chunks of the payload, by its size."""
        return -(-self.filesize // self.chunk_size)


@dataclass(frozen=True, slots=True)
class BaseSector:
    """A base sector taken apart; what was spilled is not in it."""

    layout: Layout
    roots: bytes
    """Joined roots of the top level of the spilled part, empty unless extended."""
    fanout: bytes
    metadata: bytes
    payload: bytes | None
    """The whole content of a small file, None when it lies behind the fan-out."""


def fits_inline(metadata_size: int, payload_size: int) -> bool:
    """Whether content of that size is stored in its base sector (wire notes 2.2)."""
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


def build_fanned_out(filesize: int, fanout: bytes, metadata: bytes) -> tuple[bytes, list[bytes]]:
    """Return (base sector's used bytes, spilled sectors) of a large file of 1-of-n chunks.

    `fanout` holds the joined Merkle roots of the payload's 4 MiB chunks. The spilled sectors are
    empty as long as everything fits the base sector; none of them is longer than a sector.
    """
    layout = Layout(filesize, len(metadata), len(fanout), data_pieces=1)
    body = fanout + metadata
    spilled: list[bytes] = []
    while LAYOUT_SIZE + len(body) > SECTOR_SIZE:
        sectors = [body[at : at + SECTOR_SIZE] for at in range(0, len(body), SECTOR_SIZE)]
        spilled += sectors
        body = b"".join(map(merkle.sector_root, sectors))
    return bytes(layout) + body, spilled


def spill_sizes(body_size: int) -> list[int]:
    """Return the byte size of each level of a spilled part, from the base sector's roots down.

    The last one is `body_size` itself. A body that fits the base sector gives ``[body_size]``.
    """
    sizes = [body_size]
    while LAYOUT_SIZE + sizes[0] > SECTOR_SIZE:
        sizes.insert(0, -(-sizes[0] // SECTOR_SIZE) * ROOT_SIZE)
    return sizes


def spilled_level_sizes(layout: Layout) -> list[int]:
    """Return the byte size of each level below the roots in the base sector; the last one is the
    fan-out and the metadata. MalformedError when one of the two is over its limit.
    """
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
    """Take a base sector apart; `data` may be followed by padding.

    MalformedError when the sizes in the layout do not fit the data, or the data no sector. Nothing
    is decrypted: what follows an encrypted layout is returned as it stands.
    """
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
    """MalformedError unless the fan-out holds the roots of each chunk of the payload."""
    if layout.data_pieces < 1:
        raise MalformedError("a fan-out without data pieces")
    if len(fanout) != layout.chunks * layout.roots_per_chunk * ROOT_SIZE:
        raise MalformedError("the fan-out does not match the size of the content")


def part_size(layout: Layout) -> int:
    """Return the bytes of the parts in which a chunk may be hashed; the last may be shorter."""
    return layout.chunk_size // _PARTS


def hash_part(layout: Layout, part: bytes | memoryview) -> tuple[bytes, ...]:
    """Return what `is_authentic` needs of a part of a chunk: a hash for each data piece."""
    pieces = layout.data_pieces
    return tuple(merkle.piece_groups(part, piece, pieces) for piece in range(pieces))


def is_authentic(
    layout: Layout, fanout: bytes | memoryview, index: int, parts: Sequence[tuple[bytes, ...]]
) -> bool:
    """Whether parts, hashed by `hash_part`, make the payload's chunk of that index by the fan-out.

    The last chunk may come without its zero padding, so whether the parts have the length that was
    asked for is for the caller to check: what was cut off could have been zeros. ValueError when
    they are more than a chunk.
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
