"""Content that is brought to a further portal keeps its skylink there (docs/semantics.md, W5)."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import trio

from skymount.content.cache.memory_cache import MemoryCache
from skymount.content.fetch.skyfile_loader import SkyfileLoader
from skymount.content.model.skyfile import Verified, VerifyPolicy
from skymount.content.replication.replicator import SIZE_LIMIT, Replicator
from skymount.errors import (
    AccessDeniedError,
    ReadOnlyPortalError,
    UnavailableError,
    UnreplicableError,
)
from skymount.portal.client.base import PortalReader
from skymount.portal.client.client import PortalClient
from skymount.portal.failover.health import State
from skymount.portal.failover.portals import Portals, open_portals
from skymount.settings import Config
from skymount.values import portal_identity
from skymount.wire.base_sector import CIPHER_LEGACY_PLAIN
from skymount.wire.metadata import Metadata, Subfile, encode_metadata
from tests.fakes.content_stack import open_reader
from tests.fakes.portal import FakePortal, body_is, closes_after, running, status
from tests.fakes.skyfiles import (
    FakeSkyfile,
    encrypted,
    noise,
    of_files,
    of_metadata,
    packed,
    resolver,
)
from tests.portal_process import running_portal

UPLOAD = "^POST (?!.*dryrun)"
DRY_RUN = "^POST .*dryrun"
WHOLE = {"format": "concat", "no-response-metadata": "true"}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real portal that has content."""
    with running_portal(tmp_path_factory.mktemp("source")) as url:
        yield url


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real portal that lacks it."""
    with running_portal(tmp_path_factory.mktemp("target")) as url:
        yield url


@dataclass
class Kit:
    """A replicator, and the portal that it brings content to."""

    replicator: Replicator
    portals: Portals
    to: PortalReader


@asynccontextmanager
async def kit(source: str, target: str, limit: int = SIZE_LIMIT) -> AsyncIterator[Kit]:
    async with open_portals(Config(portals=(source, target)).portal_options, 20) as portals:
        loader = SkyfileLoader(portals, VerifyPolicy.AVAILABLE)
        async with open_reader(portals, loader, MemoryCache(8 << 20)) as reader:
            replicator = Replicator(portals, reader, limit)
            yield Kit(replicator, portals, portals.clients[1])


@asynccontextmanager
async def faked(
    content: FakeSkyfile, target: str, limit: int = SIZE_LIMIT
) -> AsyncIterator[tuple[Kit, FakePortal]]:
    async with running(FakePortal()) as fake:
        fake.add(content)
        async with kit(fake.url, target, limit) as found:
            yield found, fake


def form(*files: tuple[str, bytes, str, int], **more: object) -> FakeSkyfile:
    """Return the upload of files, each a path, content, media type and mode."""
    subfiles, payload = {}, b""
    for path, content, media_type, mode in files:
        subfiles[path] = Subfile(mode, path, media_type, len(payload), len(content))
        payload += content
    name = str(more.pop("filename", "site"))
    metadata = Metadata(name, len(payload), subfiles=subfiles, **more)  # type: ignore[arg-type]
    contents = {path: content for path, content, _, _ in files}
    return of_metadata(encode_metadata(metadata), payload, files=contents)


TEXT = ("a.txt", b"hello", "text/plain", 0o644)
PAGE = ("index.html", b"<p>", "text/html", 0)
SHAPES = {
    "one file": form(TEXT, filename="a.txt"),
    "one file of another name": form(TEXT, filename="b.txt"),
    "one file of a directory": form(PAGE, tryfiles=("index.html",)),
    "nothing": form(("empty", b"", "", 0), filename="empty"),
    "raw": of_metadata(encode_metadata(Metadata("r", 5, mode=0o755)), b"hello"),
    "directory": form(
        TEXT, ("z/b", b"", "", 0), ("z/a", b"xyz", "", 0o755), tryfiles=("index.html",)
    ),
    "without tryfiles": form(TEXT, PAGE),
    "default path": form(TEXT, PAGE, defaultpath="/index.html"),
    "no default path": form(TEXT, PAGE, disabledefaultpath=True),
    "pages": form(TEXT, PAGE, tryfiles=("a.txt", "/index.html"), errorpages={"404": "/a.txt"}),
    "odd names": form(('q"uo\\te', b"1", "", 0), ("\n\u00e9\U0001f600 &<>", b"2", 'x/y; z="1"', 0)),
    "large": form(("big.bin", noise(9 << 20, 5), "application/octet-stream", 0), TEXT),
    "many files": of_files({f"d{n % 7}/{n:05}": noise(n % 300, n) for n in range(2000)}),
    "metadata of several sectors": of_files(
        {f"{n:05}" + "x" * 245: b"%d" % n for n in range(8000)}
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
async def test_content_keeps_its_skylink(target: str, shape: str):
    """W5: whatever its form. Once it is there, nothing is sent."""
    content = SHAPES[shape]
    async with faked(content, target) as (found, _):
        await found.replicator.replicate(content.skylink, found.to)
    async with httpx.AsyncClient(base_url=target) as client:
        answer = await client.get(f"/{content.name}", params=WHOLE)
        assert answer.content == content.payload
        assert (await client.get(f"/svc/metadata/{content.name}")).content == content.metadata


async def test_what_a_real_portal_has(source: str, target: str, tmp_path: Path):
    site = tmp_path / "site"
    (site / "deep/er").mkdir(parents=True)
    (site / "deep/er/x.txt").write_bytes(b"x")
    (site / "big").write_bytes(noise(5 << 20))
    async with PortalClient(source) as client:
        skylink = (await client.upload_directory(site)).skylink
    async with kit(source, target) as found:
        await found.replicator.replicate(skylink, found.to)
    async with PortalClient(target) as client:
        got = await client.get_file_content(skylink, path="deep/er/x.txt")
        assert (got.data, got.verified) == (b"x", Verified.YES)


async def test_nothing_is_sent_to_a_portal_that_has_it():
    content = SHAPES["directory"]
    async with running(FakePortal()) as target:
        target.add(content)
        async with faked(content, target.url) as (found, _):
            await found.replicator.replicate(content.skylink, found.to)
        assert [request.method for request in target.requests] == ["HEAD"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (encrypted({"a": b"secret"}), "no portal proves that it is the content"),
        (packed({"a": b"x"}), "it lies in a packed sector"),
        (of_metadata(b'{"filename":"sia.pdf"}', b"x"), "not as portals write them now"),
    ],
    ids=["encrypted", "packed", "old"],
)
async def test_content_that_cannot_keep_its_skylink(content: FakeSkyfile, reason: str):
    """Nothing is sent, and no portal is blamed for it."""
    async with running(FakePortal()) as target, faked(content, target.url) as (found, _):
        with pytest.raises(UnreplicableError, match=reason):
            await found.replicator.replicate(content.skylink, found.to)
        assert target.asked(UPLOAD) == []
        now = trio.current_time()
        states = [found.portals.health(each).state(now) for each in found.portals.clients]
        assert states == [State.CLOSED] * 2


def disguised(*, size: int) -> tuple[FakeSkyfile, FakeSkyfile]:
    """Return content, and what a lying portal shows in its place."""
    good = noise(size, 3)
    evil = good if size > 4 << 20 else noise(size, 4)
    return (
        form(("a.txt", good, "text/plain", 0o644), filename="a.txt"),
        form(("evil.txt", evil, "text/html", 0o644), filename="evil.txt"),
    )


@asynccontextmanager
async def lying(*others: FakePortal, size: int) -> AsyncIterator[tuple[Kit, FakePortal]]:
    """Run portals: first a liar without base sectors, then others, last the one that is brought
    content.
    """
    good, evil = disguised(size=size)
    async with running(FakePortal()) as liar, running(FakePortal()) as target:
        liar.resolve(good.skylink, evil)
        liar.fault(status(404), "basesector")
        target.add(evil)  # which it answers every upload with
        urls = [liar.url, *(each.url for each in others), target.url]
        async with open_portals(Config(portals=(*urls,)).portal_options, 20) as portals:
            loader = SkyfileLoader(portals, VerifyPolicy.AVAILABLE)
            async with open_reader(portals, loader, MemoryCache(8 << 20)) as reader:
                yield Kit(Replicator(portals, reader), portals, portals.clients[-1]), target


@pytest.mark.parametrize("size", [1000, 5 << 20])
async def test_nothing_that_is_only_the_word_of_a_portal_is_sent(size: int):
    good, _ = disguised(size=size)
    async with lying(size=size) as (found, target):
        with pytest.raises(UnreplicableError):
            await found.replicator.replicate(good.skylink, found.to)
        assert target.asked(UPLOAD) == []


@pytest.mark.parametrize("size", [1000, 5 << 20])
@pytest.mark.parametrize("has_base_sectors", [True, False])
async def test_a_liar_does_not_say_what_is_sent(size: int, has_base_sectors: bool):
    """The metadata are those that another portal proves; without a proof nothing is sent."""
    good, _ = disguised(size=size)
    async with running(FakePortal()) as honest:
        honest.add(good)
        if not has_base_sectors:
            honest.fault(status(404), "basesector")
        async with lying(honest, size=size) as (found, target):
            with pytest.raises(UnreplicableError):
                await found.replicator.replicate(good.skylink, found.to)
            sent = [request.body for request in target.asked(UPLOAD)]
    is_proved = has_base_sectors or size < 4 << 20
    assert [good.payload in body and b"text/plain" in body for body in sent] == [True] * is_proved


async def test_metadata_of_another_size_keep_nothing_from_being_sent(target: str):
    """The next portal is asked for them."""
    content = of_metadata(encode_metadata(Metadata("new", 3)), b"new")
    async with running(FakePortal()) as liar, running(FakePortal()) as honest:
        for portal in (liar, honest):
            portal.add(content)
            portal.fault(status(404), "basesector")
        liar.fault(body_is(content.metadata.ljust(5000)), "/svc/metadata/")
        async with open_portals(
            Config(portals=(liar.url, honest.url, target)).portal_options, 20
        ) as portals:
            loader = SkyfileLoader(portals, VerifyPolicy.AVAILABLE)
            async with open_reader(portals, loader, MemoryCache(8 << 20)) as reader:
                replicator = Replicator(portals, reader)
                await replicator.replicate(content.skylink, portals.clients[-1])
        assert len(liar.asked("/svc/metadata/")) == 1


async def test_a_liar_that_calls_it_encrypted_keeps_nothing_from_being_sent():
    content = SHAPES["directory"]
    async with running(FakePortal()) as target:
        target.add(encrypted({"a": b"secret"}))
        async with running(FakePortal()) as honest, running(FakePortal()) as liar:
            honest.add(content)
            liar.resolve(content.skylink, encrypted({"a": b"secret"}))
            urls = [liar.url, honest.url, target.url]
            async with open_portals(Config(portals=(*urls,)).portal_options, 20) as portals:
                loader = SkyfileLoader(portals, VerifyPolicy.AVAILABLE)
                async with open_reader(portals, loader, MemoryCache(8 << 20)) as reader:
                    replicator = Replicator(portals, reader)
                    with pytest.raises(UnreplicableError, match="stores"):
                        await replicator.replicate(content.skylink, portals.clients[-1])
        assert len(target.asked(UPLOAD)) == 1


async def test_content_beyond_the_limit_is_not_sent():
    content = SHAPES["raw"]
    async with running(FakePortal()) as target, faked(content, target.url, 4) as (found, _):
        with pytest.raises(UnreplicableError, match="it has more than 4 B"):
            await found.replicator.replicate(content.skylink, found.to)
        assert target.asked(UPLOAD) == []


async def test_a_resolver_skylink_is_no_content(target: str):
    async with faked(SHAPES["raw"], target) as (found, _):
        with pytest.raises(UnreplicableError, match="it is no content"):
            await found.replicator.replicate(resolver(), found.to)


async def test_a_portal_that_stores_it_under_another_skylink():
    """It is not sent there again."""
    async with running(FakePortal()) as target:
        target.add(SHAPES["raw"])  # which it answers every upload with
        async with faked(SHAPES["directory"], target.url) as (found, _):
            for _ in range(2):
                with pytest.raises(UnreplicableError, match=f"as {SHAPES['raw'].name}"):
                    await found.replicator.replicate(SHAPES["directory"].skylink, found.to)
        assert len(target.asked(UPLOAD)) == 1


@pytest.mark.parametrize(
    ("content", "has_other_layout", "reason"),
    [
        (SHAPES["large"], True, "one data piece, and that portal spreads"),
        (of_files({"f": noise(9 << 20, 6)}, pieces=10), False, "spread over 10 data pieces"),
    ],
    ids=["one piece", "ten pieces"],
)
async def test_large_content_of_another_layout(
    content: FakeSkyfile, has_other_layout: bool, reason: str
):
    """W5: a dry run shows it, once for a portal, and the content is not sent."""
    async with running(FakePortal(has_other_layout=has_other_layout)) as target:
        target.add(SHAPES["raw"])
        async with faked(content, target.url) as (found, _):
            for _ in range(2):
                with pytest.raises(UnreplicableError, match=reason):
                    await found.replicator.replicate(content.skylink, found.to)
        assert (len(target.asked(DRY_RUN)), len(target.asked(UPLOAD))) == (1, 0)


async def test_a_portal_that_refuses_a_dry_run():
    """W5: its layout is not known then, and the content is sent."""
    content = SHAPES["large"]
    async with running(FakePortal()) as target, faked(content, target.url) as (found, _):
        target.add(SHAPES["raw"])
        target.fault(status(400), DRY_RUN)
        with pytest.raises(UnreplicableError, match="stores"):
            await found.replicator.replicate(content.skylink, found.to)
        assert len(target.asked(UPLOAD)) == 1


async def test_content_in_the_form_of_old_uploads():
    content = SHAPES["raw"]
    old = of_metadata(content.metadata, content.payload, cipher=CIPHER_LEGACY_PLAIN)
    async with running(FakePortal()) as target, faked(old, target.url) as (found, _):
        with pytest.raises(UnreplicableError, match="before April 2020"):
            await found.replicator.replicate(old.skylink, found.to)
        assert target.asked(UPLOAD) == []


async def test_nobody_has_it(source: str, target: str):
    async with kit(source, target) as found:
        with pytest.raises(UnreplicableError, match="cannot be read: "):
            await found.replicator.replicate(of_files({"a": b"nowhere"}).skylink, found.to)


async def test_a_portal_that_does_not_take_it():
    content = SHAPES["directory"]
    async with running(FakePortal()) as target:
        target.fault(status(503, "full"), UPLOAD)
        async with faked(content, target.url) as (found, _):
            with pytest.raises(UnavailableError, match="full"):
                await found.replicator.replicate(content.skylink, found.to)
            health = found.portals.health(found.to)
            assert health.state(trio.current_time()) is State.OPEN


async def test_a_portal_that_fails_to_say_whether_it_has_it():
    content = SHAPES["directory"]
    async with running(FakePortal()) as target:
        target.fault(status(403), "^HEAD ")
        async with faked(content, target.url) as (found, _):
            with pytest.raises(AccessDeniedError):
                await found.replicator.replicate(content.skylink, found.to)
        assert target.asked(UPLOAD) == []


async def test_content_that_breaks_off_while_it_is_sent():
    """The portal that it is sent to is not blamed, and the error is that of the source."""
    content = SHAPES["large"]
    async with running(FakePortal()) as target, faked(content, target.url) as (found, fake):
        fake.fault(closes_after(1 << 20), "^GET /[^s]")
        with pytest.raises(UnreplicableError, match="cannot be read: "):
            await found.replicator.replicate(content.skylink, found.to)
        health = found.portals.health(found.to)
        assert health.state(trio.current_time()) is State.CLOSED


async def test_a_read_only_portal_gets_nothing():
    """W2."""
    content = SHAPES["directory"]
    async with running(FakePortal()) as fake, running(FakePortal()) as target:
        fake.add(content)
        read_only = {portal_identity(target.url): {"read_only": True}}
        settings = Config(portals=(fake.url, target.url), portal_tables=read_only)
        async with open_portals(settings.portal_options, 20) as portals:
            loader = SkyfileLoader(portals, VerifyPolicy.AVAILABLE)
            async with open_reader(portals, loader, MemoryCache(8 << 20)) as reader:
                replicator = Replicator(portals, reader)
                with pytest.raises(ReadOnlyPortalError):
                    await replicator.replicate(content.skylink, portals.clients[1])
        assert target.asked(UPLOAD) == []
