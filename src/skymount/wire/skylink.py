"""Skylinks: 34 bytes, two text forms, and the bitfield (docs/wire.md 1.1 to 1.3)."""

import base64
import re
from collections.abc import Iterable
from typing import Self
from urllib.parse import quote, urlsplit

from skymount.errors import MalformedError
from skymount.wire.dialect import PRESETS, Dialect

SECTOR_SIZE = 4 << 20  # bytes, the unit of storage and of Merkle roots (docs/wire.md 2.1)
ROOT_SIZE = 32
RAW_SIZE = 2 + ROOT_SIZE
BASE64_LENGTH = 46
BASE32_LENGTH = 55

SKYLINK_SCHEME = "skylink"
"""``skylink://<skylink>/<path>`` is a link whose path is taken as it stands."""

LINK_LIMIT = 64 << 10  # characters of a link with its path; a URL beyond it is not one of ours
_MODES = 8  # sizes of the length field, each doubling offset alignment and length step
_UNIT = 4096  # bytes, smallest offset alignment and length step

_BASE64 = re.compile(r"[A-Za-z0-9_-]{46}")
_BASE32 = re.compile(r"[0-9A-Va-v]{55}")
_LAST = re.compile(r"/([A-Za-z0-9_-]{46}|[0-9A-Va-v]{55})/?\Z")
_PATH = re.compile(r"/?([A-Za-z0-9_-]{46}|[0-9A-Va-v]{55})((?:/.*)?)", re.DOTALL)
_DIRECTORIES = ("/file/", "/-/view/", *(each.path("skylink/") for each in PRESETS.values()))
_IN_URL = re.compile(  # where else a portal has content
    rf"(?:{'|'.join(map(re.escape, _DIRECTORIES))})(.*)", re.DOTALL
)


def decode_bitfield(bitfield: int) -> tuple[int, int]:
    """Return (offset, fetch size) in bytes of a v1 bitfield; MalformedError when it is illegal."""
    if not 0 <= bitfield <= 0xFFFF or bitfield & 3:
        raise MalformedError(f"bitfield {bitfield} is not one of a v1 skylink")
    bits = bitfield >> 2
    mode = (~bits & (bits + 1)).bit_length() - 1  # number of trailing ones
    if mode >= _MODES:
        raise MalformedError(f"bitfield {bitfield} has no legal mode")
    bits >>= mode + 1
    step = _UNIT if mode == 0 else _UNIT << (mode - 1)
    fetch_size = ((bits & 7) + 1 + (8 if mode else 0)) * step
    offset = (bits >> 3) * (_UNIT << mode)
    if offset + fetch_size > SECTOR_SIZE:
        raise MalformedError(f"bitfield {bitfield} points beyond the sector")
    return offset, fetch_size


def encode_bitfield(offset: int, length: int) -> int:
    """Return the v1 bitfield that fetches at least `length` bytes at `offset` of a sector.

    MalformedError outside the sector, or when the offset is not aligned for that length.
    """
    if offset < 0 or length < 0 or offset + max(length, 1) > SECTOR_SIZE:
        raise MalformedError(f"{length} bytes at {offset} do not lie in a sector")
    mode = max(0, (max(length, 1) - 1) // (8 * _UNIT)).bit_length()
    step = _UNIT if mode == 0 else _UNIT << (mode - 1)
    units = max(1, -(-length // step))
    alignment = _UNIT << mode
    if offset % alignment:
        raise MalformedError(f"offset {offset} is not aligned to {alignment} for {length} bytes")
    code = units - 1 - (8 if mode else 0)
    bits = (offset // alignment << 3 | code) << (mode + 1) | (1 << mode) - 1
    return bits << 2


class Skylink(str):
    """A legal skylink: a string, its 46-character form. It can also be made of any bare form."""

    __slots__ = ()

    def __new__(cls, text: str) -> Self:
        """Parse the bare 46-character base64 or 55-character base32 form; MalformedError.

        As in the reference, base32 may be of any case, and unused bits at the end are ignored.
        """
        if len(text) == BASE64_LENGTH and _BASE64.fullmatch(text):
            return cls.from_bytes(base64.urlsafe_b64decode(text + "=="))
        if len(text) == BASE32_LENGTH and _BASE32.fullmatch(text):
            return cls.from_bytes(base64.b32hexdecode(text.upper() + "="))
        raise MalformedError(f"not a skylink: {text[:80]!r}")

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """Read a little-endian bitfield, then the hash; MalformedError when it is illegal."""
        if len(raw) != RAW_SIZE:
            raise MalformedError(f"a raw skylink has {RAW_SIZE} bytes, not {len(raw)}")
        bitfield = int.from_bytes(raw[:2], "little")
        if bitfield != 1:
            decode_bitfield(bitfield)
        return str.__new__(cls, base64.urlsafe_b64encode(raw)[:BASE64_LENGTH].decode())

    @classmethod
    def v1(cls, root: bytes, length: int, offset: int = 0) -> Self:
        return cls.from_bytes(encode_bitfield(offset, length).to_bytes(2, "little") + root)

    @classmethod
    def v2(cls, entry_id: bytes) -> Self:
        """Name whatever the registry entry with that 32-byte id points to."""
        return cls.from_bytes(b"\1\0" + entry_id)

    def __bytes__(self) -> bytes:
        return base64.urlsafe_b64decode(self + "==")

    @property
    def bitfield(self) -> int:
        return int.from_bytes(bytes(self)[:2], "little")

    @property
    def root(self) -> bytes:
        """32 bytes: the Merkle root of the base sector (v1), the id of the registry entry (v2)."""
        return bytes(self)[2:]

    @property
    def version(self) -> int:
        """1 for content, 2 for a link that the registry resolves."""
        return (self.bitfield & 3) + 1

    @property
    def offset(self) -> int:
        """In bytes; 0 unless packed. v1 only."""
        return decode_bitfield(self.bitfield)[0]

    @property
    def fetch_size(self) -> int:
        return decode_bitfield(self.bitfield)[1]

    @property
    def base32(self) -> str:
        """Fit for a host name."""
        return base64.b32hexencode(bytes(self)).decode().rstrip("=").lower()


def split_link(text: str, dialects: Iterable[Dialect] = PRESETS.values()) -> tuple[Skylink, str]:
    """Read a link in any form that ``parseSkylink`` accepts; return (skylink, path).

    The forms: bare, ``<scheme>:``, ``<scheme>://``, and a portal URL that has the skylink as the
    first element of its path or below one of a portal's directories of content, (base32) as the
    first label of its host, or at its end. Query and fragment are dropped. The path begins with
    ``/`` or is empty, and is percent-encoded. ``skylink://`` is taken too; its path is encoded.
    """
    if len(text) > LINK_LIMIT:
        raise MalformedError("a link of that length is not a skylink")
    plain = split_plain_link(text, SKYLINK_SCHEME)
    if plain is not None:
        return Skylink(plain[0]), plain[1]
    rest = text
    for dialect in dialects:
        scheme = f"{dialect.scheme}:"
        if text[: len(scheme)].lower() == scheme.lower():
            rest = text[len(scheme) :].removeprefix("//")
            break
    host = ""
    if rest[:8].lower().startswith(("http://", "https://")):
        try:
            parts = urlsplit(rest)
            host, rest = parts.hostname or "", parts.path
        except ValueError:
            raise MalformedError(f"not a URL: {text[:80]!r}") from None
    else:
        rest = re.split(r"[?#]", rest, maxsplit=1)[0]
    match = _PATH.fullmatch(rest)
    if match is None and host and (below := _IN_URL.fullmatch(rest)):
        match = _PATH.fullmatch(below[1])
    if match is not None:
        return Skylink(match[1]), match[2].removesuffix("/")
    label = host.split(".", 1)[0]
    if _BASE32.fullmatch(label):
        return Skylink(label), rest.removesuffix("/")
    last = _LAST.search(rest) if host else None
    if last is not None:
        return Skylink(last[1]), ""
    raise MalformedError(f"not a skylink: {text[:80]!r}")


def split_plain_link(text: str, scheme: str) -> tuple[str, str] | None:
    """Return (root, path) of ``<scheme>://<root>/<path>``, the path percent-encoded; None for
    another link.
    """
    if text[: len(scheme) + 3].lower() != f"{scheme}://":
        return None
    root, slash, path = text[len(scheme) + 3 :].partition("/")
    return root, quote(slash + path, errors="surrogateescape").removesuffix("/")


def parse_skylink(text: str, dialects: Iterable[Dialect] = PRESETS.values()) -> Skylink:
    """Return the skylink of a link in any form of `split_link`."""
    return split_link(text, dialects)[0]
