"""`open`: a file as Python's own `open` gives it."""

import io
from collections.abc import Callable
from typing import IO, Any, cast

from skymount.errors import MalformedError, WrongTypeError
from skymount.file_api.open_file import OpenFile
from skymount.file_api.os_errors import no_change

BUFFER = 8 << 10
"""Bytes that a small read takes at least; `OpenFile` has larger ones for a reader in order."""

_MODES = frozenset("rwxabt+")


def check_mode(mode: object, link: object) -> bool:
    """Return whether a mode is for text; ValueError for no mode, OSError for one that writes."""
    if not isinstance(mode, str):
        raise WrongTypeError(f"a mode must be a text (str), not {type(mode).__name__}")
    kinds = set(mode)
    if kinds - _MODES or len(kinds) < len(mode) or len(kinds & set("rwxa")) != 1:
        raise MalformedError(f"invalid mode: {mode[:20]!r}")
    if {"b", "t"} <= kinds:
        raise MalformedError("can't have text and binary mode at once")
    if kinds & set("wxa+"):
        raise no_change(link)
    return "b" not in kinds


class RawFile(io.RawIOBase):
    """Reads without a buffer."""

    mode = "rb"

    def __init__(self, file: OpenFile) -> None:
        super().__init__()
        self._file = file
        self._position = 0
        self.name = str(file.entry.location)

    def readable(self) -> bool:
        self._check_open()
        return True

    def seekable(self) -> bool:
        self._check_open()
        return True

    def tell(self) -> int:
        self._check_open()
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._check_open()
        bases = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.size}
        if whence not in bases:
            raise MalformedError(f"invalid whence ({whence}, should be 0, 1 or 2)")
        position = bases[whence] + offset
        if position < 0:
            raise MalformedError(f"negative seek position {position}")
        self._position = position
        return position

    def readinto(self, buffer: object) -> int:
        self._check_open()
        into = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        count = self._file.read_into(self._position, into)
        self._position += count
        return count

    def readall(self) -> bytes:
        self._check_open()
        found = self._file.read(self._position, self._file.size)
        self._position += len(found)
        return bytes(found)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._file.close()

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError(f"{self.name}: I/O operation on closed file")


def opened(
    make: Callable[[], OpenFile],
    link: object,
    mode: str,
    buffering: int,
    encoding: str | None,
    errors: str | None,
    newline: str | None,
) -> IO[Any]:
    """Open a file; the arguments are those of Python's `open`."""
    is_text = check_mode(mode, link)
    for value, name in ((encoding, "encoding"), (errors, "errors"), (newline, "newline")):
        if value is not None and not is_text:
            raise MalformedError(f"binary mode doesn't take an {name} argument")
    if is_text and buffering == 0:
        raise MalformedError("can't have unbuffered text I/O")
    raw: Any = RawFile(make())
    if buffering == 0:
        return cast("IO[bytes]", raw)
    buffered = io.BufferedReader(raw, buffering if buffering > 1 else BUFFER)
    if not is_text:
        return buffered
    is_lines = buffering == 1
    text: Any = io.TextIOWrapper(buffered, encoding, errors, newline, line_buffering=is_lines)
    text.mode = mode
    return cast("IO[str]", text)
