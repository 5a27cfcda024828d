"""Content-Type, by Go's order: stored, by extension, by first bytes; whether text is UTF-8, so that
a browser can be told; and Content-Disposition. No IO.

Without a charset a browser takes text for windows-1252 (WHATWG Encoding). It is not part of a
stored type, as that would be another skylink.
"""

import codecs
import re
from urllib.parse import quote

from skymount.wire import media_types

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
