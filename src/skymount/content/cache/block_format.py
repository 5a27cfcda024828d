"""The format of a block on disk: its file's name, and the seal behind its content. No IO.

    <content> <"skyblock"> <length of the content: 8 bytes> <identity: 32> <checksum: 16>

The checksum is 128 bits of XXH3 over the rest. It finds damage, not forgery: what others could
write to is not read at all.
"""

import struct
from dataclasses import dataclass
from hashlib import blake2b

import xxhash

SEAL = 64
"""Bytes. The seal is at the end, so that the content begins at a page boundary."""

MAX_BLOCK = 512 << 20
"""Bytes; metadata at its largest has 256 MiB (docs/semantics.md, N6), a chunk 64 MiB."""

_MAGIC = b"skyblock"
_CLAIM = struct.Struct(">8sQ32s")
_IDENTITY = 32  # bytes


@dataclass(frozen=True, slots=True)
class BlockKey:
    """What identifies a block."""

    skylink: str
    unit: int
    """Bytes of content that are cached together; 0 is the description of the skylink."""
    size: int
    """Of the skylink's whole payload, in bytes."""
    index: int
    """Of the unit."""
    source: str = ""
    """The portal that it was received from; empty when it was verified."""

    @property
    def length(self) -> int:
        """Bytes of the unit; meaningless for a description."""
        return min(self.unit, self.size - self.index * self.unit)

    @property
    def identity(self) -> bytes:
        """The hash that names the file. No two keys make the same text."""
        text = f"{self.unit} {self.size} {self.index} {len(self.skylink)} {self.skylink}"
        whole = f"{text}{self.source}".encode(errors="surrogatepass")
        return blake2b(whole, digest_size=_IDENTITY).digest()


def file_name(identity: bytes) -> tuple[str, str]:
    """Return the names of a block's directory and file."""
    name = identity.hex()
    return name[:2], name


def identity_of(directory: str, name: str) -> bytes | None:
    """Return the identity that a file's names stand for; None when it is no block's."""
    if len(name) != 2 * _IDENTITY or name[:2] != directory or not name.isascii():
        return None
    try:
        identity = bytes.fromhex(name)
    except ValueError:
        return None
    return identity if identity.hex() == name else None


def claim(identity: bytes, length: int) -> bytes:
    """Return the beginning of a seal: what can be told without the content."""
    return _CLAIM.pack(_MAGIC, length, identity)


def seal(identity: bytes, data: bytes | memoryview) -> bytes:
    """Return what stands behind the content of a block."""
    said = claim(identity, len(data))
    checksum = xxhash.xxh3_128(data)
    checksum.update(said)
    return said + checksum.digest()
