"""Portals that are never talked to, and what they answer by a script. No sockets."""

from collections import Counter
from collections.abc import Awaitable, Callable

import trio

from skymount.errors import (
    AccessDeniedError,
    BadContentError,
    NotFoundError,
    PortalError,
    PortalTimeoutError,
    RequestRefusedError,
    UnavailableError,
)
from skymount.portal.client.client import PortalClient
from skymount.portal.failover.portals import Portals

NOT_FOUND = NotFoundError("not here")
REFUSED = AccessDeniedError("blocked")
WRONG = RequestRefusedError("wrong")
DOWN = UnavailableError("down")
SLOW = PortalTimeoutError("slow")
LIE = BadContentError("a lie")


def portals(count: int) -> Portals:
    """Return portals that are never talked to."""
    return Portals([PortalClient(f"http://p{n}.invalid", retries=0) for n in range(count)])


class Script:
    """Answers each portal's requests from its list, the last entry again and again."""

    def __init__(self, asked: Portals, *answers: list[object]) -> None:
        self._answers = dict(zip(asked.clients, answers, strict=True))
        self._names = {client: n for n, client in enumerate(asked.clients)}
        self.order: list[int] = []

    async def __call__(self, client: PortalClient) -> object:
        await trio.lowlevel.checkpoint()
        self.order.append(self._names[client])
        answers = self._answers[client]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, PortalError):
            raise answer
        return answer

    @property
    def counts(self) -> dict[int, int]:
        """How often each portal was asked."""
        return dict(Counter(self.order))


async def ask(asked: Portals, script: Callable[[PortalClient], Awaitable[object]]) -> object:
    """Ask, with a limit far above all pauses."""
    with trio.fail_after(60):
        return await asked.first(script)


def unreached(seconds: float = 0.0) -> PortalError:
    """Return the error that no connection could be made."""
    error = UnavailableError("cannot be reached")
    error.unreached = seconds
    return error


class Away:
    """A portal that no connection can be made to, until it is `back`."""

    def __init__(self, takes: float = 0.0) -> None:
        self.takes = takes
        """Seconds until that is known."""
        self.tried = 0
        self.back = False

    async def __call__(self, client: PortalClient) -> object:
        self.tried += 1
        await trio.sleep(self.takes)
        if not self.back:
            raise unreached(self.takes)
        return "back"
