"""Whether a portal has what was uploaded under the skylink that it gave."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
import trio

from skymount.errors import DisprovedError, PortalError, PortalTimeoutError
from skymount.portal.client.base import PortalReader
from skymount.portal.client.upload import DIRECTORY_FIELD, UploadBody
from skymount.portal.client.upload_source import UploadSource
from skymount.portal.uploads.upload_check import check_upload
from tests.fakes.portal import FakePortal, flips, running, stalls_after, status
from tests.fakes.skyfiles import FakeSkyfile, encrypted, noise, of_files, packed, resolver

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
        assert await check_upload(portal, held.skylink, body_of(files))


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
        with pytest.raises(DisprovedError, match="has other content there"):
            await check_upload(portal, held.skylink, body_of(LARGE))


async def test_nothing_is_there():
    async with portal_with() as (_, portal):
        with pytest.raises(DisprovedError, match="has nothing there"):
            await check_upload(portal, of_files(SMALL).skylink, body_of(SMALL))


async def test_a_wrong_proof():
    held = of_files(SMALL)
    async with portal_with(held) as (fake, portal):
        fake.fault(flips(200))
        with pytest.raises(DisprovedError, match="cannot show that"):
            await check_upload(portal, held.skylink, body_of(SMALL))


async def test_without_base_sectors():
    """Small content is proved by its parts, larger content not at all."""
    small, large = of_files(SMALL), of_files(LARGE)
    async with portal_with(small, large) as (fake, portal):
        fake.base_sectors = False
        assert await check_upload(portal, small.skylink, body_of(SMALL))
        assert not await check_upload(portal, large.skylink, body_of(LARGE))


@pytest.mark.parametrize("held", [encrypted(SMALL), packed(SMALL)])
async def test_what_proves_nothing(held: FakeSkyfile):
    async with portal_with(held) as (_, portal):
        assert not await check_upload(portal, held.skylink, body_of(SMALL))


async def test_a_link_that_can_change():
    """It names no content, wherever it leads now."""
    link, held = resolver(), of_files(SMALL)
    async with portal_with() as (fake, portal):
        fake.resolve(link, held)
        assert not await check_upload(portal, link, body_of(SMALL))


async def test_a_portal_that_fails_or_hangs(monkeypatch: pytest.MonkeyPatch):
    held = of_files(LARGE)
    async with portal_with(held) as (fake, portal):
        fake.fault(status(503, "down"), times=1)
        with pytest.raises(PortalError, match="down"):
            await check_upload(portal, held.skylink, body_of(LARGE))
        fake.fault(stalls_after(-1))
        with trio.fail_after(60), pytest.raises(PortalTimeoutError, match=r"no proof of .* in 5 s"):
            await check_upload(portal, held.skylink, body_of(LARGE))
