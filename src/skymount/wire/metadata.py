"""The metadata JSON of a skyfile: read leniently, written as the exact bytes that portals store.

Rules: docs/wire.md 2.5, 3.3, 4.5, 5.
"""

import json
import re
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from skymount.errors import MalformedError
from skymount.wording import readable_size

METADATA_LIMIT = 256 << 20  # bytes of metadata JSON; a million subfiles take about 120 MB
SUBFILES_LIMIT = 2 << 20  # subfiles in metadata; each takes about 300 bytes of memory once parsed
INTEGER_LIMIT = 1 << 63  # offsets and lengths are below this, as the kernel's file offsets are
_LENIENT_LIMIT = 128 << 20  # bytes of JSON that is read without type information
_LENIENT_LISTS = 1 << 20  # lists in it; in memory each is ten times as large as its JSON
_MODE_BITS = 0o7777
_UNSOUND = "offset or length out of range"
_DIGITS = 40  # of an integer; Python refuses to parse thousands of them


class Subfile(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One file inside a skyfile. `offset` and `len` in bytes of the concatenated payload."""

    mode: int = 0
    filename: str = ""
    contenttype: str = ""
    offset: int = 0
    len: int = 0


class Metadata(msgspec.Struct, frozen=True, gc=False):
    """A skyfile's metadata. `mode` holds Unix permission bits, 0 when there are none.

    `length` is None in uploads before July 2020. `subfiles` maps paths as sent to records.
    """

    filename: str = ""
    length: int | None = None
    mode: int = 0
    subfiles: dict[str, Subfile] = {}
    defaultpath: str = ""
    disabledefaultpath: bool = False
    tryfiles: tuple[str, ...] = ()
    errorpages: dict[str, str] = {}
    rejected: tuple[tuple[str, str], ...] = ()  # (path, reason) of each broken subfile

    @property
    def payload_size(self) -> int | None:
        """Bytes of content: `length`, else the end of the last subfile, else None."""
        if self.subfiles and not self.length:  # legacy JSON has subfiles without a length
            return max(sub.offset + sub.len for sub in self.subfiles.values())
        return self.length


class _Strict(msgspec.Struct, gc=False):
    """The form of nearly all metadata, decoded in one pass."""

    filename: str = ""
    length: int | None = None
    mode: int = 0
    subfiles: dict[str, Subfile] | None = None
    defaultpath: str = ""
    disabledefaultpath: bool = False
    tryfiles: tuple[str, ...] | None = None
    errorpages: dict[str, str] | None = None


class Outline(NamedTuple):
    """The part of metadata that a listing needs."""

    filename: str
    length: int | None
    mode: int
    files: Iterator[tuple[str, Subfile | str]]  # path and record, or why it is broken; read once


class _Outline(msgspec.Struct, gc=False):
    """Records are decoded later one by one, which takes a fifth of the memory."""

    filename: str = ""
    length: int | None = None
    mode: int = 0
    subfiles: dict[str, msgspec.Raw] | None = None


class _SubfileRecord(msgspec.Struct, gc=False):
    mode: int = 0
    contenttype: str = ""
    offset: int = 0
    len: int = 0


_decode_strict = msgspec.json.Decoder(_Strict).decode
_decode_outline = msgspec.json.Decoder(_Outline).decode
_decode_record = msgspec.json.Decoder(_SubfileRecord).decode
_REFUSED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_COUNT_STEP = 1 << 20  # bytes that are copied at a time to count in them


def parse_metadata(raw: bytes) -> Metadata:
    """Read metadata JSON; MalformedError when it is not a JSON object or is over the limit.

    Members of a wrong type count as absent; subfiles of a wrong type are rejected.
    """
    _check_size(raw)
    try:
        strict = _decode_strict(raw)
    except _REFUSED:
        return _parse_leniently(raw)
    subfiles = strict.subfiles or {}
    rejected: tuple[tuple[str, str], ...] = ()
    if not all(map(_is_sound, subfiles.values())):
        rejected = tuple((path, _UNSOUND) for path, sub in subfiles.items() if not _is_sound(sub))
        subfiles = {path: sub for path, sub in subfiles.items() if _is_sound(sub)}
    if any(sub.mode & ~_MODE_BITS for sub in subfiles.values()):
        subfiles = {
            path: msgspec.structs.replace(sub, mode=_mode(sub.mode))
            for path, sub in subfiles.items()
        }
    return Metadata(
        filename=strict.filename,
        length=_size_or_none(strict.length),
        mode=_mode(strict.mode),
        subfiles=subfiles,
        defaultpath=strict.defaultpath,
        disabledefaultpath=strict.disabledefaultpath,
        tryfiles=strict.tryfiles or (),
        errorpages=strict.errorpages or {},
        rejected=rejected,
    )


def outline_metadata(raw: bytes | memoryview) -> Outline:
    """Read the same for a listing, in less memory, because `raw` may be 256 MiB long."""
    _check_size(raw)
    try:
        found = _decode_outline(raw)
    except _REFUSED:
        metadata = _parse_leniently(bytes(raw))
        files: Iterator[tuple[str, Subfile | str]]
        files = chain(metadata.rejected, metadata.subfiles.items())
        return Outline(metadata.filename, metadata.length, metadata.mode, files)
    length, mode = _size_or_none(found.length), _mode(found.mode)
    return Outline(found.filename, length, mode, _records(found.subfiles or {}))


def _records(found: dict[str, msgspec.Raw]) -> Iterator[tuple[str, Subfile | str]]:
    """Decode records one by one, and free each."""
    paths = list(found)
    paths.reverse()
    while paths:
        path = paths.pop()
        raw = found.pop(path)
        try:
            record = _decode_record(raw)
        except _REFUSED:
            yield path, _lenient_subfile(_load_leniently(bytes(raw)))
            continue
        mode = _mode(record.mode)
        sub = Subfile(mode, "", record.contenttype, record.offset, record.len)
        yield path, sub if _is_sound(sub) else _UNSOUND


def _check_size(raw: bytes | memoryview) -> None:
    if len(raw) > METADATA_LIMIT:
        raise MalformedError(f"metadata is over the limit of {readable_size(METADATA_LIMIT)}")
    # one brace for each record and two around them; few names contain braces
    if _count(raw, b"{") > SUBFILES_LIMIT + 2:
        raise MalformedError(f"metadata has more than {SUBFILES_LIMIT} records")


def _count(raw: bytes | memoryview, byte: bytes) -> int:
    if isinstance(raw, bytes):
        return raw.count(byte)
    return sum(
        bytes(raw[at : at + _COUNT_STEP]).count(byte) for at in range(0, len(raw), _COUNT_STEP)
    )


def _is_sound(sub: Subfile) -> bool:
    return sub.offset >= 0 and sub.len >= 0 and sub.offset + sub.len < INTEGER_LIMIT


def _parse_leniently(raw: bytes) -> Metadata:
    found = _load_leniently(raw)
    if not isinstance(found, dict):
        raise MalformedError("metadata is not a JSON object")
    subfiles: dict[str, Subfile] = {}
    rejected: list[tuple[str, str]] = []
    listed = found.get("subfiles")
    for path, record in listed.items() if isinstance(listed, dict) else ():
        sub = _lenient_subfile(record)
        if isinstance(sub, Subfile):
            subfiles[path] = sub
        else:
            rejected.append((path, sub))
    if listed is not None and not isinstance(listed, dict):
        rejected.append(("", "subfiles is not a JSON object"))
    tryfiles, errorpages = found.get("tryfiles"), found.get("errorpages")
    return Metadata(
        filename=_text(found.get("filename")),
        length=_size_or_none(found.get("length")),
        mode=_mode(found.get("mode")),
        subfiles=subfiles,
        defaultpath=_text(found.get("defaultpath")),
        disabledefaultpath=found.get("disabledefaultpath") is True,
        tryfiles=tuple(path for path in tryfiles if isinstance(path, str))
        if isinstance(tryfiles, list)
        else (),
        errorpages={code: path for code, path in errorpages.items() if isinstance(path, str)}
        if isinstance(errorpages, dict)
        else {},
        rejected=tuple(rejected),
    )


def _load_leniently(raw: bytes) -> Any:
    if len(raw) > _LENIENT_LIMIT or raw.count(b"[") > _LENIENT_LISTS:
        raise MalformedError("metadata is malformed, and too large to be read leniently")
    try:
        return json.loads(raw.decode("utf-8", "surrogateescape"), parse_int=_integer)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"metadata is not JSON: {error}") from None


def _integer(digits: str) -> int | None:
    return int(digits) if len(digits) <= _DIGITS else None


def _lenient_subfile(record: Any) -> Subfile | str:
    """Return the record, or why it is broken."""
    if not isinstance(record, dict):
        return "its record is not a JSON object"
    offset, length = record.get("offset", 0), record.get("len", 0)
    if type(offset) is not int or type(length) is not int:
        return "offset or length is not an integer"
    sub = Subfile(
        mode=_mode(record.get("mode")),
        filename=_text(record.get("filename")),
        contenttype=_text(record.get("contenttype")),
        offset=offset,
        len=length,
    )
    return sub if _is_sound(sub) else _UNSOUND


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _mode(value: Any) -> int:
    return value & _MODE_BITS if type(value) is int and 0 < value < INTEGER_LIMIT else 0


def _size_or_none(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < INTEGER_LIMIT else None


class _Stored(msgspec.Struct, omit_defaults=True):
    """Metadata as portals store it: members in this order, empty ones left out."""

    filename: str
    length: int
    mode: int = 0
    subfiles: dict[str, Subfile] = {}
    defaultpath: str = ""
    disabledefaultpath: bool = False
    tryfiles: tuple[str, ...] = ()
    errorpages: dict[str, str] = {}


_encode = msgspec.json.Encoder(order="deterministic").encode

# What Go's encoding/json writes in another way (docs/wire.md 2.5). An escaped backslash is matched
# to skip it.
_GO_ESCAPED = re.compile(r"\\[\\bf]|[&<>\u2028\u2029]")
_GO_ESCAPES = {"\\b": "\\u0008", "\\f": "\\u000c", "\\\\": "\\\\"}


def _go_escape(match: re.Match[str]) -> str:
    return _GO_ESCAPES.get(match[0]) or f"\\u{ord(match[0]):04x}"


def encode_metadata(metadata: Metadata) -> bytes:
    """Write the exact bytes that a portal stores: fixed order, empty members left out.

    `filename` and `length` are always written, `rejected` never. UnicodeEncodeError for text that
    is not valid Unicode.
    """
    stored = _Stored(
        metadata.filename,
        metadata.length or 0,
        metadata.mode,
        metadata.subfiles,
        metadata.defaultpath,
        metadata.disabledefaultpath,
        metadata.tryfiles,
        metadata.errorpages,
    )
    return _GO_ESCAPED.sub(_go_escape, _encode(stored).decode()).encode()


def check_path(path: str) -> None:
    """MalformedError unless `path` may name a file of an upload (docs/wire.md 3.3)."""
    if not path:
        raise MalformedError("path cannot be empty")
    try:
        path.encode()
    except UnicodeEncodeError:
        raise MalformedError("path is not valid UTF-8") from None
    if path.startswith("/"):
        raise MalformedError("path cannot begin with /")
    for element in path.split("/"):
        if element in ("", ".", ".."):
            raise MalformedError("path cannot have an empty, '.' or '..' element")


def select(metadata: Metadata, path: str) -> dict[str, Subfile]:
    """Return the subfiles at or below `path`; an exact name wins (docs/wire.md 4.3)."""
    if not path:
        return metadata.subfiles
    if path in metadata.subfiles:
        return {path: metadata.subfiles[path]}
    below = path.removesuffix("/") + "/"
    return {name: sub for name, sub in metadata.subfiles.items() if name.startswith(below)}


def is_single(metadata: Metadata) -> bool:
    """Whether a skyfile is one file, rather than a directory that may hold one."""
    subfiles = metadata.subfiles
    return not subfiles or (len(subfiles) == 1 and metadata.filename in subfiles)


def subpath_metadata(path: str, selected: Mapping[str, Subfile]) -> Metadata:
    """Return the metadata of a download of `path` (docs/wire.md 4.5); `selected` is not empty."""
    base = min(sub.offset for sub in selected.values())
    return Metadata(
        filename=f"/{path.strip('/')}",
        length=sum(sub.len for sub in selected.values()),
        subfiles={
            name: msgspec.structs.replace(sub, offset=sub.offset - base)
            for name, sub in selected.items()
        },
    )


_ILLEGAL_IN_HEADER = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


def fits_header(raw: bytes, limit: int) -> bool:
    """Whether metadata can be sent as an HTTP header value of at most `limit` bytes."""
    return len(raw) <= limit and not _ILLEGAL_IN_HEADER.search(raw)
