"""Uploads that go to the next portal (docs/semantics.md, W3)."""

from functools import partial
from pathlib import Path

import pytest
import trio

from skymount.concurrency import run_all
from skymount.errors import (
    PortalError,
    ReadOnlyPortalError,
    RequestRefusedError,
    UnavailableError,
)
from skymount.portal.client.upload import UploadBody
from skymount.portal.uploads.upload import upload_copies, upload_to_first
from tests.fakes.portal import asks_for_a_pause, body_is, stalls_after, status, waits
from tests.portal.uploads.several import (
    FILE,
    OTHER_RESULT,
    UPLOAD,
    body,
    large,
    piped,
    several,
)


@pytest.mark.parametrize("code", [401, 402, 403, 404, 411, 413, 429, 451, 500, 503])
async def test_a_refusal_leads_to_the_next_portal(code: int):
    async with several(2) as found:
        found.fakes[0].fault(status(code, "not here"), UPLOAD)
        taker, result = await upload_to_first(found.portals, body(), found.note)
        assert taker is found.portals.clients[1]
        assert result.skylink == FILE.skylink
        assert found.takers == [1, 1]
        assert found.said == [("not here", found.fakes[1].url)]


async def test_a_request_that_is_wrong_is_wrong_everywhere():
    async with several(2) as found:
        found.fakes[0].fault(status(400, "bad name"), UPLOAD)
        with pytest.raises(RequestRefusedError, match="bad name"):
            await upload_to_first(found.portals, body(), found.note)
        assert found.takers == [1, 0]


async def test_the_error_is_that_of_the_last_portal():
    async with several(3) as found:
        for number, fake in enumerate(found.fakes):
            fake.fault(status(503, f"down {number}"), UPLOAD)
        with pytest.raises(UnavailableError, match="down 2"):
            await upload_to_first(found.portals, body(), found.note)
        assert [said for said, _ in found.said] == ["down 0", "down 1"]


async def test_a_portal_that_is_known_to_fail_comes_last():
    async with several(2) as found:
        found.fakes[0].fault(status(503), UPLOAD, times=1)
        await upload_to_first(found.portals, body(), found.note)
        await upload_to_first(found.portals, body(), found.note)
        assert found.takers == [1, 2]


async def test_a_read_only_portal_gets_nothing():
    """W2."""
    async with several(3, 0, 2) as found:
        found.fakes[1].fault(status(503), UPLOAD)
        with pytest.raises(UnavailableError):
            await upload_to_first(found.portals, body(), found.note)
        assert found.takers == [0, 1, 0]
    async with several(1, 0) as found:
        with pytest.raises(ReadOnlyPortalError):
            await upload_to_first(found.portals, body(), found.note)


@pytest.mark.parametrize("name", ["skykeyname", "skykeyid"])
async def test_what_a_portal_encrypts_goes_to_no_other(name: str):
    async with several(2) as found:
        found.fakes[0].fault(status(503), UPLOAD)
        with pytest.raises(UnavailableError):
            await upload_to_first(found.portals, body([(name, "x")]), found.note)
        assert found.takers == [1, 0]


async def test_a_file_that_changed_its_size_is_an_error(tmp_path: Path):
    """Not the next portal's fault: it is not asked."""
    file = tmp_path / "a.txt"
    file.write_bytes(b"before")
    prepared = UploadBody.of_path(file)
    file.write_bytes(b"longer than before")
    async with several(2) as found:
        with pytest.raises(OSError, match="holds more than its size of 6 bytes"):
            await upload_to_first(found.portals, prepared, found.note)


async def test_a_file_that_changed_between_two_attempts(tmp_path: Path):
    """The portal that takes it gets what is in it then."""
    file = tmp_path / "a.txt"
    file.write_bytes(b"before")
    async with several(2) as found:
        found.fakes[0].fault(status(503), UPLOAD)
        prepared = UploadBody.of_path(file)
        await upload_to_first(found.portals, prepared, lambda *_: file.write_bytes(b"after!"))
        sent = found.fakes[1].asked(UPLOAD)[0].body
        assert (sent.count(b"after!"), sent.count(b"before")) == (1, 0)


async def test_a_file_that_changed_its_size_between_two_attempts(tmp_path: Path):
    file = tmp_path / "a.txt"
    file.write_bytes(b"before")
    async with several(2) as found:
        found.fakes[0].fault(status(503), UPLOAD)
        prepared = UploadBody.of_path(file)
        with pytest.raises(OSError, match=r"a\.txt: became shorter while it was read"):
            await upload_to_first(found.portals, prepared, lambda *_: file.write_bytes(b"less"))


async def test_a_pipe_is_sent_to_one_portal():
    """W3: once it is read, a failure is final, and says so."""
    async with several(2) as found:
        found.fakes[0].fault(status(503, "down"), UPLOAD)
        with pytest.raises(UnavailableError, match=r"^down; a pipe cannot be sent again"):
            await upload_to_first(found.portals, piped(), found.note)
        assert found.takers == [1, 0]


# Replicas


async def test_copies_are_sent_at_once():
    """The second portal has its request when the first one, which is silent, fails."""
    async with several(3, timeout=1) as found:
        found.fakes[0].fault(stalls_after(-1), UPLOAD)
        asked: list[list[int]] = []
        copies = await upload_copies(
            found.portals, body(), 2, lambda *_: asked.append(found.takers)
        )
        assert asked == [[1, 1, 0]]
        assert set(copies.results) == set(found.portals.clients[1:])
        assert copies.is_same


async def test_another_portal_takes_the_place_of_one_that_fails():
    async with several(3) as found:
        found.fakes[0].fault(status(503), UPLOAD)
        copies = await upload_copies(found.portals, body(), 2, found.note)
        assert set(copies.results) == set(found.portals.clients[1:])
        assert list(copies.failures) == found.portals.clients[:1]


async def test_another_portal_takes_the_place_of_a_liar():
    """W3: what it has under another skylink than the proved one is no copy."""
    async with several(3) as found:
        found.fakes[0].fault(body_is(OTHER_RESULT), UPLOAD)
        copies = await upload_copies(found.portals, body(), 2, found.note)
        assert list(copies.results) == found.portals.clients[1:]
        assert list(copies.failures) == found.portals.clients[:1]


# Portals that are silent


async def test_a_silent_portal_is_left_for_the_next_one():
    """W3: its time-out of 60 s is not waited for, and its health knows."""
    async with several(2) as found:
        found.fakes[0].fault(stalls_after(-1))
        with trio.fail_after(50):
            taker, _ = await upload_to_first(found.portals, body(), found.note)
        assert taker is found.portals.clients[1]
        ((said, url),) = found.said
        assert (said.partition(" in ")[0], url) == ("no answer", found.fakes[1].url)
        await upload_to_first(found.portals, body(), found.note)
        assert found.takers == [1, 2]


async def test_a_portal_that_stops_reading_is_left():
    async with several(2) as found:
        found.fakes[0].breaks_upload = 1, "hang"
        found.fakes[0].fault(stalls_after(-1), "^HEAD ")
        with trio.fail_after(50):
            taker, _ = await upload_to_first(found.portals, large(), found.note)
        assert taker is found.portals.clients[1]


async def test_who_has_time():
    """W3: who gives a sign of life, and where nobody else can be asked."""

    async def upload(count: int, *faults: str, prepared: UploadBody) -> None:
        async with several(count) as found:
            for pattern in faults:
                found.fakes[0].fault(stalls_after(-1), pattern)
            found.fakes[0].fault(waits(4.8), UPLOAD)
            taker, _ = await upload_to_first(found.portals, prepared, found.note)
            assert taker is found.portals.clients[0]

    await run_all(
        partial(upload, 2, prepared=body()),
        partial(upload, 1, "^HEAD ", prepared=body()),
        partial(upload, 2, "^HEAD ", prepared=piped()),
    )


# Portals that ask for a pause


@pytest.mark.parametrize("count", [1, 2])
async def test_a_portal_that_asks_for_a_short_pause_is_asked_again(count: int):
    """W3, R12."""
    async with several(count) as found:
        for fake in found.fakes:
            fake.fault(asks_for_a_pause(1), UPLOAD, times=1)
        taker, _ = await upload_to_first(found.portals, body(), found.note)
        assert taker is found.portals.clients[0]
        assert sum(found.takers) == count + 1
        assert found.said[-1] == ("slow down", taker.url)


async def test_a_long_pause_is_not_waited_for():
    """W3: the error says when the portal may be asked again."""
    async with several(2) as found:
        found.fakes[0].fault(asks_for_a_pause(40), UPLOAD)
        found.fakes[1].fault(status(500, "broken"), UPLOAD)
        with trio.fail_after(30), pytest.raises(PortalError) as failure:
            await upload_to_first(found.portals, body(), found.note)
        again = f"{found.fakes[0].url} may be asked again in "
        assert again in failure.value.advice
        assert found.takers == [1, 1]


async def test_a_pipe_that_is_gone_waits_for_nobody():
    async with several(1) as found:
        found.fakes[0].fault(asks_for_a_pause(1), UPLOAD)
        with pytest.raises(UnavailableError, match="slow down"):
            await upload_to_first(found.portals, piped(), found.note)
        assert found.takers == [1]
