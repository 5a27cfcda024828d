"""What a download serves (docs/wire.md 4.2, 4.3, 4.5), its type and its name. No IO.

A type is found by Go's order: stored, by extension, by first bytes. Browsers are told that text is
UTF-8: without a charset they take it for windows-1252 (WHATWG Encoding). It is not part of a stored
type, as that would be another skylink.
"""

import codecs
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self
from urllib.parse import quote

from skymount.server.http.forms import (
    Params,
    boolean,
    check_timeout,
    decode_path,
    number,
)
from skymount.server.http_error import HttpError
from skymount.server.storage.skyfile_index import ParsedSkyfile
from skymount.wire import media_types
from skymount.wire.http.byte_range import ByteRange
from skymount.wire.metadata import (
    Metadata,
    Subfile,
    encode_metadata,
    fits_header,
    select,
    subpath_metadata,
)

ARCHIVE_TYPES = {
    "zip": "application/zip",
    "tar": "application/x-tar",
    "targz": "application/gzip",
}
_SUFFIXES = {"zip": ".zip", "tar": ".tar", "targz": ".tar.gz"}
_FORMATS = ("concat", *ARCHIVE_TYPES)


@dataclass(frozen=True, slots=True)
class DownloadQuery:
    """The parameters of a download."""

    archive: str  # the format parameter
    attachment: bool
    with_metadata: bool
    with_layout: bool
    range_header: str  # of start and end

    @classmethod
    def parse(cls, params: Params, *, has_range: bool) -> Self:
        archive = params.get("format", "").lower()
        if archive and archive not in _FORMATS:
            raise HttpError(
                400,
                "unable to parse 'format' parameter, allowed values are: 'concat', 'tar', 'targz'"
                " and 'zip'",
            )
        check_timeout(params)
        return cls(
            archive=archive,
            attachment=boolean(params, "attachment"),
            with_metadata=not boolean(params, "no-response-metadata"),
            with_layout=boolean(params, "include-layout"),
            range_header=_range_of(params, has_range=has_range),
        )


def _range_of(params: Params, *, has_range: bool) -> str:
    start, end = number(params, "start"), number(params, "end")
    if start is None and end is None:
        return ""
    if start is None or end is None:
        raise HttpError(400, "'start' and 'end' parameters must both be set or both be left out")
    if has_range:
        raise HttpError(400, "'start' and 'end' parameters cannot be used with a Range header")
    if start > end:
        raise HttpError(400, "'start' parameter must not be greater than 'end'")
    return ByteRange(start, end + 1).header()


@dataclass(frozen=True, slots=True)
class SelectedContent:
    """What is served."""

    name: str
    content_type: str  # as stored; empty when it has to be guessed, by this file name:
    guess_by: str
    extents: tuple[tuple[int, int], ...]  # (offset, length) in the payload, in the order served
    metadata_header: bytes | None
    archive: str = ""
    members: tuple[tuple[str, Subfile], ...] = ()
    status: int = 200

    @property
    def size(self) -> int:
        return sum(length for _, length in self.extents)


def path_with_plus(metadata: Metadata, raw: str) -> str:
    """Decode the path of a URL. ``+`` is a space only where nothing has the name with a plus, and
    something has the one with a space (docs/wire.md 4.1).
    """
    path = decode_path(raw)
    if select(metadata, path):
        return path
    spaced = decode_path(raw.replace("+", " "))
    return spaced if select(metadata, spaced) else path


def select_content(
    skyfile: ParsedSkyfile, path: str, archive: str, header_limit: int, *, may_redirect: bool
) -> SelectedContent | None:
    """Decide what a path, without a leading slash, serves in a format; None: the client is
    redirected to it with a slash at its end, where that may be.

    HttpError 404 or 400, unless the skyfile has an error page for that status.
    """
    try:
        return _select(skyfile, path, archive, header_limit, may_redirect=may_redirect)
    except HttpError as error:
        page = skyfile.metadata.errorpages.get(str(error.status), "").removeprefix("/")
        found = skyfile.metadata.subfiles.get(page)
        if found is None:
            raise
        return _file(_last(page), found, skyfile.header, status=error.status)


def _select(
    skyfile: ParsedSkyfile, path: str, archive: str, header_limit: int, *, may_redirect: bool
) -> SelectedContent | None:
    metadata = skyfile.metadata
    index = "" if archive else index_of(metadata, path)
    if index and may_redirect and _wants_slash(metadata, path, index):
        return None
    if index and not path:
        return _file(_last(metadata.filename), metadata.subfiles[index], skyfile.header)
    if not path:
        return _whole(skyfile, archive)
    selected = select(metadata, index or path)
    if not selected:
        raise HttpError(404, f"failed to download contents for path: /{path}")
    raw = encode_metadata(subpath_metadata(index or path, selected))
    header = raw if fits_header(raw, header_limit) else None
    return _selected(_last(index or path), selected, archive, header)


def index_of(metadata: Metadata, path: str) -> str:
    """Return the index file of a path; empty when there is none, or the path is a file itself."""
    if path in metadata.subfiles:
        return ""
    if not metadata.tryfiles:
        return "" if path else _default_path(metadata)
    directory = path.removesuffix("/") + "/" if path else ""
    for name in metadata.tryfiles:
        candidate = name[1:] if name.startswith("/") else directory + name
        if candidate in metadata.subfiles:
            return candidate
    return ""


def _default_path(metadata: Metadata) -> str:
    if metadata.defaultpath and not metadata.subfiles:
        raise HttpError(400, "defaultpath is not allowed on single files, please specify a format")
    if metadata.defaultpath and metadata.disabledefaultpath:
        raise HttpError(
            400,
            "invalid defaultpath state - both defaultpath and disabledefaultpath are set, please"
            " specify a format",
        )
    if metadata.disabledefaultpath:
        return ""
    if metadata.defaultpath:
        default = metadata.defaultpath.removeprefix("/")
        if default not in metadata.subfiles:
            raise HttpError(
                400,
                f"skyfile has invalid default path ({metadata.defaultpath}), please specify a"
                " format",
            )
        return default
    return "index.html" if "index.html" in metadata.subfiles else ""


def _wants_slash(metadata: Metadata, path: str, index: str) -> bool:
    """Whether the page's relative links only work with a slash at the end of the URL."""
    is_page = index.endswith((".html", ".htm"))
    is_inside = not path or index.startswith(f"{path}/")
    return is_page and is_inside and len(metadata.subfiles) > 1


def _whole(skyfile: ParsedSkyfile, archive: str) -> SelectedContent:
    metadata, size = skyfile.metadata, skyfile.stored.layout.filesize
    name = _last(metadata.filename)
    subfiles = metadata.subfiles or {metadata.filename: Subfile(mode=metadata.mode, len=size)}
    if archive == "concat" and len(subfiles) > 1:
        return SelectedContent(name, "", name, ((0, size),), skyfile.header)
    return _selected(name, subfiles, archive, skyfile.header)


def _selected(
    name: str, selected: Mapping[str, Subfile], archive: str, header: bytes | None
) -> SelectedContent:
    if len(selected) == 1 and archive not in ARCHIVE_TYPES:
        return _file(name, next(iter(selected.values())), header)
    ordered = sorted(selected.items(), key=lambda item: (item[1].offset, item[0]))
    if archive == "concat":
        extents = tuple((sub.offset, sub.len) for _, sub in ordered)
        return SelectedContent(name, "", name, extents, header)
    archive = archive or "zip"
    full_name, content_type = name + _SUFFIXES[archive], ARCHIVE_TYPES[archive]
    return SelectedContent(full_name, content_type, "", (), header, archive, tuple(ordered))


def _file(name: str, sub: Subfile, header: bytes | None, status: int = 200) -> SelectedContent:
    guess_by = sub.filename or name
    return SelectedContent(
        name, sub.contenttype, guess_by, ((sub.offset, sub.len),), header, status=status
    )


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


SNIFF_SIZE = 512  # bytes that `sniff` looks at

_SIGNATURES = (
    (b"%PDF-", "application/pdf"),
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"\x1f\x8b\x08", "application/x-gzip"),
    (b"PK\x03\x04", "application/zip"),
    (b"OggS\0", "application/ogg"),
    (b"\0asm", "application/wasm"),
)
_HTML = re.compile(
    rb"[\t\n\x0c\r ]*<(!doctype html|html|head|body|script|h1|div|p)[ >]", re.IGNORECASE
)
_XML = re.compile(rb"[\t\n\x0c\r ]*<\?xml")
_CONTROL_BYTES = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_AMBIGUOUS = re.compile(r'[^ -~]|["\\%]')


def stored_or_guessed(stored: str, name: str) -> str:
    """Return the stored type, else the one of the name's extension; empty when unknown."""
    stored = stored.strip()
    if stored and not _CONTROL.search(stored):
        return stored
    guessed = media_types.of_name(name)
    return f"{guessed}; charset=utf-8" if guessed.startswith("text/") else guessed


def sniff(start: bytes) -> str:
    """Guess the type from the first bytes of the content."""
    for signature, found in _SIGNATURES:
        if start.startswith(signature):
            return found
    if start[:4] == b"RIFF" and start[8:14] == b"WEBPVP":
        return "image/webp"
    if _HTML.match(start):
        return "text/html; charset=utf-8"
    if _XML.match(start):
        return "text/xml; charset=utf-8"
    return (
        "application/octet-stream" if _CONTROL_BYTES.search(start) else "text/plain; charset=utf-8"
    )


def disposition(name: str, *, attachment: bool) -> str:
    """Return the header's value. A name that programs read in different ways is given twice: beyond
    printable ASCII, or with a quote, a backslash or a percent sign (RFC 6266, appendix D).
    """
    kind = "attachment" if attachment else "inline"
    plain = _AMBIGUOUS.sub("_", name)
    value = f'{kind}; filename="{plain}"'
    if plain != name:
        value += f"; filename*=UTF-8''{quote(name, safe='')}"
    return value


UTF8 = "; charset=utf-8"
"""What is added to a type."""

START_SIZE = 16 << 10
"""Bytes of content that are looked at."""

_TEXT = re.compile(
    r"(text/.*|application/(x-)?(java|ecma)script|application/xml|.*/.*\+xml)", re.IGNORECASE
)
_JSON = re.compile(r".*[/+]json", re.IGNORECASE)  # always UTF-8, without a charset (RFC 8259 8.1)
_DECLARING = re.compile(r"(text/(html|xml|css)|application/xml|.*/.*\+xml)", re.IGNORECASE)
_HAS_CHARSET = re.compile(r";\s*charset\s*=", re.IGNORECASE)

_DECLARATION_SIZE = 1024  # where a declaration counts (HTML 13.2.3.2)
_COMMENT = re.compile(rb"<!--.*?(?:-->|\Z)", re.DOTALL)
_DECLARED = re.compile(
    rb"<meta\s[^>]*charset\s*=\s*[\"']?\s*([\w.:-]+)"
    rb"|^(?:\xef\xbb\xbf)?\s*<\?xml\s[^>]*encoding\s*=\s*[\"']([\w.:-]+)"
    rb'|^@charset "([^"]*)";',
    re.IGNORECASE,
)
_UTF8 = frozenset((b"utf-8", b"utf8", b"unicode-1-1-utf-8"))


def takes_charset(content_type: str) -> bool:
    """Whether a type is one of text, and names no charset."""
    essence, _, parameters = content_type.partition(";")
    essence = essence.strip()
    is_text = _TEXT.fullmatch(essence) is not None and _JSON.fullmatch(essence) is None
    return is_text and _HAS_CHARSET.search(f";{parameters}") is None


def may_declare(content_type: str) -> bool:
    """Whether content of this type may declare its encoding: HTML, XML, SVG and CSS."""
    return _DECLARING.fullmatch(content_type.partition(";")[0].strip()) is not None


def is_utf8(start: bytes, *, is_whole: bool, may_declare: bool) -> bool:
    """Whether content that begins so, or is this, is UTF-8 and declares nothing else.

    A charset of HTTP would outrank what the content declares.
    """
    head = _COMMENT.sub(b"", start[:_DECLARATION_SIZE]) if may_declare else b""
    declared = _DECLARED.search(head)
    if declared and next(filter(None, declared.groups()), b"").lower() not in _UTF8:
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start, final=is_whole)
    except UnicodeDecodeError:
        return False
    return True
