"""Downloads of the library are compared with their skylink, or say that they were not."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import pytest

from skymount.errors import (
    BadContentError,
    MalformedError,
    NotFoundError,
    RolledBackError,
    UnavailableError,
)
from skymount.portal import PortalClient, SyncPortalClient
from skymount.server.storage import zone_file
from skymount.wire.metadata import Metadata, Subfile, encode_metadata, parse_metadata
from skymount.wire.skylink import SECTOR_SIZE
from tests.fakes import portal as fake
from tests.fakes.portal import FakePortal, Reply, Request
from tests.fakes.resolving import FakeRegistry
from tests.fakes.skyfiles import (
    FakeSkyfile,
    encrypted,
    noise,
    of_files,
    of_metadata,
    packed,
    resolver,
    sealed,
    unverifiable,
)
from tests.portal.connected import connected
from tests.portal_process import PortalProcess
from tests.server.registry_entries import signed

SMALL = of_files({"a.txt": b"hello", "d/b": noise(3000)})
SINGLE = of_files({"f": noise(200_000)})
LARGE = of_files(
    {"a": noise(5 << 20, 2), "b": noise(1000, 3), "c": noise(9 << 20, 4), "e": b"", "z": b"end"}
)
SPREAD = of_files({"a": noise(9 << 20, 6), "b": noise(70_000, 7), "c": noise(5 << 20)}, pieces=2)
ONE_LARGE = of_files({"film": noise(13_000_000, 5)})
GIANT = of_files({"a": noise(9 << 20, 6), "b": b"x"}, pieces=17)
"""In chunks of 68 MiB: too large to be checked."""

CONTENT = {
    "small": SMALL,
    "single": SINGLE,
    "large": LARGE,
    "spread": SPREAD,
    "one large": ONE_LARGE,
}
FILES = [(name, path) for name, skyfile in CONTENT.items() for path in skyfile.files]


def talking(
    *skyfiles: FakeSkyfile, **options: Any
) -> AbstractAsyncContextManager[tuple[FakePortal, PortalClient]]:
    """Yield a portal that has content, and a client of it that repeats nothing."""
    return connected(FakePortal(), *skyfiles, **{"retries": 0, **options})


def downloads(portal: FakePortal) -> list[str]:
    """Return what was downloaded by link: the ranges."""
    asked = portal.asked("^GET /(?!svc/)")
    return [request.headers.get("range", "all") for request in asked]


# --- what is proved


@pytest.mark.parametrize(("name", "path"), FILES)
async def test_file(tmp_path: Path, name: str, path: str):
    """C15: each file of any content is compared, with what its chunks have beside it."""
    skyfile = CONTENT[name]
    async with talking(skyfile, verify="require") as (_, client):
        result = await client.download_file(tmp_path / "x", skyfile.name, path=path)
        assert (result.verified, result.size) == ("yes", len(skyfile.files[path]))
        assert (tmp_path / "x").read_bytes() == skyfile.files[path]
        found = await client.get_file_content(skyfile.name, path=path)
        assert (found.data, found.verified) == (skyfile.files[path], "yes")
        assert found.metadata is not None
        assert list(found.metadata["subfiles"]) == [path]


@pytest.mark.parametrize("skyfile", [SINGLE, ONE_LARGE])
async def test_content_of_one_file(tmp_path: Path, skyfile: FakeSkyfile):
    """C15: so is the only file without its path."""
    async with talking(skyfile) as (_, client):
        assert (await client.download_file(tmp_path / "x", skyfile.name)).verified == "yes"
        assert (await client.get_file_content(skyfile.name)).verified == "yes"
    assert (tmp_path / "x").read_bytes() == skyfile.payload


@pytest.mark.parametrize("size", [0, 1, 3 << 20, 4 << 20, (4 << 20) + 1])
async def test_raw_upload(tmp_path: Path, size: int):
    """C15: so is content without files in it."""
    skyfile = of_metadata(encode_metadata(Metadata("f", size)), noise(size))
    async with talking(skyfile) as (_, client):
        assert (await client.download_file(tmp_path / "x", skyfile.name)).verified == "yes"
    assert (tmp_path / "x").read_bytes() == skyfile.payload


@pytest.mark.parametrize("skyfile", [SMALL, LARGE])
async def test_all_files_in_one(tmp_path: Path, skyfile: FakeSkyfile):
    """C15: so are all files one after another."""
    async with talking(skyfile) as (_, client):
        result = await client.download_file(tmp_path / "x", skyfile.name, archive="concat")
    assert result.verified == "yes"
    assert (tmp_path / "x").read_bytes() == skyfile.payload


async def test_metadata():
    """C15: metadata are the true ones, whatever the header says."""
    async with talking(SMALL) as (portal, client):
        portal.fault(fake.header(b"svc-metadata", b'{"filename":"lie"}'), "HEAD")
        found = await client.get_metadata(SMALL.name)
        assert (found.verified, found.metadata) == ("yes", json.loads(SMALL.metadata))
        found = await client.get_metadata(SMALL.name, path="d/b")
        assert (found.verified, list(found.metadata["subfiles"])) == ("yes", ["d/b"])
        portal.fault(fake.header(b"svc-metadata", b'{"filename":"lie"}'), "GET")
        found_content = await client.get_file_content(SMALL.name, path="a.txt")
        assert (
            found_content.metadata == (await client.get_metadata(SMALL.name, path="a.txt")).metadata
        )
        with pytest.raises(NotFoundError):
            await client.get_metadata(SMALL.name, path="none")


async def test_spilled_metadata(tmp_path: Path):
    """C15: what did not fit the base sector is fetched, and checked as well."""
    files = {f"{n:0300}": n.to_bytes(2) for n in range(12_000)}
    many = of_files(files)
    path = f"{7:0300}"
    async with talking(many) as (portal, client):
        result = await client.download_file(tmp_path / "x", many.name, path=path)
        assert result.verified == "yes"
        assert len((await client.get_metadata(many.name)).metadata["subfiles"]) == len(files)
        assert len(portal.asked("/svc/")) == 1 + len(many.sectors)
    async with talking(many) as (portal, client):
        portal.fault(fake.flips(1000), "/svc/root")
        with pytest.raises(BadContentError):
            await client.download_file(tmp_path / "y", many.name, path=path)
    assert not (tmp_path / "y").exists()


async def test_asked_for_once(tmp_path: Path):
    """C15: the base sector is remembered, also for who asks at the same time."""
    import trio

    async with talking(SMALL, LARGE) as (portal, client):
        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(
                    client.download_file, tmp_path / f"{number}", f"{SMALL.name}/a.txt"
                )
        await client.get_metadata(SMALL.name)
        await client.get_metadata(LARGE.name)
        await client.download_file(tmp_path / "b", LARGE.name, path="b")
        assert len(portal.asked("/svc/")) == 2


async def test_by_its_metadata(tmp_path: Path):
    """C15: small content is compared also where the portal hands out no base sector."""
    async with talking(SMALL) as (portal, client):
        portal.base_sectors = False
        result = await client.download_file(tmp_path / "x", SMALL.name, path="a.txt")
        assert result.verified == "yes"
        assert (await client.get_metadata(SMALL.name)).verified == "yes"
    async with talking(SMALL) as (portal, client):
        portal.base_sectors = portal.metadata_header = False
        assert (await client.get_file_content(SMALL.name, path="d/b")).verified == "yes"


@contextmanager
def calls(function: FunctionType) -> Iterator[list[str]]:
    """Note the calls of a function in this thread."""
    found: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is function.__code__:
            found.append(function.__name__)

    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(None)


async def test_by_its_metadata_of_many_files():
    """Metadata of many files are not parsed on the event loop; those of a few are."""
    many = of_files({f"f{number}": b"" for number in range(1000)})
    async with talking(SMALL, many) as (portal, client):
        portal.base_sectors = portal.metadata_header = False
        for skyfile, path, on_loop in ((SMALL, "d/b", True), (many, "f7", False)):
            with calls(parse_metadata) as parsed:
                assert (await client.get_file_content(skyfile.name, path=path)).verified == "yes"
            assert bool(parsed) is on_loop


async def test_at_a_real_portal(portal: PortalProcess, tmp_path: Path):
    """C15: what the embedded portal serves is what its base sectors say."""
    large = noise(6_000_000)
    async with PortalClient(portal.url, verify="require") as client:
        site = {"index.html": b"hi", "a/b": b"B", "large": large}
        for files in (site, {"one": b"1"}, {"one": large}):
            link = str(await client.upload_directory(files, custom_dirname="s"))
            for path, content in files.items():
                await client.download_file(tmp_path / "x", link, path=path)
                assert (tmp_path / "x").read_bytes() == content
            assert (await client.get_metadata(link)).verified == "yes"
        for content in (b"", b"one", large):
            link = str(await client.upload_file(content, custom_filename="f"))
            assert (await client.get_file_content(link)).data == content


def test_without_async(portal: PortalProcess, tmp_path: Path):
    """C15: the synchronous client is the same."""
    with SyncPortalClient(portal.url) as client:
        link = str(client.upload_file(b"x", custom_filename="f"))
        assert client.download_file(tmp_path / "x", link).verified == "yes"
        assert client.download_file(tmp_path / "x", link, verify="off").verified == "no"


# --- lies


LIES: dict[str, fake.Fault] = {
    "a bit": fake.flips(700),
    "the last bit": fake.flips(-1),
    "other content": fake.swaps(noise(100_000, 77)),
    "less": lambda _, reply: replace(reply, body=reply.body[:-1]),
    "more": fake.excess(b"x"),
    "nothing": fake.body_is(b""),
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize(("name", "path"), [f for f in FILES if f[1] not in ("a.txt", "e", "z")])
async def test_lie(tmp_path: Path, name: str, path: str, lie: str):
    """C15: other bytes than the content's raise, and leave what was there."""
    skyfile = CONTENT[name]
    (tmp_path / "x").write_bytes(b"old")
    async with talking(skyfile) as (portal, client):
        portal.fault(LIES[lie], f"^GET /{skyfile.name}/")
        with pytest.raises(BadContentError, match="not the content"):
            await client.download_file(tmp_path / "x", skyfile.name, path=path)
        with pytest.raises(BadContentError, match="not the content"):
            await client.get_file_content(skyfile.name, path=path)
        await client.download_file(tmp_path / "y", skyfile.name, path=path, verify="off")
    assert (tmp_path / "x").read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x", "y"]


async def test_lie_is_noticed_early(tmp_path: Path):
    """C15: a lie ends the download in the chunk that it is in."""
    seen: list[int] = []
    async with talking(ONE_LARGE) as (portal, client):
        portal.fault(fake.flips(100), "^GET /A")
        with pytest.raises(BadContentError):
            await client.download_file(
                tmp_path / "x", ONE_LARGE.name, on_progress=lambda done, _: seen.append(done)
            )
        assert max(seen) < SECTOR_SIZE
        assert len(downloads(portal)) == 1
    assert list(tmp_path.iterdir()) == []


async def test_lie_beside_a_file(tmp_path: Path):
    """C15: what is fetched of a chunk beside the file is compared with it."""
    async with talking(LARGE) as (portal, client):
        portal.fault(fake.flips(5), "format=concat")
        with pytest.raises(BadContentError):
            await client.download_file(tmp_path / "x", LARGE.name, path="b")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("pattern", ["basesector", "root"])
async def test_false_proof(tmp_path: Path, pattern: str):
    """C15: a base sector, or another one, that is not the skylink's raises."""
    files = {f"{n:0300}": b"" for n in range(12_000)}
    many = of_files(files)
    async with talking(many) as (portal, client):
        portal.fault(fake.flips(-1), f"/svc/{pattern}")
        with pytest.raises(BadContentError):
            await client.download_file(tmp_path / "x", many.name, path=next(iter(files)))
        with pytest.raises(BadContentError):
            await client.get_metadata(many.name)


async def test_false_metadata_of_small_content(tmp_path: Path):
    """C15: without a base sector as well."""
    async with talking(SMALL) as (portal, client):
        portal.base_sectors = False
        lie = SMALL.metadata.replace(b"a.txt", b"b.txt")
        portal.fault(fake.header(b"svc-metadata", lie), "HEAD")
        with pytest.raises(BadContentError):
            await client.get_metadata(SMALL.name)


async def test_download_that_went_on(tmp_path: Path):
    """C12, C15: one that broke is compared over the whole of it, whichever part was a lie."""
    tag = b'"one"'

    def breaking(count: int) -> fake.Fault:
        def broken(_: Request, reply: Reply) -> Reply:
            reply = reply.with_header(b"ETag", tag)
            return replace(reply, length=len(reply.body), sent=count, then="close")

        return broken

    def lying(before: fake.Fault) -> fake.Fault:
        return lambda request, reply: before(request, fake.flips(9)(request, reply))

    plain = fake.header(b"ETag", tag)
    options: dict[str, Any] = {"retries": 3}
    for first, rest, ok in (
        (breaking(6_000_000), plain, True),
        (lying(breaking(3_000_000)), plain, False),
        (breaking(3_000_000), lying(plain), False),
    ):
        async with talking(ONE_LARGE, **options) as (portal, client):
            portal.fault(first, "^GET /A", times=1)
            portal.fault(rest, "^GET /A")
            if ok:
                result = await client.download_file(tmp_path / "x", ONE_LARGE.name)
                assert result.verified == "yes"
                assert (tmp_path / "x").read_bytes() == ONE_LARGE.payload
                (tmp_path / "x").unlink()
            else:
                with pytest.raises(BadContentError, match="not the content"):
                    await client.download_file(tmp_path / "x", ONE_LARGE.name)
            assert downloads(portal)[0] == "all"
            assert len(downloads(portal)) == 2
            assert downloads(portal)[1].startswith("bytes=")
        assert list(tmp_path.iterdir()) == []


async def test_download_that_began_again(tmp_path: Path):
    """C12, C15: one that begins again is compared anew, also in the middle of a directory."""
    async with talking(LARGE, retries=3) as (portal, client):
        portal.fault(fake.closes_after(8 << 20), "^GET /A.*/c", times=1)
        result = await client.download_file(tmp_path / "x", LARGE.name, path="c")
        assert result.verified == "yes"
    assert (tmp_path / "x").read_bytes() == LARGE.files["c"]


# --- what cannot be proved


def hidden(portal: FakePortal) -> None:
    """Hand out no base sectors."""
    portal.base_sectors = False


UNPROVEN: dict[str, tuple[FakeSkyfile, dict[str, Any], Callable[[FakePortal], None] | None]] = {
    "an archive": (SMALL, {"archive": "zip"}, None),
    "what the portal chooses": (SMALL, {}, None),
    "encrypted": (encrypted({"f": b"secret"}), {"path": "f"}, None),
    "sealed": (sealed({"f": b"secret"}), {"path": "f"}, None),
    "packed": (packed({"f": b"packed"}), {"path": "f"}, None),
    "elsewhere": (unverifiable(encode_metadata(Metadata("f", 3)), b"abc"), {}, None),
    "large without a base sector": (LARGE, {"path": "b"}, hidden),
}


@pytest.mark.parametrize("why", UNPROVEN)
async def test_what_cannot_be_proved(tmp_path: Path, why: str):
    """C15: what cannot be compared says so, or is refused before it is fetched."""
    skyfile, arguments, change = UNPROVEN[why]
    async with talking(skyfile) as (portal, client):
        if change is not None:
            change(portal)
        result = await client.download_file(tmp_path / "x", skyfile.name, **arguments)
        assert result.verified == "no"
        assert (tmp_path / "x").stat().st_size == result.size
        arguments.get("archive") or await _content(client, skyfile, arguments)
        before = len(downloads(portal))
        with pytest.raises(BadContentError, match="cannot be verified"):
            await client.download_file(tmp_path / "y", skyfile.name, verify="require", **arguments)
        assert len(downloads(portal)) == before
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("skyfile", [SMALL, SINGLE, LARGE, GIANT])
async def test_path_that_is_not_there(tmp_path: Path, skyfile: FakeSkyfile):
    """C15: what the proved metadata do not have is not there, and not unverifiable."""
    async with talking(skyfile) as (portal, client):
        for policy in ("require", "available"):
            with pytest.raises(NotFoundError, match="path: /nothing") as found:
                await client.get_file_content(skyfile.name, path="nothing", verify=policy)
            assert found.value.status == 404
            with pytest.raises(NotFoundError):
                await client.download_file(
                    tmp_path / "x", skyfile.name, path="nothing", verify=policy
                )
        assert len(downloads(portal)) == 2  # of "available": a portal may have a page for it
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "skyfile",
    [
        of_metadata(
            b'{"filename":"s","tryfiles":["/f"],"subfiles":{"f":{"filename":"f","len":1}}}', b"x"
        ),
        of_metadata(
            b'{"filename":"s","subfiles":{"nothing":{"filename":"nothing","len":-1},'
            b'"f":{"filename":"f","len":1}}}',
            b"x",
        ),
        of_metadata(b'{"filename":"s","length":1}', b"x"),
    ],
    ids=["other files are tried", "its record makes no sense", "no files"],
)
async def test_path_that_may_be_there(skyfile: FakeSkyfile):
    """C15: where a portal may have something for a path, it is refused as unverifiable."""
    async with talking(skyfile, verify="require") as (_, client):
        with pytest.raises(BadContentError, match="cannot be verified"):
            await client.get_file_content(skyfile.name, path="nothing")


async def _content(client: PortalClient, skyfile: FakeSkyfile, arguments: dict[str, Any]) -> None:
    assert (await client.get_file_content(skyfile.name, **arguments)).verified == "no"
    with pytest.raises(BadContentError, match="cannot be verified"):
        await client.get_file_content(skyfile.name, verify="require", **arguments)


async def test_metadata_that_cannot_be_proved():
    """C15: metadata too."""
    async with talking(LARGE) as (portal, client):
        portal.base_sectors = False
        assert (await client.get_metadata(LARGE.name)).verified == "no"
        with pytest.raises(BadContentError, match="cannot be verified"):
            await client.get_metadata(LARGE.name, verify="require")


async def test_chunks_that_are_too_large(tmp_path: Path):
    """C15: of chunks of more than 64 MiB only names and sizes are compared."""
    async with talking(GIANT) as (portal, client):
        result = await client.download_file(tmp_path / "x", GIANT.name, path="a")
        assert result.verified == "partly"
        assert (await client.get_metadata(GIANT.name)).verified == "yes"
        with pytest.raises(BadContentError, match="cannot be verified"):
            await client.download_file(tmp_path / "y", GIANT.name, path="a", verify="require")
        portal.fault(fake.excess(b"x"), f"^GET /{GIANT.name}/a")
        with pytest.raises(BadContentError):
            await client.download_file(tmp_path / "y", GIANT.name, path="a")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


async def test_files_that_cannot_be(tmp_path: Path):
    """C15: a file that reaches beyond the content cannot be compared."""
    raw = encode_metadata(
        Metadata("s", 5, subfiles={"a": Subfile(0, "a", "", 3, 9), "b": Subfile(0, "b", "", 0, 5)})
    )
    beyond = replace(of_metadata(raw, b"hello"), files={"a": b"lo", "b": b"hello"})
    async with talking(beyond) as (_, client):
        assert (await client.download_file(tmp_path / "x", beyond.name, path="a")).verified == "no"
        assert (await client.download_file(tmp_path / "x", beyond.name, path="b")).verified == "yes"


async def test_metadata_that_make_no_sense(tmp_path: Path):
    """C15: content whose metadata cannot be read cannot be compared."""
    odd = of_metadata(b"no JSON", b"abc")
    async with talking(odd) as (_, client):
        assert (await client.download_file(tmp_path / "x", odd.name)).verified == "no"
    assert (tmp_path / "x").read_bytes() == b"abc"


async def test_chunk_that_cannot_be_had(tmp_path: Path):
    """C15: nor can a part of a chunk, where the portal does not send the rest of it."""
    async with talking(LARGE) as (portal, client):
        portal.fault(fake.status(400), "format=concat")
        result = await client.download_file(tmp_path / "x", LARGE.name, path="b")
        assert result.verified == "no"
        result = await client.download_file(tmp_path / "x", LARGE.name, path="a")
        assert result.verified == "no"
        for path in "ab":
            with pytest.raises(BadContentError, match="cannot be verified"):
                await client.download_file(tmp_path / "y", LARGE.name, path=path, verify="require")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


async def test_portal_that_fails(tmp_path: Path):
    """C15: a portal that fails to answer has not said that it has no proof."""
    async with talking(SMALL) as (portal, client):
        portal.fault(fake.status(503), "basesector")
        with pytest.raises(UnavailableError):
            await client.download_file(tmp_path / "x", SMALL.name, path="a.txt")
        assert (
            await client.download_file(tmp_path / "x", SMALL.name, path="a.txt", verify="off")
        ).verified == "no"


async def test_content_that_is_not_there(tmp_path: Path):
    """What is not there is not found, in the portal's words."""
    async with talking(SMALL) as (_, client):
        with pytest.raises(NotFoundError, match="failed to fetch skylink"):
            await client.download_file(tmp_path / "x", LARGE.name)
        with pytest.raises(NotFoundError, match="failed to download"):
            await client.download_file(tmp_path / "x", SMALL.name, path="none")


async def test_nothing_is_compared(tmp_path: Path):
    """C15: with `off` one request is made, and anything believed."""
    async with talking(SMALL, verify="off") as (portal, client):
        portal.fault(fake.flips(0), "^GET")
        assert (
            await client.download_file(tmp_path / "x", SMALL.name, path="a.txt")
        ).verified == "no"
        assert (await client.get_file_content(SMALL.name, path="a.txt")).verified == "no"
        assert (await client.get_metadata(SMALL.name)).verified == "no"
        assert len(portal.requests) == 3
        with pytest.raises(BadContentError):  # C2
            await client.download_file(tmp_path / "x", SMALL.name, path="a.txt", verify="available")


async def test_word_that_is_none():
    """C3: verify is one of three words."""
    with pytest.raises(MalformedError, match="require, available, off"):
        PortalClient(verify="yes")


async def test_name(portal: PortalProcess, tmp_path: Path):
    """C15: what a domain leads to is never proved."""
    async with PortalClient(portal.url) as client:
        result = await client.upload_file(b"named", custom_filename="f")
        zone_file.change(portal.data, lambda found: found.with_record("proof-test", str(result)))
        assert (await client.download_file_hns(tmp_path / "x", "proof-test")).verified == "no"
        with pytest.raises(BadContentError, match="cannot be verified"):
            await client.download_file_hns(tmp_path / "y", "proof-test", verify="require")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


# --- v2 skylinks


async def test_v2_skylink(portal: PortalProcess, tmp_path: Path):
    """C16: what a v2 skylink provably leads to is compared with its own skylink."""
    from skymount.portal import RegistryEntry, gen_key_pair_from_seed

    pair = gen_key_pair_from_seed("v2 of the proofs")
    async with PortalClient(portal.url, verify="require") as client:
        upload = await client.upload_file(b"moving", custom_filename="f")
        entry = RegistryEntry("k", bytes(upload.skylink), 0)
        await client.registry.set_entry(pair.private_key, entry)
        link = client.registry.get_entry_link(pair.public_key, "k")
        assert (await client.download_file(tmp_path / "x", link)).verified == "yes"
        found = await client.get_file_content(link)
        assert (found.verified, found.skylink) == ("yes", str(upload))
        metadata = await client.get_metadata(link)
        assert (metadata.verified, metadata.skylink) == ("yes", str(upload))
    assert (tmp_path / "x").read_bytes() == b"moving"


async def test_v2_skylink_without_a_proof(tmp_path: Path):
    """C16: without a proof of the way nothing is proved."""
    link = resolver()
    async with talking() as (portal, client):
        portal.resolve(link, SINGLE)
        assert (await client.download_file(tmp_path / "x", link)).verified == "no"
        with pytest.raises(BadContentError, match="cannot be verified"):
            await client.download_file(tmp_path / "y", link, verify="require")
        portal.fault(fake.header(b"svc-proof", b"[]"), "HEAD")
        with pytest.raises(BadContentError):
            await client.download_file(tmp_path / "y", link)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


async def test_v2_skylink_that_is_rolled_back(tmp_path: Path):
    """C16: proven by registry entries that are not older than what was seen before."""
    async with talking(SMALL, SINGLE) as (portal, client):
        registry = FakeRegistry(portal)
        older, newer = (
            signed("k", bytes(skyfile.skylink), n) for n, skyfile in enumerate((SMALL, SINGLE))
        )
        registry.set(newer)
        link = str(newer.link)
        assert (await client.download_file(tmp_path / "x", link)).verified == "yes"
        registry.set(older)
        for verify in ("available", "require"):
            with pytest.raises(RolledBackError, match="behind revision 1"):
                await client.download_file(tmp_path / "y", link, verify=verify)
            with pytest.raises(RolledBackError):
                await client.get_metadata(link, verify=verify)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


# --- documents


async def test_document(portal: PortalProcess):
    """C15: a JSON document is compared."""
    from skymount.portal import gen_key_pair_from_seed

    pair = gen_key_pair_from_seed("documents of the proofs")
    async with PortalClient(portal.url, verify="require") as client:
        await client.db.set_json(pair.private_key, "k", {"a": 1})
        found = await client.db.get_json(pair.public_key, "k")
        assert (found.data, found.verified) == ({"a": 1}, "yes")
        assert (await client.db.get_json(pair.public_key, "none")).verified is None
        off = await client.db.get_json(pair.public_key, "k", verify="off")
        assert off.verified == "no"
