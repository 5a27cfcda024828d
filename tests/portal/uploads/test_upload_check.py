"""Portals that give the same upload different skylinks (docs/semantics.md, W4)."""

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from skymount.errors import BadContentError
from skymount.portal.client.base import PortalReader
from skymount.portal.client.upload import DIRECTORY_FIELD, UploadBody
from skymount.portal.client.upload_source import UploadSource
from skymount.portal.uploads.copies import Copies
from skymount.portal.uploads.upload_check import proves, settle
from skymount.wire.http.responses import UploadResult
from tests.fakes.portal import FakePortal, flips, running, stalls_after, status
from tests.fakes.skyfiles import FakeSkyfile, encrypted, noise, of_files, packed, resolver
from tests.portal.uploads.several import FILE, Several, body, piped, several

OTHER = of_files({"b.txt": b"something else"})
SMALL = {"a.txt": b"hello"}
SITE = {"index.html": b"<p>", "img/x": noise(70_000), "empty": b""}
LARGE = {"a": noise(9 << 20), "b": noise(5, 2)}


def body_of(files: Mapping[str, bytes]) -> UploadBody:
    sources = [UploadSource.of_bytes(content, name) for name, content in files.items()]
    return UploadBody(sources, field=DIRECTORY_FIELD, dirname="site")


@asynccontextmanager
async def portal_with(*skyfiles: FakeSkyfile) -> AsyncIterator[tuple[FakePortal, PortalReader]]:
    async with running(FakePortal()) as fake, PortalReader(fake.url, retries=0) as portal:
        fake.add(*skyfiles)
        yield fake, portal


@pytest.mark.parametrize("files", [SMALL, SITE, LARGE])
@pytest.mark.parametrize("pieces", [1, 10])
async def test_what_was_sent(files: Mapping[str, bytes], pieces: int):
    """Whatever the metadata are besides names and sizes, and however portals spread content."""
    held = of_files(files, pieces=pieces)
    async with portal_with(held) as (_, portal):
        assert await proves(portal, held.skylink, body_of(files))


@pytest.mark.parametrize(
    "other",
    [
        {"a": LARGE["a"][:-1] + b"!", "b": LARGE["b"]},
        {"a": LARGE["a"], "c": LARGE["b"]},
        {"a": LARGE["a"]},
        {**LARGE, "c": b"more"},
        {"b": LARGE["b"], "a": LARGE["a"]},
        SMALL,
    ],
    ids=["a byte", "a name", "a file less", "a file more", "the order", "other"],
)
async def test_something_else(other: Mapping[str, bytes]):
    held = of_files(other)
    async with portal_with(held) as (_, portal):
        assert not await proves(portal, held.skylink, body_of(LARGE))


async def test_nothing_is_there():
    async with portal_with() as (_, portal):
        assert not await proves(portal, of_files(SMALL).skylink, body_of(SMALL))


async def test_a_wrong_proof():
    held = of_files(SMALL)
    async with portal_with(held) as (fake, portal):
        fake.fault(flips(200))
        assert not await proves(portal, held.skylink, body_of(SMALL))


async def test_without_base_sectors():
    """Small content is proved by its parts, larger content not at all."""
    small, large = of_files(SMALL), of_files(LARGE)
    async with portal_with(small, large) as (fake, portal):
        fake.base_sectors = False
        assert await proves(portal, small.skylink, body_of(SMALL))
        assert not await proves(portal, large.skylink, body_of(LARGE))


@pytest.mark.parametrize("held", [encrypted(SMALL), packed(SMALL)])
async def test_what_proves_nothing(held: FakeSkyfile):
    async with portal_with(held) as (_, portal):
        assert not await proves(portal, held.skylink, body_of(SMALL))


async def test_a_link_that_can_change():
    """It names no content, wherever it leads now."""
    link, held = resolver(), of_files(SMALL)
    async with portal_with() as (fake, portal):
        fake.resolve(link, held)
        assert not await proves(portal, link, body_of(SMALL))


async def test_a_portal_that_fails_or_hangs():
    held = of_files(LARGE)
    async with portal_with(held) as (fake, portal):
        fake.fault(status(503, "down"), times=1)
        assert not await proves(portal, held.skylink, body_of(LARGE))
        fake.fault(stalls_after(-1))
        with trio.fail_after(60):
            assert not await proves(portal, held.skylink, body_of(LARGE))


# Which one counts


def copies_of(found: Several, *claims: FakeSkyfile) -> Copies:
    clients = found.portals.clients
    return Copies(
        {each: UploadResult(claim.skylink) for each, claim in zip(clients, claims, strict=True)}
    )


async def test_nobody_is_asked_in_vain():
    """Portals that agree, and what cannot be compared: encrypted content, and a pipe."""
    async with several(2) as found:
        await settle(body(), copies_of(found, FILE, FILE))
        await settle(body([("skykeyname", "x")]), copies_of(found, OTHER, FILE))
        await settle(piped(), copies_of(found, OTHER, FILE))
        assert [fake.requests for fake in found.fakes] == [[], []]


@pytest.mark.parametrize("has_other", [False, True])
async def test_the_proved_skylink_counts(has_other: bool, caplog: pytest.LogCaptureFixture):
    """W4: however many portals gave another one; they lack the content."""
    async with several(3) as found:
        if has_other:
            found.fakes[0].add(OTHER)
            found.fakes[1].add(OTHER)
        copies = copies_of(found, OTHER, OTHER, FILE)
        with caplog.at_level(logging.WARNING):
            await settle(body(), copies)
        urls = [each.url for each in found.fakes[:2]]
        assert copies.agreed(1) == FILE.skylink
        assert copies.lacking == urls
        said = f"it has the upload as {OTHER.skylink}, and {FILE.skylink} is proved"
        assert [record.message for record in caplog.records] == [f"{said} ({url})" for url in urls]


async def test_the_first_proved_skylink_counts():
    """W4: portals that store it in different layouts both prove theirs."""
    one, two = of_files(LARGE, pieces=1), of_files(LARGE, pieces=10)
    async with several(2) as found:
        found.fakes[0].add(one)
        found.fakes[1].add(two)
        copies = copies_of(found, one, two)
        await settle(body_of(LARGE), copies)
        assert (copies.agreed(1), copies.lacking) == (one.skylink, [found.fakes[1].url])


async def test_nobody_proves_anything():
    """W4: it fails, and says what each portal said; the number of portals decides nothing."""
    async with several(3) as found:
        for fake in found.fakes:
            fake.base_sectors = fake.metadata_header = fake.metadata_endpoint = False
            fake.add(OTHER)
        copies = copies_of(found, OTHER, FILE, FILE)
        await settle(body(), copies)
        claims = zip(found.fakes, (OTHER, FILE, FILE), strict=True)
        said = ", ".join(f"{fake.url} has {claim.skylink}" for fake, claim in claims)
        with pytest.raises(BadContentError) as failure:
            copies.agreed(1)
        assert failure.value.message == (
            "the portals gave it different skylinks, and none of them proved it: "
            f"{said}; leave out the portal that is wrong (--portal, `portals` in the configuration)"
        )


async def test_a_file_that_is_gone():
    """It is nobody's fault, and an error."""
    source = UploadSource(Path("/nonexistent"), "a.txt", 5)
    async with several(2) as found:
        with pytest.raises(FileNotFoundError):
            await settle(UploadBody([source]), copies_of(found, OTHER, FILE))
