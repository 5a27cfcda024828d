"""The choice between portals: order, rounds, and what their answers together mean. No sockets."""

import gc
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
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
from skymount.portal.client import PortalClient
from skymount.portal.failover import BACKOFF, ROUNDS, Portals

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


async def test_first_portal_is_enough(autojump_clock: trio.testing.MockClock):
    """The first good answer is the result, without a pause."""
    asked = portals(3)
    script = Script(asked, ["a"], ["b"], ["c"])
    assert await ask(asked, script) == "a"
    assert script.order == [0]
    assert trio.current_time() == 0


@pytest.mark.parametrize("failure", [DOWN, SLOW, LIE, NOT_FOUND, REFUSED, WRONG])
async def test_next_portal_is_asked(failure: PortalError, autojump_clock: object):
    """Whatever is wrong with the first portal, the second one is asked at once."""
    asked = portals(2)
    script = Script(asked, [failure], ["b"])
    assert await ask(asked, script) == "b"
    assert script.order == [0, 1]
    assert trio.current_time() == 0


async def test_portal_that_failed_is_asked_later(autojump_clock: object):
    """A portal with faults moves back behind one without, until it answers well again."""
    asked = portals(2)
    await ask(asked, Script(asked, [DOWN], ["b"]))
    script = Script(asked, ["a"], ["b"])
    await ask(asked, script)
    assert script.order == [1]
    script = Script(asked, ["a"], [DOWN])
    await ask(asked, script)
    assert script.order == [1, 0]
    assert [client.url for client in asked.ranked()] == ["http://p0.invalid", "http://p1.invalid"]


async def test_refusal_is_no_fault(autojump_clock: object):
    """A portal that does not have something keeps its place."""
    asked = portals(2)
    await ask(asked, Script(asked, [NOT_FOUND], ["b"]))
    script = Script(asked, ["a"], ["b"])
    await ask(asked, script)
    assert script.order == [0]


async def test_failures_are_tried_in_rounds(autojump_clock: object):
    """Portals that fail are asked again, after pauses that grow."""
    asked = portals(2)
    times: list[float] = []

    async def down(client: PortalClient) -> object:
        times.append(trio.current_time())
        raise DOWN

    with pytest.raises(UnavailableError):
        await ask(asked, down)
    assert len(times) == 2 * ROUNDS
    first, second = times[2] - times[1], times[4] - times[3]
    assert BACKOFF / 2 <= first <= BACKOFF * 1.5
    assert BACKOFF <= second <= BACKOFF * 3


@pytest.mark.parametrize("failure", [DOWN, SLOW, LIE])
async def test_recovery_within_the_rounds(failure: PortalError, autojump_clock: object):
    """A portal that fails twice and then answers is good enough."""
    asked = portals(1)
    assert await ask(asked, Script(asked, [failure, failure, "late"])) == "late"


async def test_refusals_are_final(autojump_clock: object):
    """A portal that refused is not asked again while others are retried."""
    asked = portals(3)
    script = Script(asked, [NOT_FOUND], [DOWN], [REFUSED])
    with pytest.raises(UnavailableError):
        await ask(asked, script)
    assert script.counts == {0: 1, 1: ROUNDS, 2: 1}


async def test_all_refuse(autojump_clock: object):
    """When every portal has said its last word there is no second round and no pause."""
    asked = portals(2)
    script = Script(asked, [NOT_FOUND], [NOT_FOUND])
    with pytest.raises(NotFoundError):
        await ask(asked, script)
    assert script.counts == {0: 1, 1: 1}
    assert trio.current_time() == 0


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([NOT_FOUND, NOT_FOUND], NOT_FOUND),
        ([NOT_FOUND, DOWN], DOWN),
        ([DOWN, NOT_FOUND], DOWN),
        ([NOT_FOUND, LIE], LIE),
        ([NOT_FOUND, SLOW], SLOW),
        ([NOT_FOUND, REFUSED], REFUSED),
        ([REFUSED, NOT_FOUND], REFUSED),
        ([REFUSED, WRONG], REFUSED),
        ([REFUSED, DOWN], DOWN),
        ([LIE, DOWN], LIE),
        ([DOWN, LIE], LIE),
    ],
)
async def test_what_failures_mean_together(
    answers: list[PortalError], expected: PortalError, autojump_clock: object
):
    """L4: is never reported as ENOENT, unless all of them say so.

    «Not found» is the result only if every portal says so; a lie is worse than a failure.
    """
    asked = portals(2)
    with pytest.raises(PortalError) as caught:
        await ask(asked, Script(asked, *([answer] for answer in answers)))
    assert caught.value is expected


async def test_no_portal():
    """Without portals everything is unavailable."""
    with pytest.raises(UnavailableError):
        await ask(Portals([]), Script(Portals([])))


async def test_other_errors_pass_through(autojump_clock: object):
    """What is not a PortalError is not held against a portal, and not retried."""
    asked = portals(2)
    calls = []

    async def broken(client: PortalClient) -> object:
        calls.append(client)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await ask(asked, broken)
    assert len(calls) == 1


@pytest.mark.parametrize("kind", [UnavailableError, NotFoundError])
async def test_errors_hold_nothing_back(kind: type[PortalError], autojump_clock: object):
    """An error that somebody keeps does not keep what was received before it, be it 256 MiB."""
    received: list[weakref.ref[set[int]]] = []

    async def fails(client: PortalClient) -> object:
        answer = {1, 2, 3}
        received.append(weakref.ref(answer))
        try:
            raise ValueError(answer)
        except ValueError as error:
            raise kind("bad") from error

    kept: list[PortalError] = []
    try:
        await ask(portals(1), fails)
    except PortalError as error:
        kept.append(error)
    gc.collect()
    assert kept
    assert [ref() for ref in received] == [None] * len(received)


async def test_cancelled_in_a_pause(autojump_clock: object):
    """Whoever asks can give up between two rounds."""
    asked = portals(1)
    with trio.move_on_after(BACKOFF / 4) as scope:
        await asked.first(Script(asked, [DOWN]))
    assert scope.cancelled_caught
