"""Owns the bound on the lines of an answer's head. h11 has one on its bytes only, and takes a
second for each half megabyte of tiny lines, in which nothing else runs.
"""

from typing import Any

import h11
from h11._receivebuffer import ReceiveBuffer

LINES_LIMIT = 1000
"""Header lines of an answer; deployed portals send some thirty. A line may be as long as it likes,
up to the bound on all of them.
"""

_extract = ReceiveBuffer.maybe_extract_lines


def _extract_few(self: Any) -> Any:
    """Take the lines up to the blank one, unless there are too many, whether it came or not."""
    lines = _count(self._data)
    if lines > LINES_LIMIT:
        raise h11.RemoteProtocolError(f"more than {LINES_LIMIT} header lines")
    return _extract(self)


def _count(data: bytearray) -> int:
    """Count line feeds up to the blank line, and not far beyond the limit."""
    found, at = 0, 0
    while found <= LINES_LIMIT:
        at = data.find(b"\n", at) + 1
        if not at:
            break
        found += 1
        if data[at : at + 2].startswith((b"\n", b"\r\n")):
            break
    return found


def bound_lines() -> None:
    """Make every h11 connection of this process refuse a head of too many lines.

    There is no option for it, so a method of h11's own buffer is replaced.
    """
    ReceiveBuffer.maybe_extract_lines = _extract_few  # type: ignore[method-assign]
