"""Which portals are being waited for, so that an operation that took too long can name them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import trio

from skymount.errors import PortalError
from skymount.portal.http.request_watch import RequestWatch

_LONG = 1.0
"""Seconds; a shorter attempt is not why an operation took too long."""

_RECENT = 2.0
"""Seconds after an attempt failed in which the next one may not have lasted long yet."""


@dataclass(frozen=True, slots=True)
class _Attempt:
    url: str
    begun: float


@dataclass(slots=True)
class AttemptsUnderWay:
    """The attempts of all operations.

    An operation that is out of time may have cancelled its own attempts; others go on.
    """

    _attempts: dict[RequestWatch, _Attempt] = field(default_factory=dict)
    _cancelled: dict[str, float] = field(default_factory=dict)
    """When a long attempt at a portal was last cancelled."""
    _failed: dict[str, float] = field(default_factory=dict)
    """When one last failed."""

    @contextmanager
    def noted(self, url: str, watch: RequestWatch) -> Iterator[None]:
        """Note an attempt, to be made within the block."""
        self._attempts[watch] = attempt = _Attempt(url, trio.current_time())
        try:
            yield
        except (trio.Cancelled, PortalError) as error:
            now = trio.current_time()
            if now >= attempt.begun + _LONG:
                ended = self._failed if isinstance(error, PortalError) else self._cancelled
                ended[url] = now
            raise
        finally:
            del self._attempts[watch]

    def silent_for(self, seconds: float) -> set[str]:
        """Return the portals of which an attempt has waited for so long without a byte."""
        now = trio.current_time()
        return {
            attempt.url
            for watch, attempt in self._attempts.items()
            if now >= attempt.begun + seconds and (watch.is_idle or watch.wait(now) >= seconds)
        }

    def waited_for(self) -> list[str]:
        """Return the portals for which an operation waited that is out of time now: those of
        attempts that were just cancelled, else those that send nothing, else all that take long;
        and those that failed a moment ago.
        """
        now = trio.current_time()
        cancelled = [url for url, when in self._cancelled.items() if now < when + _LONG]
        if cancelled:
            return cancelled
        long = {
            watch: attempt.url
            for watch, attempt in self._attempts.items()
            if now >= attempt.begun + _LONG
        }
        silent = [url for watch, url in long.items() if watch.wait(now) >= _LONG]
        failed = [url for url, when in self._failed.items() if now < when + _RECENT]
        return list(dict.fromkeys([*(silent or long.values()), *failed]))
