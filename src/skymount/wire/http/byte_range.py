"""Byte ranges of HTTP: the Range and Content-Range headers (RFC 9110 14)."""

import re
from dataclasses import dataclass
from typing import Self

from skymount.errors import MalformedError

RANGES_LIMIT = 64  # the most ranges honoured in one request (RFC 9110 14.2)
_DIGITS = 19  # of a position; more cannot be an offset of a file
_MAX = (1 << 63) - 1  # bytes, the largest file offset
_SPEC = re.compile(r"([0-9]*)-([0-9]*)")
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19}|\*)")


@dataclass(frozen=True, slots=True)
class ByteRange:
    """The bytes from `start` up to, not including, `stop`; never empty, below 2^63."""

    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.stop <= _MAX:
            raise MalformedError(f"empty or impossible range {self.start}-{self.stop}")

    def __len__(self) -> int:
        return self.stop - self.start

    def header(self) -> str:
        return f"bytes={self.start}-{self.stop - 1}"

    def content_range(self, size: int) -> str:
        return f"bytes {self.start}-{self.stop - 1}/{size}"

    @classmethod
    def parse_content_range(cls, text: str) -> tuple[Self, int | None]:
        """Return (range, total size or None when unknown)."""
        match = _CONTENT_RANGE.fullmatch(text.strip())
        if match is None:
            raise MalformedError(f"bad Content-Range {text[:80]!r}")
        total = None if match[3] == "*" else int(match[3])
        found = cls(int(match[1]), int(match[2]) + 1)
        if total is not None and found.stop > total:
            raise MalformedError(f"Content-Range {text[:80]!r} ends beyond its size")
        return found, total


def parse_range(text: str, size: int) -> list[ByteRange] | None:
    """Return the satisfiable ranges of a Range header; an empty list means status 416.

    None when the header is to be ignored: another unit, too many ranges, or together more than the
    whole content (docs/wire.md 4.4). MalformedError (also 416) when it does not parse.
    """
    unit, equals, specs = text.partition("=")
    if not equals or unit.strip().lower() != "bytes":
        return None
    found: list[ByteRange] = []
    parts = specs.split(",", RANGES_LIMIT + 1)
    if len(parts) > RANGES_LIMIT:
        return None
    for part in filter(None, map(str.strip, parts)):
        match = _SPEC.fullmatch(part)
        if match is None or len(part) > 2 * _DIGITS + 1 or not (match[1] or match[2]):
            raise MalformedError(f"bad range {part[:80]!r}")
        if not match[1]:
            start, stop = max(0, size - int(match[2])), size
        else:
            start = int(match[1])
            stop = min(size, int(match[2]) + 1) if match[2] else size
            if match[2] and int(match[2]) < start:
                raise MalformedError(f"bad range {part[:80]!r}")
        if start < stop:
            found.append(ByteRange(start, stop))
    return found if sum(map(len, found)) <= size else None
