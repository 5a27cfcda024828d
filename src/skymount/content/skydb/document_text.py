"""The text in which a mount shows a SkyDB document, made from what is uploaded, and the reverse."""

import json

import msgspec

from skymount.errors import MalformedError
from skymount.wire.skydb_document import decode_document, encode_document
from skymount.wire.skylink import SECTOR_SIZE
from skymount.wording import readable_size

TEXT_LIMIT = SECTOR_SIZE - 4096
"""Bytes of a document, as it is shown and as it is stored: with its metadata it is one base sector,
which a portal can prove.
"""

_INDENTED_LIMIT = 1 << 20
_INDENTED_FACTOR = 16
"""An indented text may have so many bytes, or so many times the bytes of the upload. Beyond that
it is little else than indentation, and is shown on one line.
"""


def as_text(body: bytes, limit: int = TEXT_LIMIT) -> bytes:
    """Return the text of a document from its upload; MalformedError if it has none of at most
    `limit` bytes.
    """
    document = decode_document(body)
    try:
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
        most = min(limit, max(_INDENTED_LIMIT, _INDENTED_FACTOR * len(body)))
        if _indented_size(document, len(text)) < most:
            text = _indented(document, text)
    except RecursionError as error:
        raise MalformedError(f"too deep to be shown: {error}") from None
    encoded = text.encode(errors="backslashreplace") + b"\n"
    if len(encoded) > limit:
        raise MalformedError(f"too long to be shown: more than {readable_size(limit)}")
    return encoded


def _indented(document: object, text: str) -> str:
    try:
        return msgspec.json.format(text, indent=2)
    except (msgspec.DecodeError, UnicodeEncodeError):  # half a surrogate pair, or Infinity
        return json.dumps(document, ensure_ascii=False, indent=2)


def _indented_size(document: object, size: int) -> int:
    """Return the length of the indented text of a document whose text on one line has `size`."""
    depth, level = 0, [document] if document else []
    while level:
        depth += 1
        below: list[object] = []
        for container in level:
            if isinstance(container, dict):
                size += len(container)  # a space after each colon
                values = list(container.values())
            else:
                assert isinstance(container, list)
                values = container
            size += len(values) * (1 + 2 * depth) + 2 * depth - 1
            below += [value for value in values if value and isinstance(value, dict | list)]
        level = below
    return size


def as_upload(text: bytes | bytearray) -> bytes:
    """Return the upload for a text; MalformedError unless it is an object or an array."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"not JSON: {error}") from None
    if not isinstance(document, dict | list):
        raise MalformedError("a document must be an object or an array")
    encoded = encode_document(document)
    if len(encoded) > TEXT_LIMIT:
        raise MalformedError(f"too long to be stored: more than {readable_size(TEXT_LIMIT)}")
    return encoded


def written(text: bytes | bytearray) -> tuple[bytes, bytes]:
    """Return the upload for a text, and the text that it is shown as."""
    body = as_upload(text)
    return body, as_text(body)
