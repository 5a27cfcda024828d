"""The choice between portals: order, rounds, and what their answers together mean. No sockets."""

import gc
import socket
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
    ReadOnlyPortalError,
    RequestRefusedError,
    StorageError,
    UnavailableError,
)
from skymount.portal.client.client import PortalClient
from skymount.portal.failover.portals import PROOF_TIMEOUT, FailoverConfig, Portals
from skymount.portal.failover.reachability import SLOW_ATTEMPT
from skymount.wire.skylink import Skylink

NOT_FOUND = NotFoundError("not here")
REFUSED = AccessDeniedError("blocked")
WRONG = RequestRefusedError("wrong")
DOWN = UnavailableError("down")
SLOW = PortalTimeoutError("slow")
LIE = BadContentError("a lie")
CONFIG = FailoverConfig()


def portals(count: int) -> Portals:
    """Return portals that are never talked to."""
    return Portals([PortalClient(f"http://p{n}.invalid", retries=0) for n in range(count)])


def test_writable_portals():
    """W2: those that are read-only are left out, in the same order; without any it is refused."""
    clients = [
        PortalClient(f"http://p{n}.invalid", read_only=is_read_only)
        for n, is_read_only in enumerate([True, False, True, False])
    ]
    assert Portals(clients).writable().clients == [clients[1], clients[3]]
    with pytest.raises(ReadOnlyPortalError):
        Portals(clients[::2]).writable()


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


async def test_a_request_that_was_not_sent_is_no_fault(autojump_clock: object):
    """A portal keeps its place when only our own connections to it are all busy."""
    asked = portals(2)
    busy = PortalTimeoutError("every connection is busy")
    busy.is_unsent = True
    await ask(asked, Script(asked, [busy], ["b"]))
    script = Script(asked, ["a"], ["b"])
    await ask(asked, script)
    assert script.order == [0]


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
    assert len(times) == 2 * CONFIG.rounds
    first, second = times[2] - times[1], times[4] - times[3]
    assert CONFIG.backoff / 2 <= first <= CONFIG.backoff * 1.5
    assert CONFIG.backoff <= second <= CONFIG.backoff * 3


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
    assert script.counts == {0: 1, 1: CONFIG.rounds, 2: 1}


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
    with trio.move_on_after(CONFIG.backoff / 4) as scope:
        await asked.first(Script(asked, [DOWN]))
    assert scope.cancelled_caught


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


async def fails(asked: Portals, script: Callable[[PortalClient], Awaitable[object]]) -> float:
    """Ask in vain; return the seconds that it took."""
    begun = trio.current_time()
    with pytest.raises(UnavailableError, match="cannot be reached"):
        await ask(asked, script)
    return trio.current_time() - begun


async def test_who_may_answer(autojump_clock: object):
    """R13: A single portal, if it has sent anything lately; one of several also if it works as far
    as is known.
    """
    for count in (1, 2):
        asked = portals(count)
        assert asked.may_answer(trio.current_time()) == (count > 1)
        with pytest.raises(PortalTimeoutError):
            await asked.first(Script(asked, *[[SLOW]] * count))
        await trio.sleep(1)
        begun = trio.current_time()
        assert not asked.may_answer(begun)
        await trio.sleep(100)
        assert await asked.first(Script(asked, *[["fine"]] * count)) == "fine"
        assert asked.may_answer(begun)
        await trio.sleep(10)
        assert asked.may_answer(trio.current_time()) == (count > 1)


async def test_portal_that_is_away_is_tried_once(autojump_clock: object):
    """R10: each further operation tries it once, without pauses."""
    asked, away = portals(1), Away()
    await fails(asked, away)
    assert away.tried == CONFIG.rounds
    for more in range(1, 100):
        assert await fails(asked, away) == 0
        assert away.tried == CONFIG.rounds + more


async def test_away_for_a_while(autojump_clock: object):
    """R10: a portal counts as away for 5 s; then there are rounds again."""
    asked, away = portals(1), Away()
    await fails(asked, away)
    await trio.sleep(4.9)
    assert await fails(asked, away) == 0
    assert away.tried == CONFIG.rounds + 1
    await trio.sleep(5)
    assert await fails(asked, away) > 0
    assert away.tried == 2 * CONFIG.rounds + 1


async def test_portal_that_is_back_is_used_at_once(autojump_clock: object):
    """R10: what needs a portal works as soon as one is back, and then has its rounds again."""
    asked, away = portals(1), Away()
    await fails(asked, away)
    away.back = True
    assert await ask(asked, away) == "back"
    assert away.tried == CONFIG.rounds + 1
    away.back = False
    await fails(asked, away)
    assert away.tried == 2 * CONFIG.rounds + 1


@pytest.mark.parametrize("word", [DOWN, SLOW, LIE, NOT_FOUND, REFUSED])
async def test_portal_that_answers_is_not_away(word: PortalError, autojump_clock: object):
    """R10: only a portal to which no connection could be made counts as away."""
    asked, away = portals(1), Away()
    await fails(asked, away)
    with pytest.raises(type(word)):
        await ask(asked, Script(asked, [word]))
    away.tried = 0
    await fails(asked, away)
    assert away.tried == CONFIG.rounds


async def test_last_round_counts(autojump_clock: object):
    """A portal that was reached in the last round is not away."""
    asked = portals(1)
    script = Script(asked, [unreached(), unreached(), DOWN])
    for _ in range(2):
        with pytest.raises(UnavailableError):
            await ask(asked, script)
    assert script.counts == {0: 2 * CONFIG.rounds}


async def test_portal_whose_absence_takes_long(autojump_clock: object):
    """R10: where an attempt takes a second or longer it is the only one, and the next is made 2 s
    later.
    """
    asked, away = portals(1), Away(takes=1.0)
    assert await fails(asked, away) == 1.0
    assert away.tried == 1
    await trio.sleep(1.9)
    assert await fails(asked, away) == 0
    assert away.tried == 1
    away.back = True
    await trio.sleep(0.1)
    assert await ask(asked, away) == "back"


async def test_portal_whose_absence_takes_less(autojump_clock: object):
    """R10: where an attempt takes less than a second there are all rounds, within seconds."""
    asked, away = portals(1), Away(takes=0.9)
    assert 3 * 0.9 < await fails(asked, away) < 5
    assert away.tried == CONFIG.rounds
    assert await fails(asked, away) == pytest.approx(0.9)


async def test_only_the_portal_that_is_away_is_tried_once(autojump_clock: object):
    """Of several portals the one that is there has its rounds."""
    asked = portals(2)
    away, there = asked.clients
    tried: list[str] = []

    async def try_one(client: PortalClient) -> object:
        tried.append(client.url)
        raise unreached() if client is away else DOWN

    for _ in range(2):
        with pytest.raises(UnavailableError):
            await ask(asked, try_one)
    assert Counter(tried) == {away.url: CONFIG.rounds + 1, there.url: 2 * CONFIG.rounds}


async def test_one_portal_is_away_and_the_other_has_nothing(autojump_clock: object):
    """L4: not ENOENT, unless all of them say so; also while one of them is not tried at all."""
    asked = portals(2)
    away, _ = asked.clients

    async def try_one(client: PortalClient) -> object:
        if client is away:
            await trio.sleep(SLOW_ATTEMPT)
            raise unreached(SLOW_ATTEMPT)
        raise NOT_FOUND

    for _ in range(2):
        with pytest.raises(UnavailableError):
            await ask(asked, try_one)


async def test_refused_connection_counts_as_away():
    """R10 with sockets: nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
    async with PortalClient(f"http://{host}:{port}", retries=0) as client:
        asked = Portals([client])
        tried = []

        async def head(client: PortalClient) -> object:
            tried.append(client)
            return await client.head(Skylink.v1(bytes(32), 1))

        for _ in range(2):
            with pytest.raises(UnavailableError) as caught:
                await ask(asked, head)
            assert caught.value.unreached is not None
        assert len(tried) == CONFIG.rounds + 1


async def test_portal_that_answers_is_not_away_for_one_connection(autojump_clock: object):
    """R10: a connection that cannot be made, while others answer, is no reason to rest."""
    asked = portals(1)

    async def no_connection(_: PortalClient) -> object:
        await trio.sleep(10)
        error = UnavailableError("no connection")
        error.unreached = 10.0
        raise error

    async def answer(_: PortalClient) -> object:
        return "answer"

    async def one_more_connection() -> None:
        with pytest.raises(UnavailableError):
            await asked.first(no_connection)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(one_more_connection)
        await trio.sleep(9.9)
        assert await asked.first(answer) == "answer"
        await trio.sleep(0.2)
        assert await asked.first(answer) == "answer"
        nursery.cancel_scope.cancel()


# --- answers that are proven


def is_proven(answer: object) -> bool:
    return str(answer).startswith("proof")


async def best(asked: Portals, script: Script) -> tuple[object, set[int]]:
    """Ask for the best answer; return it, and which portals failed."""
    with trio.fail_after(60):
        found, failed = await asked.best(script, is_proven)
    return found, {asked.clients.index(client) for client in failed}


async def test_proof_of_the_first_portal(autojump_clock: object):
    """A proof is enough: nobody else is asked."""
    asked = portals(3)
    script = Script(asked, ["proof 0"], ["proof 1"], [DOWN])
    assert await best(asked, script) == ("proof 0", set())
    assert script.order == [0]


@pytest.mark.parametrize("failure", [DOWN, SLOW, LIE])
async def test_proof_after_failures(failure: PortalError, autojump_clock: object):
    """T3: those that fail are asked three times before a mere word is believed."""
    asked = portals(3)
    script = Script(asked, ["word"], [failure, failure, "proof"], ["word"])
    assert await best(asked, script) == ("proof", set())
    assert script.counts == {0: 1, 1: 3, 2: 1}


@pytest.mark.parametrize("failure", [DOWN, SLOW, LIE])
async def test_no_proof_and_a_failure(failure: PortalError, autojump_clock: object):
    """T6: a portal that failed might have proved it."""
    asked = portals(3)
    script = Script(asked, ["word 0"], [failure], ["word 2"])
    assert await best(asked, script) == ("word 0", {1})
    assert script.counts == {0: 1, 1: CONFIG.rounds, 2: 1}


@pytest.mark.parametrize(("refusal", "failed"), [(NOT_FOUND, set()), (REFUSED, {1}), (WRONG, {1})])
async def test_no_proof_and_refusals(
    refusal: PortalError, failed: set[int], autojump_clock: object
):
    """T6: a portal that refuses might have proved it; one that does not have it might not.

    Neither is asked again.
    """
    asked = portals(2)
    script = Script(asked, ["word"], [refusal])
    assert await best(asked, script) == ("word", failed)
    assert script.counts == {0: 1, 1: 1}


async def test_failed_a_moment_ago(autojump_clock: object):
    """T3: One that failed three times within the last 5 s is asked once."""
    asked = portals(2)
    script = Script(asked, ["word"], [DOWN])
    for more in range(20):
        assert await best(asked, script) == ("word", {1})
        assert script.counts[1] == CONFIG.rounds + more
    assert trio.current_time() < 2
    await trio.sleep(5)
    assert await best(asked, script) == ("word", {1})
    assert script.counts[1] == 2 * CONFIG.rounds + 19


async def test_other_errors_of_who_seeks_a_proof(autojump_clock: object):
    """What is not a PortalError comes as it is; a ledger that fails is no reason to give up."""
    asked = portals(2)
    found = [ZeroDivisionError(), StorageError("ledger")]

    async def answer(client: PortalClient) -> object:
        if client is asked.clients[0]:
            return "word"
        raise found[0]

    with pytest.raises(ZeroDivisionError):
        await asked.best(answer, is_proven)
    found.pop(0)
    assert await asked.best(answer, is_proven) == ("word", {asked.clients[1]})


async def test_failures_before_the_first_word_count(autojump_clock: object):
    """T6: also a portal that failed before another one answered might have proved it."""
    asked = portals(2)
    script = Script(asked, [DOWN], ["word"])
    assert await best(asked, script) == ("word", {0})
    await trio.sleep(5)
    script = Script(asked, [DOWN, "proof"], ["word"])
    assert await best(asked, script) == ("proof", set())


async def test_silent_portals_do_not_hold_up_a_proof(autojump_clock: object):
    """T3: all others are asked at once; one that has not answered within 10 s counts as failed."""
    asked = portals(3)
    _, silent, honest = asked.clients
    proves = True

    async def answer(client: PortalClient) -> object:
        if client is silent:
            await trio.sleep_forever()
        await trio.sleep(1)
        return "proof" if client is honest and proves else "word"

    with trio.fail_after(3):
        assert await asked.best(answer, is_proven) == ("proof", ())
    proves = False
    begun = trio.current_time()
    assert await asked.best(answer, is_proven) == ("word", {silent})
    assert trio.current_time() == begun + 1 + PROOF_TIMEOUT


async def test_portal_that_is_away_might_have_a_proof(autojump_clock: object):
    """R10, T6: one that no connection can be made to has no rounds; it counts as failed."""
    asked, away = portals(2), Away(takes=2 * SLOW_ATTEMPT)
    gone = asked.clients[1]

    async def answer(client: PortalClient) -> object:
        return await away(client) if client is gone else "word"

    for tried in (1, 1):
        assert await asked.best(answer, is_proven) == ("word", {gone})
        assert away.tried == tried


async def test_no_answer_at_all(autojump_clock: object):
    """Without any answer it is as with `first`."""
    asked = portals(2)
    with pytest.raises(UnavailableError):
        await best(asked, Script(asked, [NOT_FOUND], [DOWN]))
