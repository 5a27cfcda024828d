"""Whether a portal has what was uploaded, under the skylink that it gave it (W4)."""

import base64
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from skymount.errors import DisprovedError
from skymount.portal.client.base import PortalReader
from skymount.portal.client.upload import DIRECTORY_FIELD, UploadBody, send, upload_query
from skymount.portal.client.upload_source import UploadSource
from skymount.portal.uploads.claims import check, computed
from skymount.wire.skylink import SECTOR_SIZE, Skylink
from tests.fakes.portal import FakePortal, flips, running, stalls_after, status
from tests.fakes.skyfiles import FakeSkyfile, encrypted, noise, of_files, packed, resolver
from tests.portal_process import PortalProcess

VECTORS = json.loads((Path(__file__).parents[2] / "data/vectors.json").read_text())
SMALL = {"a.txt": b"hello"}
SITE = {"index.html": b"<p>", "img/x": noise(70_000), "empty": b""}
LARGE = {"a": noise(9 << 20), "b": noise(5, 2)}


def skylink_vectors() -> list[dict[str, str]]:
    """Return what the network of the time stored as one file of a form."""
    known = VECTORS["content_to_skylink"]
    return [each for each in known if each.get("quoted") and "content_base64" in each]


@pytest.mark.parametrize("vector", skylink_vectors(), ids=lambda each: each["skylink"])
def test_known_skylinks(vector: dict[str, str]):
    """They are those of deployed portals."""
    metadata = json.loads(vector["metadata"])
    content = base64.b64decode(vector["content_base64"])
    name = metadata["filename"]
    kind = metadata["subfiles"][name]["contenttype"]
    source = UploadSource.of_bytes(content, name, contenttype=kind)
    assert Skylink(vector["skylink"]) in computed(UploadBody([source]))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"default_path": "b.html"},
        {"disable_default_path": True},
        {"try_files": ["b.html"]},
        {"try_files": [], "error_pages": {404: "/b.html"}},
    ],
    ids=lambda each: " ".join(each) or "none",
)
async def test_as_our_portal_computes_it(
    portal: PortalProcess, tmp_path: Path, options: dict[str, object]
):
    """Of a file, and of a directory with modes and types, whatever a browser is shown of it."""
    (tmp_path / "a").mkdir()
    for name in ("b.html", "a/é&<", "a/run.sh", "a/empty"):
        (tmp_path / name).write_bytes(name.encode() * (name != "a/empty"))
    (tmp_path / "a/run.sh").chmod(0o755)
    query = upload_query(**options)  # type: ignore[arg-type]
    async with PortalReader(portal.url) as client:
        for path in (tmp_path, tmp_path / "b.html"):
            body = UploadBody.of_path(path, query=query)
            assert (await send(client.http, body)).skylink in computed(body)


def test_what_fits_a_base_sector():
    source = UploadSource.of_bytes(bytes(SECTOR_SIZE - 300), "a")
    assert len(computed(UploadBody([source]))) == 2
    source = UploadSource.of_bytes(bytes(SECTOR_SIZE - 100), "a")
    assert computed(UploadBody([source])) == []


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
        assert await check(portal, held.skylink, body_of(files), in_full=True)


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
        with pytest.raises(DisprovedError, match=f"{held.skylink}, and has something else there"):
            await check(portal, held.skylink, body_of(LARGE), in_full=True)


@pytest.mark.parametrize(
    ("other", "is_shown"),
    [
        ({"a": bytes(9 << 20), "b": LARGE["b"]}, True),
        ({"a": LARGE["a"], "b": b"four"}, False),
        ({"a": LARGE["a"], "c": LARGE["b"]}, False),
        (SMALL, False),
    ],
    ids=["content", "a size", "a name", "other"],
)
async def test_names_and_sizes(other: Mapping[str, bytes], is_shown: bool):
    """W4: of larger content one answer is enough; no content is looked at."""
    held = of_files(other)
    async with portal_with(held) as (fake, portal):
        if is_shown:
            assert await check(portal, held.skylink, body_of(LARGE), in_full=False)
        else:
            with pytest.raises(DisprovedError):
                await check(portal, held.skylink, body_of(LARGE), in_full=False)
        assert [each.method for each in fake.requests] == ["HEAD"]


async def test_without_metadata_in_headers():
    """W4: then the size is looked at."""
    held = of_files(LARGE)
    async with portal_with(held) as (fake, portal):
        fake.metadata_header = False
        assert await check(portal, held.skylink, body_of(LARGE), in_full=False)
        with pytest.raises(DisprovedError):
            await check(portal, held.skylink, body_of(SMALL), in_full=False)


@pytest.mark.parametrize("in_full", [False, True])
async def test_nothing_is_there(in_full: bool):
    skylink = of_files(SMALL).skylink
    async with portal_with() as (_, portal):
        with pytest.raises(DisprovedError, match=f"{skylink}, and has nothing there"):
            await check(portal, skylink, body_of(SMALL), in_full=in_full)


async def test_a_wrong_proof():
    held = of_files(SMALL)
    async with portal_with(held) as (fake, portal):
        fake.fault(flips(200))
        with pytest.raises(DisprovedError):
            await check(portal, held.skylink, body_of(SMALL), in_full=True)


async def test_without_base_sectors():
    """Small content is proved by its parts, larger content not at all."""
    small, large = of_files(SMALL), of_files(LARGE)
    async with portal_with(small, large) as (fake, portal):
        fake.base_sectors = False
        assert await check(portal, small.skylink, body_of(SMALL), in_full=True)
        assert not await check(portal, large.skylink, body_of(LARGE), in_full=True)


@pytest.mark.parametrize("held", [encrypted(SMALL), packed(SMALL)])
async def test_what_proves_nothing(held: FakeSkyfile):
    async with portal_with(held) as (_, portal):
        assert not await check(portal, held.skylink, body_of(SMALL), in_full=True)


async def test_a_link_that_can_change():
    """It names no content, wherever it leads now."""
    link, held = resolver(), of_files(SMALL)
    async with portal_with() as (fake, portal):
        fake.resolve(link, held)
        with pytest.raises(DisprovedError):
            await check(portal, link, body_of(SMALL), in_full=False)


@pytest.mark.parametrize("in_full", [False, True])
async def test_a_portal_that_fails_or_hangs(in_full: bool):
    """It is not known what it has."""
    held = of_files(LARGE)
    async with portal_with(held) as (fake, portal):
        fake.fault(status(403, "no"), times=1)
        assert not await check(portal, held.skylink, body_of(LARGE), in_full=in_full)
        fake.fault(stalls_after(-1))
        with trio.fail_after(60):
            assert not await check(portal, held.skylink, body_of(LARGE), in_full=in_full)
