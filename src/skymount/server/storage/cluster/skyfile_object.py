"""The object of a skyfile: its base sector, and the Merkle roots of its other sectors. No IO.

4 bytes  SKF1
4 bytes  size of the base sector, its used bytes, little-endian like the others
4 bytes  number of sectors of the payload
4 bytes  number of spilled sectors
then the base sector, and the roots of payload and spilled sectors, 32 bytes each
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from skymount.errors import MalformedError
from skymount.wire.skylink import ROOT_SIZE, Skylink

SKYFILES = "skyfiles"
"""The directory of the objects."""

_HEADER = struct.Struct("<4sIII")
_MAGIC = b"SKF1"


def skyfile_name(skylink: Skylink) -> str:
    """Return the name of the object of a skyfile."""
    return f"{SKYFILES}/{skylink}"


@dataclass(frozen=True, slots=True)
class SkyfileObject:
    """What the object of a skyfile has."""

    base: bytes
    payload_roots: tuple[bytes, ...]
    spilled_roots: tuple[bytes, ...]

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        if len(raw) < _HEADER.size:
            raise MalformedError("it is too short")
        magic, base, payload, spilled = _HEADER.unpack_from(raw)
        start = _HEADER.size + base
        if magic != _MAGIC or len(raw) != start + (payload + spilled) * ROOT_SIZE:
            raise MalformedError("it has not the form of a skyfile")
        roots = [raw[at : at + ROOT_SIZE] for at in range(start, len(raw), ROOT_SIZE)]
        return cls(raw[_HEADER.size : start], tuple(roots[:payload]), tuple(roots[payload:]))

    def __bytes__(self) -> bytes:
        header = _HEADER.pack(
            _MAGIC, len(self.base), len(self.payload_roots), len(self.spilled_roots)
        )
        return b"".join((header, self.base, *self.payload_roots, *self.spilled_roots))

    @property
    def roots(self) -> Sequence[bytes]:
        return (*self.payload_roots, *self.spilled_roots)
