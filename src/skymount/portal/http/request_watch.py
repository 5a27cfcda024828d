"""What the requests of an operation wait for, noted by the HTTP client as it happens. Whoever sets
a watch decides what is late (``portal.failover.race``).
"""

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol, TypeVar

T = TypeVar("T")


class Meter(Protocol):
    """What is told how a portal does."""

    def body_opened(self) -> None: ...

    def head_came(self, seconds: float, now: float) -> None:
        """The head of a response came, so long after its request was sent."""

    def bytes_came(self, now: float) -> None:
        """There is a sign of life."""

    def body_closed(self, size: int, seconds: float) -> None:
        """A body is done with; so many bytes came, and were waited for so long."""


@dataclass(slots=True)
class _Body:
    size: int = 0
    """Bytes that have come."""
    waited: float = 0.0
    """Seconds in which the reader waited for them."""
    waits_since: float | None = None


class RequestWatch:
    """The requests and bodies that an operation waits for at one portal."""

    __slots__ = (
        "_bodies",
        "_busy",
        "_heads",
        "_meter",
        "_outgoing",
        "_outgoing_since",
        "_outgoing_was",
        "has_received",
        "is_fresh",
    )

    def __init__(
        self, meter: Meter, busy: Callable[[], object] = lambda: None, *, is_fresh: bool = False
    ) -> None:
        """`busy` is called when it waits for something after it waited for nothing. `is_fresh`: no
        answer of a cache is wanted, as the last one was wrong.
        """
        self.is_fresh = is_fresh
        self.has_received = False
        """Whether anything of a body came."""
        self._meter = meter
        self._busy = busy
        self._heads: dict[object, float] = {}
        self._bodies: dict[object, _Body] = {}
        self._outgoing: Callable[[], object] = lambda: None
        self._outgoing_was: object = None
        self._outgoing_since: float | None = None

    def sends(self, state: Callable[[], object]) -> None:
        """Note that a body is sent: how far it is, is what `state` returns."""
        self._outgoing = state

    def quiet(self, now: float) -> float:
        """Return for how long nothing has been taken of the body that is sent, or since the first
        call without one.
        """
        state = self._outgoing()
        if self._outgoing_since is None or state != self._outgoing_was:
            if self._outgoing_since is not None:
                self._meter.bytes_came(now)  # that they were taken is a sign of life as well
            self._outgoing_was, self._outgoing_since = state, now
        return now - self._outgoing_since

    def sent(self, request: object, now: float) -> None:
        """Note that a request has a connection."""
        was_idle = self.is_idle
        self._heads[request] = now
        if was_idle:
            self._busy()

    def head_came(self, request: object, now: float) -> None:
        since = self._heads.get(request)
        if since is not None:
            self._meter.head_came(now - since, now)

    def request_ended(self, request: object) -> None:
        self._heads.pop(request, None)

    def body_awaited(self, body: object, now: float) -> None:
        found = self._bodies.get(body)
        if found is None:
            was_idle = self.is_idle
            found = self._bodies[body] = _Body()
            self._meter.body_opened()
            if was_idle:
                self._busy()
        found.waits_since = now

    def bytes_came(self, body: object, size: int, now: float) -> None:
        found = self._bodies.get(body)
        if found is not None:
            found.waited += _waiting(found, now)
            found.waits_since = None
            found.size += size
            self.has_received = self.has_received or size > 0
            self._meter.bytes_came(now)

    def body_closed(self, body: object) -> None:
        found = self._bodies.pop(body, None)
        if found is not None:
            self._meter.body_closed(found.size, found.waited)

    def skip(self, seconds: float, now: float) -> None:
        """Leave so many seconds out of all waits."""
        if self._outgoing_since is not None:
            self._outgoing_since = min(self._outgoing_since + seconds, now)
        for request, since in self._heads.items():
            self._heads[request] = min(since + seconds, now)
        for body in self._bodies.values():
            if body.waits_since is not None:
                body.waits_since = min(body.waits_since + seconds, now)

    @property
    def is_idle(self) -> bool:
        """Whether it waits for nothing from the portal; it may wait for a connection."""
        return not self._heads and not self._bodies

    def head_wait(self, now: float) -> float:
        """Return for how long the oldest request has been waiting for its head."""
        return max((now - since for since in self._heads.values()), default=0.0)

    def stall(self, now: float) -> float:
        """Return for how long a reader has been waiting for the next byte of a body."""
        return max((_waiting(body, now) for body in self._bodies.values()), default=0.0)

    def wait(self, now: float) -> float:
        """Return for how long nothing has come that it waits for."""
        return max(self.head_wait(now), self.stall(now))

    def slowest_body(self, now: float, least: float) -> float | None:
        """Return the lowest bytes a second of the bodies that were waited for at least so long;
        None without any.
        """
        waits = ((body.size, body.waited + _waiting(body, now)) for body in self._bodies.values())
        return min((size / waited for size, waited in waits if waited >= least), default=None)


def _waiting(body: _Body, now: float) -> float:
    return 0.0 if body.waits_since is None else now - body.waits_since


_current: ContextVar[RequestWatch | None] = ContextVar("watch", default=None)


def current() -> RequestWatch | None:
    """Return the watch over this task and those that it starts."""
    return _current.get()


async def watched(watch: RequestWatch, work: Awaitable[T]) -> T:
    """Let a watch see what some work asks for, with all tasks that it starts."""
    before = _current.set(watch)
    try:
        return await work
    finally:
        _current.reset(before)
