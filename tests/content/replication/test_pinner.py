"""Content comes to a portal unless that has it (docs/semantics.md, W6).

The tests of the command have the rest.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from skymount.content.replication.pinner import Pinned, Pinner
from skymount.errors import BadContentError, DisprovedError, UnreplicableError
from tests.fakes.content_stack import open_at
from tests.fakes.portal import FakePortal, flips, running, status
from tests.fakes.skyfiles import FakeSkyfile, of_files, plain, sealed
from tests.portal_process import running_portal

SMALL = of_files({"a": b"small"})
UPLOAD = "^POST .*skyfile"


@asynccontextmanager
async def pinning(
    source: str, target: str, place: Path, warn: Callable[[str], None] = pytest.fail
) -> AsyncIterator[Pinner]:
    """Bring content from one portal to another."""
    async with open_at(source) as here, open_at(target) as there:
        yield Pinner(here, there, place, warn)


@asynccontextmanager
async def between_fakes(
    place: Path, here: FakeSkyfile, there: FakeSkyfile
) -> AsyncIterator[tuple[Pinner, FakePortal, FakePortal]]:
    """Bring content of one portal to another one that shows `there` under its skylink."""
    async with running(FakePortal()) as source, running(FakePortal()) as target:
        source.add(here)
        target.resolve(here.skylink, there)
        async with pinning(source.url, target.url, place) as pinner:
            yield pinner, source, target


async def test_it_is_sent_once(tmp_path: Path) -> None:
    """W6: and large content leaves nothing behind."""
    content = of_files({"a": bytes(9 << 20)})
    with running_portal(tmp_path) as target:
        async with running(FakePortal()) as source:
            source.add(content)
            sent: list[tuple[int, int | None]] = []
            async with pinning(source.url, target, tmp_path / "pin") as pinner:
                for was_there in (False, True):
                    found = await pinner.pin(content.skylink, lambda *each: sent.append(each))
                    assert found == Pinned(content.skylink, 9 << 20, was_there, is_pinned=True)
    assert sent[-1][0] == sent[-1][1]
    assert list((tmp_path / "pin").iterdir()) == []


@pytest.mark.parametrize("content", [SMALL, sealed({"a": b"secret"})], ids=["plain", "encrypted"])
async def test_the_source_is_not_asked_for_what_is_there(
    tmp_path: Path, content: FakeSkyfile
) -> None:
    """W6: encrypted content is proved as it is stored."""
    async with between_fakes(tmp_path, content, content) as (pinner, source, target):
        assert (await pinner.pin(content.skylink)).was_there
        assert (source.requests, target.asked(UPLOAD)) == ([], [])


async def test_a_target_that_lies(tmp_path: Path) -> None:
    """W6: what is there is believed only with a proof, also after it was sent again."""
    async with between_fakes(tmp_path, SMALL, SMALL) as (pinner, _, target):
        target.fault(flips(500), "basesector")
        with pytest.raises(DisprovedError):
            await pinner.pin(SMALL.skylink)


async def test_what_neither_side_proves(tmp_path: Path) -> None:
    """W6: the same description is not enough if the source does not prove it."""
    content = plain(1000)
    async with between_fakes(tmp_path, content, content) as (pinner, _, target):
        with pytest.raises(BadContentError, match="shows something under this skylink"):
            await pinner.pin(content.skylink)
        assert target.asked(UPLOAD) == []


async def test_encrypted_content_is_called_so(tmp_path: Path) -> None:
    content = sealed({"a": b"secret"})
    async with running(FakePortal()) as source, running(FakePortal()) as target:
        source.add(content)
        async with pinning(source.url, target.url, tmp_path) as pinner:
            with pytest.raises(UnreplicableError, match="a portal encrypted it"):
                await pinner.pin(content.skylink)
        assert target.asked(UPLOAD) == []


@pytest.mark.parametrize("proves", [True, False])
async def test_an_answer_that_was_lost(tmp_path: Path, proves: bool) -> None:
    """W6: what is kept is removed once the target is found to have the content."""
    content = of_files({"a": bytes(5 << 20)}, fan_out=True)
    async with running(FakePortal()) as source, running(FakePortal(base_sectors=proves)) as target:
        source.add(content)
        target.fault(status(400, "what?"), "^POST .*skyfile(?!.*dryrun)")
        async with pinning(source.url, target.url, tmp_path) as pinner:
            with pytest.raises(Exception, match=r"what\?"):
                await pinner.pin(content.skylink)
            assert (tmp_path / content.name).is_dir()
            target.add(content)
            assert (await pinner.pin(content.skylink)).was_there
    assert list(tmp_path.iterdir()) == []


async def test_what_was_fetched_stays_after_a_failure(tmp_path: Path) -> None:
    """W6: until the next attempt."""
    content = of_files({"a": bytes(5 << 20)})
    async with running(FakePortal()) as source, running(FakePortal()) as target:
        source.add(content)
        target.fault(status(400, "not now"), "^POST .*skyfile(?!.*dryrun)")
        async with pinning(source.url, target.url, tmp_path) as pinner:
            with pytest.raises(Exception, match="not now"):
                await pinner.pin(content.skylink)
    assert (tmp_path / content.name / "content/v1").is_dir()


@pytest.mark.parametrize(("code", "warnings"), [(404, 0), (403, 0), (405, 0), (507, 1)])
async def test_a_target_that_does_not_pin(tmp_path: Path, code: int, warnings: int) -> None:
    """W6: it has the content all the same."""
    warned: list[str] = []
    async with running(FakePortal()) as source, running(FakePortal()) as target:
        for portal in (source, target):
            portal.add(SMALL)
        target.fault(status(code, "no room"), "^POST .*/pin/")
        async with pinning(source.url, target.url, tmp_path, warned.append) as pinner:
            found = await pinner.pin(SMALL.skylink)
    assert (found.was_there, found.is_pinned) == (True, False)
    assert len(warned) == warnings
    assert all("not pinned there" in text and "no room" in text for text in warned)
