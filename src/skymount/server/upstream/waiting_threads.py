"""Lets threads of the portal wait for upstream, which the event loop asks."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from skymount.server.http_error import HttpError
from skymount.server.upstream.failures import upstream_errors

WAITING = 256
"""Threads that may wait for upstream at once; each download has one while it waits."""

_TOO_MANY = f"{WAITING} requests wait for upstream already"

T = TypeVar("T")


class WaitingThreads:
    """The threads that wait. Made in the event loop; threads beyond those of the portal's own work
    are for them, so that a silent upstream does not keep what is stored here from being read.
    """

    def __init__(self) -> None:
        self._slots = trio.CapacityLimiter(WAITING)
        limiter = trio.to_thread.current_default_thread_limiter()
        limiter.total_tokens += WAITING

    def run(self, ask: Callable[[], Awaitable[T]], absent: str) -> T:
        """Run an async function from a thread; HttpError as `upstream_errors`, 503 if too many
        threads wait.
        """
        return trio.from_thread.run(self._run, ask, absent)

    async def _run(self, ask: Callable[[], Awaitable[T]], absent: str) -> T:
        request = object()  # several may ask the same
        try:
            self._slots.acquire_on_behalf_of_nowait(request)
        except trio.WouldBlock:
            raise HttpError(503, _TOO_MANY) from None
        try:
            with upstream_errors(absent):
                return await ask()
        finally:
            self._slots.release_on_behalf_of(request)
