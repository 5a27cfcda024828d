"""Uploads that go to the next portal (docs/semantics.md, W3)."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio

from skymount.concurrency import run_all
from skymount.errors import (
    BadContentError,
    DisprovedError,
    PortalError,
    ReadOnlyPortalError,
    RequestRefusedError,
    UnavailableError,
)
from skymount.portal.client.upload import UploadBody
from skymount.portal.client.upload_source import UploadSource
from skymount.portal.uploads.upload import upload_copies
from skymount.wire.metadata import Metadata, Subfile, encode_metadata
from tests.fakes.portal import Reply, asks_for_a_pause, body_is, stalls_after, status, waits
from tests.fakes.skyfiles import noise, of_files, of_metadata
from tests.portal.uploads.several import (
    FILE,
    OTHER,
    OTHER_RESULT,
    UPLOAD,
    body,
    large,
    piped,
    result_of,
    several,
)

SOURCE = UploadSource.of_bytes(bytes(24 << 20), "a.txt")


@pytest.mark.parametrize("code", [401, 402, 403, 404, 411, 413, 429, 451, 500, 503])
async def test_a_refusal_leads_to_the_next_portal(code: int):
    async with several(2) as found:
        found.fakes[0].fault(status(code, "not here"), UPLOAD)
        taker = await found.upload(body())
        assert taker is found.portals.clients[1]
        assert found.takers == [1, 1]
        assert found.said == [("not here", found.fakes[1].url)]


async def test_a_request_that_is_wrong_is_wrong_everywhere():
    async with several(2) as found:
        found.fakes[0].fault(status(400, "bad name"), UPLOAD)
        with pytest.raises(RequestRefusedError, match="bad name"):
            await found.upload(body())
        assert found.takers == [1, 0]


async def test_the_error_is_that_of_the_last_portal():
    async with several(3) as found:
        for number, fake in enumerate(found.fakes):
            fake.fault(status(503, f"down {number}"), UPLOAD)
        with pytest.raises(UnavailableError, match="down 2"):
            await found.upload(body())
        assert [said for said, _ in found.said] == ["down 0", "down 1"]


async def test_a_portal_that_is_known_to_fail_comes_last():
    async with several(2) as found:
        found.fakes[0].fault(status(503), UPLOAD, times=1)
        await found.upload(body())
        await found.upload(body())
        assert found.takers == [1, 2]


async def test_a_portal_that_works_again_is_used():
    """R11: though nothing but uploads asks it."""
    async with several(2) as found:
        found.fakes[0].fault(status(503), UPLOAD, times=1)
        with trio.fail_after(50):
            while await found.upload(body()) is not found.portals.clients[0]:
                await trio.sleep(0.1)


async def test_a_read_only_portal_gets_nothing():
    """W2."""
    async with several(3, 0, 2) as found:
        found.fakes[1].fault(status(503), UPLOAD)
        with pytest.raises(UnavailableError):
            await found.upload(body())
        assert found.takers == [0, 1, 0]
    async with several(1, 0) as found:
        with pytest.raises(ReadOnlyPortalError):
            await found.upload(body())


@pytest.mark.parametrize("name", ["skykeyname", "skykeyid"])
async def test_what_a_portal_encrypts_goes_to_no_other(name: str):
    async with several(2) as found:
        found.fakes[0].fault(status(503), UPLOAD)
        with pytest.raises(UnavailableError):
            await found.upload(body([(name, "x")]))
        assert found.takers == [1, 0]


async def test_a_file_that_changed_its_size_is_an_error(tmp_path: Path):
    """Not the next portal's fault: it is not asked."""
    file = tmp_path / "a.txt"
    file.write_bytes(b"before")
    prepared = UploadBody.of_path(file)
    file.write_bytes(b"longer than before")
    async with several(2) as found:
        with pytest.raises(OSError, match="holds more than its size of 6 bytes"):
            await found.upload(prepared)


async def test_a_file_that_changed_between_two_attempts(tmp_path: Path):
    """W3: a portal gets what is in a large one then; a small one is read once."""
    file = tmp_path / "a.txt"
    for size, expected in ((5, b"before"), (5 << 20, b"after!")):
        before, after = (text * size for text in (b"before", b"after!"))
        async with several(2) as found:
            found.fakes[1].add(of_files({"a.txt": before}), of_files({"a.txt": after}))
            found.fakes[0].fault(status(503), UPLOAD)
            file.write_bytes(before)
            prepared = UploadBody.of_path(file)
            note = partial(_write, file, after)
            copies = await upload_copies(found.portals, prepared, 1, note)
            assert list(copies.results) == found.portals.clients[1:]
            assert expected * size in found.fakes[1].asked(UPLOAD)[0].body


def _write(file: Path, content: bytes, *_: object) -> None:
    file.write_bytes(content)


async def test_a_file_that_changed_its_size_between_two_attempts(tmp_path: Path):
    file = tmp_path / "a.txt"
    file.write_bytes(bytes(5 << 20))
    async with several(2) as found:
        found.fakes[0].fault(status(503), UPLOAD)
        prepared = UploadBody.of_path(file)
        with pytest.raises(OSError, match=r"a\.txt: became shorter while it was read"):
            await upload_copies(found.portals, prepared, 1, partial(_write, file, b"less"))


async def test_a_pipe_is_sent_to_one_portal():
    """W3: once it is read, a failure is final, and says so."""
    async with several(2) as found:
        found.fakes[0].fault(status(503, "down"), UPLOAD)
        with pytest.raises(UnavailableError, match=r"^down; a pipe cannot be sent again"):
            await found.upload(piped())
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
        assert copies.agreed(2).skylink == FILE.skylink


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


# Wrong skylinks


@pytest.mark.parametrize("shown", ["nothing", "something else"])
async def test_a_portal_that_gives_a_wrong_skylink_is_left(shown: str):
    """W3, W4: it is named, and comes last for a while."""
    async with several(2) as found:
        if shown != "nothing":
            found.fakes[0].add(OTHER)
        found.fakes[0].fault(body_is(OTHER_RESULT), UPLOAD)
        taker = await found.upload(body())
        assert taker is found.portals.clients[1]
        said = f"it gave the upload the skylink {OTHER.skylink}, and has {shown} there"
        assert found.said == [(said, found.fakes[1].url)]
        await found.upload(body())
        assert found.takers == [1, 2]


async def test_a_wrong_skylink_of_large_content():
    async with several(2) as found:
        found.fakes[0].fault(body_is(OTHER_RESULT), UPLOAD)
        assert await found.upload(large()) is found.portals.clients[1]


@pytest.mark.parametrize("prepared", [body, piped, large])
async def test_the_only_portal_gives_a_wrong_skylink(prepared: Callable[[], UploadBody]):
    """W4: nobody has it."""
    async with several(1) as found:
        found.fakes[0].fault(body_is(OTHER_RESULT), UPLOAD)
        with pytest.raises(DisprovedError, match=f"{OTHER.skylink}, and has nothing there"):
            await found.upload(prepared())


async def test_the_computed_skylink_is_not_looked_for():
    """W4."""
    stored = encode_metadata(
        Metadata("a.txt", 5, subfiles={"a.txt": Subfile(0, "a.txt", "text/plain", 0, 5)})
    )
    async with several(1) as found:
        found.fakes[0].fault(body_is(result_of(of_metadata(stored, b"hello"))), UPLOAD)
        await found.upload(body())
        assert len(found.fakes[0].requests) == 1


async def test_a_skylink_that_nothing_shows():
    """W4: it is taken if no other portal gives a right one; the caller can say so."""
    async with several(2) as found:
        found.fakes[0].fault(status(403), "^(HEAD|GET) ")
        copies = await upload_copies(found.portals, body(), 1, found.note)
        assert list(copies.results) == found.portals.clients  # as both gave the same
        assert (copies.doubt, list(copies.failures)) == ("", [])
        found.fakes[1].fault(status(503))
        copies = await upload_copies(found.portals, body(), 1, found.note)
        assert list(copies.results) == found.portals.clients[:1]
        url = found.fakes[0].url
        said = f"nothing proves that the skylink is right: {url} has {FILE.skylink}"
        assert copies.doubt == said


@pytest.mark.parametrize("has_other", [False, True])
async def test_skylinks_that_nothing_shows_and_differ(has_other: bool):
    """W4: it fails, and says what each portal said; a right one counts."""
    async with several(3) as found:
        for fake in found.fakes[:2]:
            fake.fault(status(403), "^(HEAD|GET) ")
        found.fakes[0].fault(body_is(OTHER_RESULT), UPLOAD)
        if not has_other:
            found.fakes[2].fault(status(503), UPLOAD)
        copies = await upload_copies(found.portals, body(), 1, found.note)
        if has_other:
            assert copies.agreed().skylink == FILE.skylink
            assert found.portals.clients[0] in copies.failures
            return
        claims = zip(found.fakes, (OTHER, FILE), strict=False)
        said = ", ".join(f"{fake.url} has {claim.skylink}" for fake, claim in claims)
        with pytest.raises(BadContentError) as failure:
            copies.agreed()
        assert failure.value.message == (
            "the portals gave it different skylinks, and none of them proved it: "
            f"{said}; leave out the portal that is wrong (--portal, `portals` in the configuration)"
        )


@pytest.mark.parametrize("query", [("skykeyname", "x"), ("dryrun", "true")])
async def test_what_cannot_be_shown(query: tuple[str, str]):
    """W4: it is the portal's word, without a request, and without a doubt of what is large."""
    async with several(1) as found:
        found.fakes[0].has_other_layout = True
        for prepared in (body([query]), UploadBody([SOURCE], query=[query])):
            copies = await upload_copies(found.portals, prepared, 1, found.note)
            is_computed = query[0] == "dryrun" and prepared.content_size == 5
            assert bool(copies.doubt) == is_computed
        assert found.takers == [len(found.fakes[0].requests)]


async def test_the_first_proved_skylink_of_large_content_counts():
    """W3, W4: portals that store it in different layouts; the next portal takes the place."""
    sent = {"a.txt": noise(9 << 20)}
    one, two = (of_files(sent, pieces=pieces) for pieces in (1, 10))
    async with several(3) as found:
        for fake, held in zip(found.fakes, (one, two, one), strict=True):
            fake.add(held)
        prepared = UploadBody([UploadSource.of_bytes(sent["a.txt"], "a.txt")])
        copies = await upload_copies(found.portals, prepared, 2, found.note)
        assert copies.agreed(2).skylink == one.skylink
        said = f"it has the upload as {two.skylink}, and {one.skylink} is proved"
        assert [(each.url, why.message) for each, why in copies.failures.items()] == [
            (found.fakes[1].url, said)
        ]


def _answer(answer: Reply, *_: object) -> Reply:
    return answer


async def test_the_first_of_two_right_skylinks_counts():
    """W3, W4: portals that note a start page by themselves, and one that does not."""
    files = {"a.txt": Subfile(0, "a.txt", "text/plain", 0, 5)}
    plain, noted = (
        encode_metadata(Metadata("a.txt", 5, subfiles=files, tryfiles=tryfiles))
        for tryfiles in ((), ("index.html",))
    )
    async with several(3) as found:
        for fake, metadata in zip(found.fakes, (noted, plain, noted), strict=True):
            delay = 2.0 if metadata is plain else 0.0
            answer = Reply(body=result_of(of_metadata(metadata, b"hello")), delay=delay)
            fake.fault(partial(_answer, answer), UPLOAD)
        copies = await upload_copies(found.portals, body(), 2, found.note)
        assert copies.agreed(2).skylink == of_metadata(noted, b"hello").skylink
        assert list(copies.failures) == found.portals.clients[1:2]


# Portals that are silent


async def test_a_silent_portal_is_left_for_the_next_one():
    """W3: its time-out of 60 s is not waited for, and its health knows."""
    async with several(2) as found:
        found.fakes[0].fault(stalls_after(-1))
        with trio.fail_after(50):
            taker = await found.upload(body())
        assert taker is found.portals.clients[1]
        ((said, url),) = found.said
        assert (said.partition(" in ")[0], url) == ("no answer", found.fakes[1].url)
        await found.upload(body())
        assert found.takers == [1, 2]


async def test_a_portal_that_stops_reading_is_left():
    async with several(2) as found:
        found.fakes[0].breaks_upload = 1, "hang"
        found.fakes[0].fault(stalls_after(-1), "^HEAD ")
        with trio.fail_after(50):
            taker = await found.upload(large())
        assert taker is found.portals.clients[1]


async def test_a_portal_that_takes_it_slowly_is_not_left():
    """W3: though it gives no other sign of life, and the kernel has all of it at once."""
    async with several(2) as found:
        found.fakes[0].takes = 128 << 10, 0.1
        found.fakes[0].fault(stalls_after(-1), "^HEAD /$")
        content = bytes(3 << 20)
        for fake in found.fakes:
            fake.add(of_files({"a.txt": content}))
        prepared = UploadBody([UploadSource.of_bytes(content, "a.txt")])
        assert await found.upload(prepared) is found.portals.clients[0]


async def test_who_has_time():
    """W3: who gives a sign of life, and where nobody else can be asked."""

    async def upload(count: int, *faults: str, prepared: UploadBody) -> None:
        async with several(count) as found:
            for pattern in faults:
                found.fakes[0].fault(stalls_after(-1), pattern)
            found.fakes[0].fault(waits(4.8), UPLOAD)
            taker = await found.upload(prepared)
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
        taker = await found.upload(body())
        assert taker is found.portals.clients[0]
        assert sum(found.takers) == count + 1
        assert found.said[-1] == ("slow down", taker.url)


async def test_a_long_pause_is_not_waited_for():
    """W3: the error says when the portal may be asked again."""
    async with several(2) as found:
        found.fakes[0].fault(asks_for_a_pause(40), UPLOAD)
        found.fakes[1].fault(status(500, "broken"), UPLOAD)
        with trio.fail_after(30), pytest.raises(PortalError) as failure:
            await found.upload(body())
        again = f"{found.fakes[0].url} may be asked again in "
        assert again in failure.value.advice
        assert found.takers == [1, 1]


async def test_a_pipe_that_is_gone_waits_for_nobody():
    async with several(1) as found:
        found.fakes[0].fault(asks_for_a_pause(1), UPLOAD)
        with pytest.raises(UnavailableError, match="slow down"):
            await found.upload(piped())
        assert found.takers == [1]
