"""The choice between portals, and what their answers together mean. No sockets."""

import gc
import weakref

import pytest
import trio

from skymount.errors import (
    NotFoundError,
    PortalError,
    ReadOnlyPortalError,
    UnavailableError,
)
from skymount.portal.client.client import PortalClient
from skymount.portal.failover.portals import Portals
from tests.portal.failover.scripted import (
    DOWN,
    LIE,
    NOT_FOUND,
    REFUSED,
    SLOW,
    WRONG,
    Script,
    ask,
    portals,
)


def test_writable_portals():
    """W2: those that are read-only are left out, in the same order; without any it is refused."""
    clients = [
        PortalClient(f"http://p{n}.invalid", read_only=is_read_only)
        for n, is_read_only in enumerate([True, False, True, False])
    ]
    assert Portals(clients).writable().clients == [clients[1], clients[3]]
    with pytest.raises(ReadOnlyPortalError):
        Portals(clients[::2]).writable()


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
