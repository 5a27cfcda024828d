"""Owns how long an exchange may take: until the head of the answer is there, and how slowly a body
may drip.
"""

import math
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Self

import httpx
import trio

from skymount.portal.options import PortalOptions

Content = bytes | AsyncIterable[bytes]
"""A request's body. To be sent again after a redirect it must begin anew at each iteration."""

_SLOWEST = 8 << 10  # bytes a second; a portal that drips more slowly counts as silent


class Pace:
    """Tells a body that comes from one that drips, which is not waited for longer than silence."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._waited, self._arrived = 0.0, 0

    def note(self, waited: float, arrived: int) -> str:
        """Take in how long something was waited for; return what is wrong, if anything is."""
        self._waited += waited
        self._arrived += arrived
        if not arrived or self._waited <= self._limit:
            return ""
        if self._arrived < _SLOWEST * self._waited:
            return f"only {self._arrived} bytes in {self._waited:.0f} s"
        self._waited, self._arrived = 0.0, 0
        return ""


@contextmanager
def until_the_head(options: PortalOptions, content: Content | None) -> Iterator[Content | None]:
    """Bound the time until the headers are there, however slowly they drip in.

    Yields the content to send: what is not in memory takes as long as it takes, and the time begins
    when it is sent.
    """
    limit = options.connect_timeout + 2 * options.idle_timeout
    uploading = content is not None and not isinstance(content, bytes)
    try:
        with trio.fail_after(math.inf if uploading else limit) as scope:
            if content is None or isinstance(content, bytes):
                yield content
            else:
                kind = _Once if isinstance(content, AsyncIterator) else _Timed
                yield kind(content, scope, limit)
    except trio.TooSlowError:
        raise httpx.ReadTimeout(f"no headers in {limit:g} s") from None


class _Timed:
    """A body that starts the time of a scope when it is sent, and stops it when sent again."""

    def __init__(
        self, content: AsyncIterable[bytes], scope: trio.CancelScope, limit: float
    ) -> None:
        self._content = content
        self._scope = scope
        self._limit = limit

    def __aiter__(self) -> AsyncIterator[bytes]:
        return _Once(aiter(self._content), self._scope, self._limit)


class _Once(_Timed):
    """The same of a body that can be read only once. No generator: httpx does not close one."""

    _content: AsyncIterator[bytes]

    def __aiter__(self) -> Self:
        self._scope.deadline = math.inf
        return self

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._content)
        except StopAsyncIteration:
            self._scope.deadline = trio.current_time() + self._limit
            raise
