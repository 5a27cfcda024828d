"""Content-Type, by Go's order: stored, by extension, by first bytes; and Content-Disposition."""

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
