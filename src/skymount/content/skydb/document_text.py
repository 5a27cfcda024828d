"""Owns the text in which a mount shows a document of SkyDB, and takes one: out of what is uploaded
and into it. Pure, but for `main`, with which it is a program of its own.
"""

import json
import struct
import sys
from collections.abc import Callable
from io import StringIO

from skymount.content.worker.worker_main import DOCUMENT_MEMORY, run
from skymount.errors import BadContentError, MalformedError
from skymount.wire.skydb_document import DOCUMENT_LIMIT, decode_document, encode_document

READING, WRITING = "read", "write"
"""What the program does."""

_INDENTED = 1 << 20
_INDENTED_TIMES = 16
"""Over several lines a text may be so many bytes long, or so many times as long as what was
uploaded: beyond, it is little else than its indentation.
"""

_LENGTH = struct.Struct("<Q")


def as_text(body: bytes) -> bytes:
    """Return the text of a document from the upload that holds it; MalformedError if it is none."""
    document = decode_document(body)
    limit = min(DOCUMENT_LIMIT, max(_INDENTED, _INDENTED_TIMES * len(body)))
    try:
        text = _over_lines(document, limit).encode(errors="backslashreplace")
    except RecursionError as error:
        raise MalformedError(f"too deep to be shown: {error}") from None
    if len(text) > DOCUMENT_LIMIT:
        raise MalformedError(f"too long to be shown: {len(text)} > {DOCUMENT_LIMIT} bytes")
    return text


def _over_lines(document: object, limit: int) -> str:
    """Write a document over several lines, or on one if that would be longer than a limit."""
    text, length = StringIO(), 0
    for piece in json.JSONEncoder(ensure_ascii=False, indent=2).iterencode(document):
        length += text.write(piece)
        if length >= limit:
            return json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n"
    return text.getvalue() + "\n"


def as_upload(text: bytes | bytearray) -> bytes:
    """Return what is uploaded for a document; MalformedError when the text is not JSON.

    An object or an array: the SDKs take nothing else for a document.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"not JSON: {error}") from None
    if not isinstance(document, dict | list):
        raise MalformedError("a document must be an object or an array")
    return encode_document(document)


def written(text: bytes | bytearray) -> bytes:
    """Return what `split` takes apart: what is uploaded for a text, and how that is shown."""
    body = as_upload(text)
    return b"".join((_LENGTH.pack(len(body)), body, as_text(body)))


def split(get: Callable[[int, int], bytes], size: int) -> tuple[bytes, bytes]:
    """Return both out of so many bytes; `get` returns them by offset and number.

    BadContentError when they are not whole.
    """
    start = _LENGTH.size
    stop = start + (_LENGTH.unpack(get(0, start))[0] if size >= start else 0)
    if not start < stop <= size:
        raise BadContentError("what was written of the document is cut off")
    return get(start, stop - start), get(stop, size - stop)


def main() -> int:
    """Read from stdin, write to stdout; the argument is what to do."""
    work = as_text if sys.argv[1] == READING else written
    return run(lambda read: [work(bytes(read()))], "reading the document", DOCUMENT_MEMORY)


if __name__ == "__main__":
    sys.exit(main())
