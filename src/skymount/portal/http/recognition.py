"""Whether the server at a portal's address is one: it is asked when an answer leaves doubt."""

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio

from skymount.errors import MalformedError
from skymount.portal.http.advice import NO_PORTAL
from skymount.portal.http.response import Response
from skymount.wire.dialect import PRESETS, Dialect
from skymount.wire.http.requests import Request
from skymount.wire.limited_json import decode_json

ANSWER_LIMIT = 1 << 20
"""Bytes of the answer to `question`."""

_LIMIT = 5.0  # seconds that it may take
_REMEMBERED = 30.0  # seconds for which nobody is asked again


def question(dialect: Dialect) -> Request:
    """Return a request that any portal knows."""
    return Request("GET", dialect.path("stats"))


def is_of_portal(response: Response) -> bool:
    """Whether a successful answer to `question` may be a portal's."""
    try:
        decode_json(response.body, dict[str, object], "what it sent", ANSWER_LIMIT)
    except MalformedError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Stranger:
    """What is wrong with a server that is no portal, and what to do."""

    what: str = "the server does not know the requests of a portal"
    advice: str = NO_PORTAL


@dataclass(slots=True, eq=False)
class Recognition:
    """What is known of the server at one address."""

    judge: Callable[[Dialect], Awaitable[bool | None]]
    """Asks `question`; returns whether a portal of that dialect answers, None if that is open."""
    is_portal: bool = False
    """Whether it surely is one."""
    _stranger: Stranger | None = None
    _asked_at: float = -math.inf
    _lock: trio.Lock = field(default_factory=trio.Lock)

    async def stranger(self, dialect: Dialect) -> Stranger | None:
        """Return what is wrong with a server whose answer is not like a portal's; None if it is a
        portal all the same, or if that cannot be told.
        """
        async with self._lock:
            if not self.is_portal and trio.current_time() - self._asked_at > _REMEMBERED:
                with trio.move_on_after(_LIMIT):
                    self._stranger = await self._ask(dialect)
                self._asked_at = trio.current_time()
            return None if self.is_portal else self._stranger

    async def _ask(self, dialect: Dialect) -> Stranger | None:
        found = await self.judge(dialect)
        if found is not False:
            self.is_portal = found is True
            return None
        for other in PRESETS.values():
            if other is not dialect and await self.judge(other):
                what = f"it speaks the dialect {other.name}, not {dialect.name}"
                return Stranger(what, f'set dialect = "{other.name}"')
        return Stranger()
