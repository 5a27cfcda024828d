"""Uploads to all portals (docs/semantics.md, W4)."""

import logging
from dataclasses import replace
from functools import partial

import pytest
import trio

from skymount.errors import (
    BadContentError,
    PortalTimeoutError,
    UnavailableError,
)
from skymount.portal.uploads.upload import quiet_limit, time_for_others, upload_to_all
from tests.fakes.portal import asks_for_a_pause, body_is, status, waits
from tests.portal.uploads.several import (
    FILE,
    OTHER_RESULT,
    UPLOAD,
    body,
    large,
    several,
)


async def test_all_portals_get_it():
    async with several(3, 1) as found:
        copies = await upload_to_all(found.portals, body(), 1, patience=20)
        assert set(copies.results) == {found.portals.clients[0], found.portals.clients[2]}
        assert copies.failures == {}
        assert copies.agreed(2).skylink == FILE.skylink
        assert copies.lacking == []
        assert found.takers == [1, 0, 1]


async def test_portals_that_fail_lack_it():
    async with several(3) as found:
        found.fakes[0].fault(status(503), UPLOAD)
        found.fakes[1].fault(status(403), UPLOAD)
        copies = await upload_to_all(found.portals, body(), 1, patience=20)
        assert copies.agreed(1).skylink == FILE.skylink
        assert set(copies.lacking) == {each.url for each in found.fakes[:2]}


@pytest.mark.parametrize("then", ["stall", "hang"])
async def test_a_silent_portal_is_left_once_enough_have_it(then: str):
    """Its health knows: the next upload does not wait for it."""
    async with several(2) as found:
        found.fakes[0].breaks_upload = 1, then
        with trio.fail_after(60):
            copies = await upload_to_all(found.portals, large(), 1, patience=1.5)
            assert copies.lacking == [found.fakes[0].url]
            begun = trio.current_time()
            await upload_to_all(found.portals, large(), 1, patience=300)
            assert trio.current_time() - begun < 60
        assert found.takers == [1, 2]


async def test_a_slow_portal_that_goes_on_is_waited_for():
    async with several(2) as found:
        found.fakes[0].fault(waits(2.0), UPLOAD)
        copies = await upload_to_all(found.portals, body(), 1, patience=30)
        assert len(copies.results) == 2


async def test_a_silent_portal_is_waited_for_while_it_is_needed():
    async with several(2) as found:
        found.fakes[0].fault(waits(0.9), UPLOAD)
        copies = await upload_to_all(found.portals, body(), 2, patience=0.001)
        assert len(copies.results) == 2


async def test_a_portal_that_failed_is_asked_if_it_is_needed():
    async with several(2) as found:
        found.fakes[0].fault(status(503), UPLOAD, times=1)
        await upload_to_all(found.portals, body(), 1, patience=20)
        await upload_to_all(found.portals, body(), 1, patience=20)
        assert found.takers == [1, 2]
        copies = await upload_to_all(found.portals, body(), 2, patience=20)
        assert len(copies.results) == 2


async def test_a_silent_portal_that_is_back_is_asked_if_it_is_needed():
    """W4, R12: it is asked for a sign of life."""
    async with several(2) as found, trio.open_nursery() as nursery:
        portals = replace(found.portals, background=nursery)
        silent = portals.clients[0]
        error = PortalTimeoutError("no answer", url=silent.url)
        portals.health(silent).failed(error, trio.current_time(), waited=2)
        found.fakes[1].fault(status(503), UPLOAD)
        copies = await upload_to_all(portals, body(), 1, patience=20)
        assert set(copies.results) == {silent}


async def test_rounds_while_too_few_have_it():
    async with several(2) as found:
        found.fakes[0].fault(status(503, "busy"), UPLOAD, times=2)
        found.fakes[1].fault(status(403), UPLOAD)
        copies = await upload_to_all(found.portals, body(), 1, patience=20, rounds=3)
        assert found.takers == [3, 1]  # a refusal is final
        assert copies.lacking == [found.fakes[1].url]


async def test_too_few_portals():
    """The error is that of a portal, a failure before a refusal."""
    async with several(3) as found:
        found.fakes[0].fault(status(403, "forbidden"), UPLOAD)
        found.fakes[1].fault(status(503, "busy"), UPLOAD)
        copies = await upload_to_all(found.portals, body(), 2, patience=20)
        with pytest.raises(UnavailableError, match=r"^1 of 3 portals took it, 2 have to: busy"):
            copies.agreed(2)
        found.fakes[2].fault(status(403), UPLOAD)
        copies = await upload_to_all(found.portals, body(), 1, patience=20)
        with pytest.raises(UnavailableError, match=r"^busy"):
            copies.agreed(1)


async def test_a_liar_does_not_decide_about_the_skylink(caplog: pytest.LogCaptureFixture):
    """W4: whichever portal comes first. It lacks the content, and the log names it."""
    async with several(2) as found:
        found.fakes[0].fault(body_is(OTHER_RESULT), UPLOAD)
        copies = await upload_to_all(found.portals, body(), 1, patience=20)
        assert copies.agreed(1).skylink == FILE.skylink
        assert copies.lacking == [found.fakes[0].url]
        assert [each.message for each in caplog.records if each.levelno >= logging.WARNING] == [
            f"{each}" for each in copies.failures.values()
        ]
        with pytest.raises(BadContentError, match=r"^1 of 2 portals took it, 2 have to: it gave"):
            copies.agreed(2)


async def test_others_have_time_from_then_on():
    """W4: a portal that took all of it, and stores it, is waited for once enough have it."""
    async with several(2) as found:
        found.fakes[0].fault(waits(3.0), UPLOAD)
        found.fakes[1].fault(waits(3.5), UPLOAD)
        copies = await upload_to_all(found.portals, body(), 1, patience=2.0)
        assert len(copies.results) == 2


async def test_a_slow_portal_is_left_once_enough_have_it():
    """W4: it takes one piece after the other, which gives it no more time."""
    async with several(2) as found:
        found.fakes[0].breaks_upload = 1, "sip"
        with trio.fail_after(60):
            copies = await upload_to_all(found.portals, large(), 1, patience=1.5)
        (failure,) = copies.failures.values()
        assert "; another portal had one" in str(failure)
        assert copies.lacking == [found.fakes[0].url]
        assert not found.portals.health(found.portals.clients[0]).is_known_silent


def test_portals_get_as_long_as_those_that_were_needed():
    """W4: a command gives them more than its patience, if it took long until enough had it."""
    assert time_for_others(60, patience=10, extra=1) == 70
    assert time_for_others(60, patience=2, extra=0) == 2


def test_who_has_taken_much_has_more_time():
    """W3: a tenth of the time that the upload has taken."""
    assert quiet_limit(1) == 0.25
    assert quiet_limit(60) == 6


async def test_a_portal_that_failed_is_asked_while_the_others_are_slow():
    """W4."""
    async with several(2) as found:
        health = found.portals.health(found.portals.clients[1])
        health.failed(UnavailableError("down"), trio.current_time())
        found.fakes[0].breaks_upload = 1, "sip"
        with trio.fail_after(60):
            copies = await upload_to_all(found.portals, large(), 1, patience=1)
        assert list(copies.results) == found.portals.clients[1:]


async def test_a_portal_that_asks_for_a_short_pause_is_asked_again():
    """W4, R12: if too few have it, and it may be asked again soon."""
    async with several(2) as found:
        found.fakes[0].fault(asks_for_a_pause(1), UPLOAD, times=2)
        found.fakes[1].fault(asks_for_a_pause(40), UPLOAD)
        copies = await upload_to_all(found.portals, body(), 1, patience=20)
        assert list(copies.results) == found.portals.clients[:1]
        assert found.takers == [3, 1]
        copies = await upload_to_all(found.portals, body(), 2, patience=20)
        assert found.takers == [4, 1]
        with pytest.raises(UnavailableError, match=r"may be asked again in \d+ s"):
            copies.agreed(2)


async def test_progress_forgets_an_upload_that_failed():
    """What a portal has of it that refuses it at the end counts no more."""
    told: list[int] = []
    went_back = trio.Event()

    def note(sent: int, total: int | None) -> None:
        if told and sent < told[-1]:
            went_back.set()
        told.append(sent)

    async with several(2) as found, trio.open_nursery() as nursery:
        found.fakes[0].fault(status(403), UPLOAD)
        found.fakes[1].breaks_upload = 1, "sip"
        sent = large().with_progress(note)
        nursery.start_soon(partial(upload_to_all, found.portals, sent, 2, patience=60))
        with trio.fail_after(60):
            await went_back.wait()
        nursery.cancel_scope.cancel()
    assert max(told) == large().size


async def test_progress_is_that_of_the_upload_that_is_furthest():
    async with several(2) as found:
        told: list[int] = []
        found.fakes[0].breaks_upload = 1, "hang"
        copies = await upload_to_all(
            found.portals,
            large().with_progress(lambda sent, _: told.append(sent)),
            1,
            patience=1,
        )
        assert len(copies.results) == 1
        assert told == sorted(told)
        assert told[-1] == large().size
