"""Whether the server at an address is a portal, and whether it can be used."""

import math
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from skymount.errors import (
    AccessDeniedError,
    MalformedError,
    NoPortalError,
    NotFoundError,
    PortalError,
    PortalTimeoutError,
)
from skymount.portal.http.advice import NO_PORTAL, causes
from skymount.portal.http.response import Response
from skymount.wire.dialect import PRESETS, Dialect
from skymount.wire.http.requests import Request
from skymount.wire.limited_json import decode_json

if TYPE_CHECKING:
    from skymount.portal.http.client import HttpClient

_WORKS_LATER = "the tree works once it does"

ANSWER_LIMIT = 1 << 20
"""Bytes of the answer to `question`."""

_QUESTION_TIME = 5.0  # seconds that it may take
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
                with trio.move_on_after(_QUESTION_TIME):
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


# --- can it be used?


async def ask(http: "HttpClient") -> Response | None:
    """Return a portal's answer to `question`; None if it is a portal that does not answer it.
    PortalError, with advice, if it is no portal or cannot be used.
    """
    try:
        response = await http.fetch(question(http.options.dialect), ANSWER_LIMIT)
    except NotFoundError:
        return None
    if not is_of_portal(response):
        error = NoPortalError("it sends something else than a portal does", url=http.url)
        error.advice = NO_PORTAL
        raise error
    return response


async def ask_for_write(http: "HttpClient") -> None:
    """AccessDeniedError if the portal does not let us change anything. Nothing is changed: what it
    is sent is no registry entry.
    """
    request = Request("POST", http.options.dialect.path("registry"))
    try:
        await http.fetch(request, ANSWER_LIMIT, content=b"{}")
    except AccessDeniedError:
        raise
    except PortalError:
        return


async def problem_with(http: "HttpClient", limit: float) -> str:
    """Return why a portal cannot be used and what to do, "" if it answers within `limit` seconds.

    Whether it takes our api_key is asked only if there is one: reading may need none.
    """
    try:
        with trio.move_on_after(limit):
            await ask(http)
            if http.options.api_key and not http.options.read_only:
                await ask_for_write(http)
            return ""
    except PortalError as error:
        return _described(http.url, error)
    return f"{http.url} does not answer yet: silent for {limit:g} s; {_WORKS_LATER}"


def _described(url: str, error: PortalError) -> str:
    is_silent = isinstance(error, PortalTimeoutError) or error.unreached is not None
    works_later = is_silent and not any(isinstance(each, ssl.SSLError) for each in causes(error))
    what = error.message.rpartition("cannot be reached: ")[2].rstrip(".")
    said = f"{url} does not answer yet: {what}" if works_later else f"{url}: {what}"
    return "; ".join(filter(None, (said, error.advice, _WORKS_LATER if works_later else "")))
