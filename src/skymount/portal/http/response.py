"""Owns the form of a portal's answer: headers, body, the error that a status stands for, and how
long to wait before asking again. Knows nothing of connections.
"""

import random
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from skymount.errors import (
    AccessDeniedError,
    NotFoundError,
    PortalError,
    RequestRefusedError,
    UnavailableError,
)

_STATUS_ERRORS: Mapping[int, type[PortalError]] = {
    401: AccessDeniedError,
    402: AccessDeniedError,
    403: AccessDeniedError,
    404: NotFoundError,
    410: NotFoundError,
    408: UnavailableError,
    429: UnavailableError,
    451: AccessDeniedError,
}

PASSING = frozenset({429, 502, 503, 504})
"""Statuses that may be another one a moment later (wire notes 9: a timed-out handler is a 503)."""

BACKOFF = 0.2
"""Seconds of pause before the first repetition at most, doubled for each further one."""

LONGEST_BACKOFF = 5.0
"""Seconds of such a pause at most."""

LONGEST_WAIT = 60.0
"""Seconds that a portal may tell us to wait; asked for more, we give up at once."""

_SECONDS = re.compile(r"\d{1,9}")
_DATE_LIMIT = 64  # characters; an HTTP date has 29
_TOTAL = re.compile(r"\d{1,19}")


class Headers(Mapping[str, str]):
    """The headers of an answer by their names in any case; the repr shows no values."""

    __slots__ = ("_found",)

    def __init__(self, raw: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self._found: dict[str, list[bytes]] = {}
        for name, value in raw:
            self._found.setdefault(name.decode("latin-1").lower(), []).append(value)

    def __getitem__(self, name: str) -> str:
        """Return a header as text, several of one name joined: UTF-8, or else latin-1."""
        value = b", ".join(self._found[name.lower()])
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.decode("latin-1")

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._found

    def __repr__(self) -> str:
        return f"Headers({', '.join(self._found)})"

    def raw(self, name: str) -> bytes | None:
        """Return the bytes of the first header of that name as they came, None without one."""
        values = self._found.get(name.lower())
        return values[0] if values else None

    @property
    def length(self) -> int | None:
        """The Content-Length in bytes, None without a good one."""
        text = self.get("content-length", "")
        return int(text) if _TOTAL.fullmatch(text) else None


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer of success."""

    status: int
    headers: Headers
    body: bytes = field(repr=False)


def error_for(status: int) -> type[PortalError]:
    """Return the error that a status other than success stands for."""
    known = _STATUS_ERRORS.get(status)
    if known is not None:
        return known
    return RequestRefusedError if 400 <= status < 500 else UnavailableError


def parse_retry_after(text: str, now: datetime) -> float | None:
    """Return the seconds that a Retry-After header asks to wait, None when it is not one."""
    text = text.strip()
    if _SECONDS.fullmatch(text):
        return float(text)
    try:
        date = parsedate_to_datetime(text[:_DATE_LIMIT])
        if date.tzinfo is None:
            date = date.replace(tzinfo=UTC)
        return max(0.0, (date - now).total_seconds())
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def pause_before(repetition: int, retry_after: float | None = None) -> float | None:
    """Return the seconds to wait before the n-th repetition, counted from 1; None: give up.

    Full jitter, so that clients that failed together do not come back together; never less than
    the portal asks for.
    """
    if retry_after is not None and retry_after > LONGEST_WAIT:
        return None
    backoff = random.uniform(0, min(LONGEST_BACKOFF, BACKOFF * 2 ** (repetition - 1)))
    return max(backoff, retry_after or 0.0)
