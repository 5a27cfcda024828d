"""Uploads with several portals (docs/semantics.md, W3)."""

import io
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio

from skymount.errors import (
    BadContentError,
    MalformedError,
    PortalError,
    ReadOnlyPortalError,
    RequestRefusedError,
    UnavailableError,
)
from skymount.portal.client.base import PortalReader
from skymount.portal.client.upload import UploadBody
from skymount.portal.client.upload_source import UploadSource
from skymount.portal.client.upload_spool import UploadSpool
from skymount.portal.failover.portals import Portals
from skymount.portal.uploads import upload_copies, upload_to_all, upload_to_first
from skymount.wire.http.responses import UploadResult
from tests.fakes.portal import FakePortal, body_is, running, stalls_after, status, waits
from tests.fakes.skyfiles import of_files

FILE = of_files({"a.txt": b"hello"})
OTHER_RESULT = UploadResult(of_files({"b.txt": b"something else"}).skylink).encode()
UPLOAD = "^POST "


@dataclass
class Several:
    """Fake portals, and what was said of those that failed."""

    fakes: list[FakePortal]
    portals: Portals
    said: list[tuple[str, str]] = field(default_factory=list)

    def note(self, error: PortalError, then: PortalReader) -> None:
        self.said.append((error.message, then.url))

    @property
    def takers(self) -> list[int]:
        """The number of uploads that each portal was sent."""
        return [len(fake.asked(UPLOAD)) for fake in self.fakes]


@asynccontextmanager
async def several(count: int, *read_only: int, timeout: float = 60) -> AsyncIterator[Several]:
    """Run so many portals, of which some are read-only."""
    async with AsyncExitStack() as stack:
        fakes, clients = [], []
        for number in range(count):
            fake = await stack.enter_async_context(running(FakePortal()))
            fake.add(FILE)
            client = PortalReader(
                fake.url, retries=0, timeout=timeout, read_only=number in read_only
            )
            fakes.append(fake)
            clients.append(await stack.enter_async_context(client))
        yield Several(fakes, Portals(clients))


def body(query: list[tuple[str, str]] | None = None) -> UploadBody:
    return UploadBody([UploadSource.of_bytes(b"hello", "a.txt")], query=query or [])


@contextmanager
def piped(limit: int) -> Iterator[UploadBody]:
    """Prepare a pipe, of which so many bytes are kept."""
    with closing(UploadSpool(io.BytesIO(b"piped"), limit)) as spool:
        yield UploadBody([UploadSource.of_spool(spool, "a.txt")])


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
        with pytest.raises(MalformedError, match="holds more than its size of 6 bytes"):
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
        with pytest.raises(MalformedError, match=r"a\.txt: became shorter while it was read"):
            await upload_to_first(found.portals, prepared, lambda *_: file.write_bytes(b"less"))


async def test_a_pipe_is_sent_again_within_its_bound():
    async with several(2) as found:
        found.fakes[0].fault(status(503), UPLOAD)
        with piped(5) as prepared:
            await upload_to_first(found.portals, prepared, found.note)
        assert b"piped" in found.fakes[1].asked(UPLOAD)[0].body


async def test_beyond_its_bound_the_first_failure_of_a_pipe_is_final():
    async with several(2) as found:
        found.fakes[0].fault(status(503, "down"), UPLOAD)
        said = "down; it cannot be sent again: only its first 4 bytes"
        with piped(4) as prepared, pytest.raises(UnavailableError, match=said):
            await upload_to_first(found.portals, prepared, found.note)
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


@pytest.mark.parametrize("limit", [5, 4])
async def test_copies_of_a_pipe_are_sent_one_after_the_other(limit: int):
    """Beyond its bound there is one copy only."""
    async with several(2) as found:
        with piped(limit) as prepared:
            copies = await upload_copies(found.portals, prepared, 2, found.note)
        count = 2 if limit == 5 else 1
        assert list(copies.results) == found.portals.clients[:count]
        assert [b"piped" in fake.requests[0].body for fake in found.fakes[:count]] == [True] * count


async def test_portals_that_name_it_differently():
    async with several(2) as found:
        found.fakes[1].fault(body_is(OTHER_RESULT), UPLOAD)
        copies = await upload_copies(found.portals, body(), 2, found.note)
        assert not copies.is_same


# To all portals


async def test_all_portals_get_it():
    async with several(3, 1) as found:
        copies = await upload_to_all(found.portals, body(), 1, patience=20)
        assert set(copies.results) == {found.portals.clients[0], found.portals.clients[2]}
        assert copies.failures == {}
        assert copies.agreed(2) == FILE.skylink
        assert copies.lacking(FILE.skylink) == []
        assert found.takers == [1, 0, 1]


async def test_portals_that_fail_lack_it():
    async with several(3) as found:
        found.fakes[0].fault(status(503), UPLOAD)
        found.fakes[1].fault(status(403), UPLOAD)
        copies = await upload_to_all(found.portals, body(), 1, patience=20)
        assert copies.agreed(1) == FILE.skylink
        assert set(copies.lacking(FILE.skylink)) == {each.url for each in found.fakes[:2]}


@pytest.mark.parametrize("then", ["stall", "hang"])
async def test_a_silent_portal_is_left_once_enough_have_it(then: str):
    """Its health knows: the next upload does not wait for it."""
    async with several(2) as found:
        found.fakes[0].breaks_upload = 1, then
        with trio.fail_after(60):
            copies = await upload_to_all(found.portals, large(), 1, patience=1.5)
            assert copies.lacking(FILE.skylink) == [found.fakes[0].url]
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


async def test_rounds_while_too_few_have_it():
    async with several(2) as found:
        found.fakes[0].fault(status(503, "busy"), UPLOAD, times=2)
        found.fakes[1].fault(status(403), UPLOAD)
        copies = await upload_to_all(found.portals, body(), 1, patience=20, rounds=3)
        assert found.takers == [3, 1]  # a refusal is final
        assert copies.lacking(copies.agreed(1)) == [found.fakes[1].url]


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


async def test_most_portals_decide_about_the_skylink():
    async with several(3) as found:
        found.fakes[0].fault(body_is(OTHER_RESULT), UPLOAD)
        copies = await upload_to_all(found.portals, body(), 3, patience=20)
        assert copies.agreed(2) == FILE.skylink
        assert copies.lacking(FILE.skylink) == [found.fakes[0].url]
        with pytest.raises(BadContentError, match="different skylinks"):
            copies.agreed(3)


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


def large() -> UploadBody:
    """Return more than sockets hold."""
    return UploadBody([UploadSource.of_bytes(bytes(24 << 20), "a.txt")])
