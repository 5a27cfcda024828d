"""How content that exists is uploaded again so that it gets the same skylink: the parameters of the
request and its body, made from its metadata. No IO; also the program of a worker process.
"""

import json
import re
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from skymount.content.worker.worker_main import run
from skymount.errors import BadContentError, MalformedError
from skymount.wire.http.multipart import PartHeader
from skymount.wire.metadata import Metadata, Subfile, check_path, encode_metadata, parse_metadata

PLANNING = "skymount.content.replication.upload_plan"
"""The program that `plan_upload` is in a worker process: its arguments, then its result."""

_QUERY_LIMIT = 8 << 10  # bytes of parameters, which are in the request line
_READ_SIZE = 64 << 10  # bytes of a plan that are read at a time
_HEADER = struct.Struct("<IQ")
"""Of a plan: bytes of its parameters, bytes of the request's body."""
_PART = struct.Struct("<IQ")
"""Of a part: bytes of text, then bytes of the payload that follow it in the body."""

_UNSAFE = re.compile(r"[\x00-\x1f\x7f]")  # a header cannot hold it
_FIELD, _FIELD_OF_SEVERAL = "file", "files[]"  # names of multipart fields (contract)


@dataclass(frozen=True, slots=True)
class UploadPlan:
    """A plan that `plan_upload` made. It is read as the body is sent."""

    query: tuple[tuple[str, str], ...]
    media_type: str
    size: int
    """Bytes of the body."""
    _get: Callable[[int, int], bytes]
    _start: int
    _end: int

    @classmethod
    def read(cls, get: Callable[[int, int], bytes], size: int) -> "UploadPlan":
        """Read a plan of `size` bytes, which `get` returns by offset and number."""
        length, body_size = _HEADER.unpack(get(0, _HEADER.size)) if size > _HEADER.size else (0, 0)
        start = _HEADER.size + length
        if not _HEADER.size < start <= size:
            raise BadContentError("the plan of an upload is cut off")
        found = json.loads(get(_HEADER.size, length))
        query = tuple((name, value) for name, value in found["query"])
        return cls(query, found["type"], body_size, get, start, size)

    def parts(self) -> Iterator[tuple[bytes, int]]:
        """Yield texts, and how many bytes of the payload follow each."""
        at, held, begin = self._start, b"", 0
        while begin < len(held) or at < self._end:
            stop = begin + _PART.size
            length = count = 0
            if stop <= len(held):
                length, count = _PART.unpack_from(held, begin)
                stop += length
            if stop <= len(held):
                yield held[stop - length : stop], count
                begin = stop
                continue
            more = self._get(at, max(_READ_SIZE, stop - len(held)))
            if not more:
                raise BadContentError("the plan of an upload is cut off")
            at, held, begin = at + len(more), held[begin:] + more, 0


def plan_upload(raw: bytes, size: int, boundary: str) -> Iterator[bytes]:
    """Yield the plan of an upload of `size` bytes that a portal stores with these very metadata.

    MalformedError, with the reason, if there is none.
    """
    metadata = parse_metadata(raw)
    _check(metadata, raw, size)
    files = _in_order(metadata, size)
    media_type = f"multipart/form-data; boundary={boundary}" if files else _RAW_TYPE
    parts = list(_form(files, boundary)) if files else [(b"", size)]
    told = json.dumps({"query": _query(metadata), "type": media_type}).encode()
    if len(told) > _QUERY_LIMIT:
        raise MalformedError("its name, or what a browser is shown of it, is too long")
    yield _HEADER.pack(len(told), sum(len(text) + count for text, count in parts)) + told
    for text, count in parts:
        yield _PART.pack(len(text), count) + text


_RAW_TYPE = "application/octet-stream"  # of a body that is the file itself


def _check(metadata: Metadata, raw: bytes, size: int) -> None:
    try:
        is_current = encode_metadata(metadata) == raw
    except UnicodeEncodeError:
        is_current = False
    if not is_current or not metadata.filename:
        raise MalformedError("its metadata are not as portals write them now")
    if metadata.length != size:
        raise MalformedError(f"its metadata are of {metadata.length} bytes, and it has {size}")
    if metadata.tryfiles and (metadata.defaultpath or metadata.disabledefaultpath):
        raise MalformedError("its metadata contradict themselves")


def _in_order(metadata: Metadata, size: int) -> list[Subfile]:
    """Return the files in the order of the payload; MalformedError unless they make it up."""
    files = sorted(metadata.subfiles.values(), key=lambda file: (file.offset, file.len))
    end = 0
    for file in files:
        check_path(file.filename)
        if file.offset != end:
            raise MalformedError("its files overlap, or leave gaps")
        if _UNSAFE.search(file.contenttype) or file.contenttype != file.contenttype.strip():
            raise MalformedError(f"no header can hold the content type of {file.filename!r}")
        end += file.len
    if files and end != size:
        raise MalformedError("its files are not all of the content")
    if any(path != file.filename for path, file in metadata.subfiles.items()):
        raise MalformedError("a file has two names")
    return files


def _query(metadata: Metadata) -> list[tuple[str, str]]:
    """Return the parameters of the upload (docs/wire.md 3.2)."""
    found = [("filename", metadata.filename)]
    if metadata.mode:
        found.append(("mode", f"{metadata.mode:o}"))
    if metadata.defaultpath:
        found.append(("defaultpath", metadata.defaultpath))
    if metadata.disabledefaultpath:
        found.append(("disabledefaultpath", "true"))
    if metadata.subfiles and not (metadata.defaultpath or metadata.disabledefaultpath):
        found.append(("tryfiles", json.dumps(metadata.tryfiles)))  # without it there is a default
    if metadata.errorpages:
        found.append(("errorpages", json.dumps(metadata.errorpages)))
    return found


def _form(files: list[Subfile], boundary: str) -> Iterator[tuple[bytes, int]]:
    """Yield the headers of the form's parts with the bytes of each file, and the form's end."""
    field = _FIELD if len(files) == 1 else _FIELD_OF_SEVERAL
    lead = f"--{boundary}\r\n".encode()
    for file in files:
        header = PartHeader(field, file.filename, file.contenttype, file.mode)
        yield lead + header.encode() + b"\r\n", file.len
        lead = f"\r\n--{boundary}\r\n".encode()
    yield f"\r\n--{boundary}--\r\n".encode(), 0


def main() -> int:
    """Read metadata from stdin, write the plan to stdout; arguments are those of `plan_upload`."""
    size, boundary = int(sys.argv[1]), sys.argv[2]

    def work(read: Callable[[], bytes | memoryview]) -> Iterable[bytes]:
        return plan_upload(bytes(read()), size, boundary)

    return run(work, "planning the upload")


if __name__ == "__main__":
    sys.exit(main())
