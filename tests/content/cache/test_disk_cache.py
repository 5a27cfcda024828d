"""What was read is there without a portal; whose word it is counts; damage is a miss."""

import gc
import weakref
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from skymount.content.cache.disk_cache import DiskCache
from skymount.content.model.skyfile import Skyfile, Verified, VerifyPolicy
from skymount.errors import BadContentError, PortalError
from tests.fakes import portal as fake
from tests.fakes import skyfiles
from tests.fakes.content_stack import ContentStack, OpenContentStack
from tests.fakes.portal import FakePortal, running
from tests.fakes.skyfiles import FakeSkyfile, describe, listing_of, noise, unverifiable

MIB = 1 << 20
FILES = {"a/x": noise(70_000, 1), "b": noise(3 * MIB, 2)}
SMALL = skyfiles.of_files({"small": noise(5000)})
LARGE = skyfiles.of_files({"large": noise(5 * MIB, 1)})
FORGED = replace(LARGE, payload=noise(5 * MIB, 2))


def shapes() -> list[FakeSkyfile]:
    """Return content of each shape."""
    payload = b"".join(FILES.values())
    return [
        skyfiles.of_files({"a": noise(5000), "b": b""}),
        skyfiles.of_files(FILES | {"c": noise(9 * MIB, 3)}),
        unverifiable(describe(FILES), payload),
        skyfiles.packed({"p": noise(1000)}),
    ]


async def everything(stack: ContentStack, content: FakeSkyfile) -> bytes:
    """Read a whole payload."""
    found = await stack.reader.load(content.skylink)
    return bytes(await stack.reader.read(found, 0, found.size)) if found.size else b""


@pytest.mark.parametrize("content", shapes(), ids=["inline", "1 of n", "unverifiable", "packed"])
@pytest.mark.parametrize("policy", [VerifyPolicy.AVAILABLE, VerifyPolicy.OFF])
async def test_read_without_a_portal(
    stack: OpenContentStack, tmp_path: Path, content: FakeSkyfile, policy: VerifyPolicy
):
    """K1: What is there is read without a portal, descriptions too.

    Only for what could not be verified is a portal asked first.
    """
    async with running(FakePortal()) as portal:
        portal.add(content)
        async with stack(disk=tmp_path / "c", policy=policy, urls=[portal.url]) as made:
            assert await everything(made, content) == content.payload
        portal.requests.clear()
        portal.fault(fake.resets_after(-1))
        async with stack(disk=tmp_path / "c", policy=policy, urls=[portal.url]) as made:
            assert await everything(made, content) == content.payload
        is_unverified = content.base is None and not content.skylink.offset
        assert (portal.requests != []) == (is_unverified and policy is VerifyPolicy.AVAILABLE)


@pytest.mark.parametrize("content", [SMALL, LARGE], ids=["inline", "1 of n"])
@pytest.mark.parametrize("policy", [VerifyPolicy.AVAILABLE, VerifyPolicy.REQUIRE])
async def test_what_is_there_is_not_verified_again(
    stack: OpenContentStack, tmp_path: Path, content: FakeSkyfile, policy: VerifyPolicy
):
    """K5: Verified content is not verified again, whichever portal is asked: other bytes in its
    place are handed out.
    """
    other = noise(len(content.payload), 9)
    async with stack(disk=tmp_path / "c") as made:
        made.portal.add(content)
        loaded = await made.loader.load(content.skylink)
        skyfile = loaded.skyfile
        assert skyfile.verified is Verified.YES
        assert made.queue is not None
        disk = DiskCache(made.queue, [made.portal.url], VerifyPolicy.AVAILABLE)
        if loaded.payload is None:
            await disk.store_description(loaded)
            for index, at in enumerate(range(0, skyfile.size, skyfile.unit)):
                disk.store_unit(skyfile, skyfile.unit, index, other[at : at + skyfile.unit])
        else:
            await disk.store_description(replace(loaded, payload=other))
        await made.settled()
    async with stack(disk=tmp_path / "c", policy=policy) as made:
        assert await everything(made, content) == other
        assert made.portal.requests == []


async def test_no_more_than_was_read(stack: OpenContentStack, tmp_path: Path):
    """K1: What was not read is asked for, and only that."""
    content = skyfiles.of_files({"f": noise(13 * MIB)})
    async with running(FakePortal()) as portal:
        portal.add(content)
        for start in (0, 8 * MIB):
            async with stack(disk=tmp_path / "c", urls=[portal.url]) as made:
                found = await made.reader.load(content.skylink)
                await made.reader.read(found, start, 10)
        portal.requests.clear()
        async with stack(disk=tmp_path / "c", urls=[portal.url]) as made:
            assert await everything(made, content) == content.payload
        asked = [request.headers["range"] for request in portal.asked("GET")]
        assert asked == [f"bytes={4 * MIB}-{8 * MIB - 1}", f"bytes={12 * MIB}-{13 * MIB - 1}"]


async def test_description_does_not_go_before_its_content(stack: OpenContentStack, tmp_path: Path):
    """K3: What was read of a file larger than the cache is there without a portal."""
    content = skyfiles.of_files({"f": noise(90 * MIB)})
    async with running(FakePortal()) as portal:
        portal.add(content)
        async with stack(disk=tmp_path / "c", disk_size=64 * MIB, urls=[portal.url]) as made:
            found = await made.reader.load(content.skylink)
            for at in range(0, found.size, 4 * MIB):
                await made.reader.read(found, at, min(4 * MIB, found.size - at))
                await made.settled()
        portal.fault(fake.resets_after(-1))
        async with stack(disk=tmp_path / "c", disk_size=64 * MIB, urls=[portal.url]) as made:
            found = await made.reader.load(content.skylink)
            last = await made.reader.read(found, 60 * MIB, 30 * MIB)
            assert last == content.payload[60 * MIB :]


async def test_word_of_one_portal_is_not_mixed_with_anothers(
    stack: OpenContentStack, tmp_path: Path
):
    """K5: What could not be verified is not used with another portal, over three sessions: what is
    read of an honest one is never completed by what is kept of a liar, which is kept all the same,
    but not used under `verify = "require"`.
    """
    content = unverifiable(describe(FILES), b"".join(FILES.values()))
    forged = unverifiable(describe(FILES), noise(len(content.payload), 9))
    async with running(FakePortal()) as liar, running(FakePortal()) as honest:
        liar.add(forged)
        honest.add(content)
        async with stack(disk=tmp_path / "c", urls=[liar.url]) as made:
            assert await everything(made, forged) == forged.payload
            await made.settled()
        async with stack(disk=tmp_path / "c", urls=[honest.url]) as made:
            await reads(made, content, [(2 * MIB + 50, 100)])
            await made.settled()
        async with stack(disk=tmp_path / "c", urls=[honest.url]) as made:
            assert await everything(made, content) == content.payload
        async with stack(disk=tmp_path / "c", urls=[liar.url], policy=VerifyPolicy.REQUIRE) as made:
            with pytest.raises(BadContentError):
                await made.reader.load(forged.skylink)
        liar.fault(fake.resets_after(-1))
        async with stack(disk=tmp_path / "c", urls=[liar.url]) as made:
            assert await everything(made, forged) == forged.payload


async def test_another_portal_might_prove_it(stack: OpenContentStack, tmp_path: Path):
    """K5: used only while the same portals are configured, as another one might prove something
    else.
    """
    async with running(FakePortal()) as liar, running(FakePortal()) as honest:
        liar.base_sectors = False
        liar.add(FORGED)
        honest.add(LARGE)
        async with stack(disk=tmp_path / "c", urls=[liar.url]) as made:
            assert await everything(made, FORGED) == FORGED.payload
            await made.settled()
        for urls in ([liar.url, honest.url], [honest.url, liar.url]):
            async with stack(disk=tmp_path / "c", urls=urls) as made:
                assert await everything(made, LARGE) == LARGE.payload


async def test_unverified_is_asked_for_again(stack: OpenContentStack, tmp_path: Path):
    """K5: What is on disk unverified is used once no portal has anything better.

    So a lie that was kept goes away when the portal that can prove the content, and refused to
    before, does so, or when the liar becomes honest.
    """
    async with running(FakePortal()) as liar, running(FakePortal()) as honest:
        liar.base_sectors = False
        liar.add(FORGED)
        urls = [liar.url, honest.url]  # the honest one does not have it yet
        async with stack(disk=tmp_path / "c", urls=urls) as made:
            assert await everything(made, FORGED) == FORGED.payload
            await made.settled()
        for portal in (liar, honest):
            portal.fault(fake.status(503))
        async with stack(disk=tmp_path / "c", urls=urls) as made:
            found = await made.reader.load(FORGED.skylink)
            assert found.is_unconfirmed
            assert found.is_provisional
            assert await everything(made, FORGED) == FORGED.payload
        honest.heal()
        honest.add(LARGE)
        async with stack(disk=tmp_path / "c", urls=urls) as made:
            assert await everything(made, LARGE) == LARGE.payload


async def test_described_again(stack: OpenContentStack, tmp_path: Path):
    """S12: An unverified description that was used before is used again without asking a portal;
    one that says anything else is not.
    """
    async with running(FakePortal()) as portal:
        portal.base_sectors = False
        portal.add(LARGE)
        async with stack(disk=tmp_path / "c", urls=[portal.url]) as made:
            first = await made.reader.load(LARGE.skylink)
            assert first.verified is Verified.NO
            await made.settled()
            portal.requests.clear()
            again = await made.reader.load(LARGE.skylink, first.fingerprint())
            assert portal.requests == []
            assert again.fingerprint() == first.fingerprint()
            assert not again.is_provisional
            assert again.listing.packed == first.listing.packed
            for fingerprint in (None, b"", bytes(16)):
                portal.requests.clear()
                await made.reader.load(LARGE.skylink, fingerprint)
                assert portal.requests


def test_fingerprints():
    """S12: Descriptions of one skylink differ in names, sizes and portal, unless it is verified."""
    one = Skyfile(LARGE.skylink, listing_of(describe(FILES)), 1, "http://a", Verified.NO)
    others = [
        replace(one, portal="http://b"),
        replace(one, listing=listing_of(describe({"x": b""}))),
        replace(one, verified=Verified.YES),
    ]
    assert len({each.fingerprint() for each in (one, *others)}) == 4
    assert others[2].fingerprint() == b""
    assert replace(one, provisional=3).fingerprint() == one.fingerprint()


async def test_forgotten_description(stack: OpenContentStack):
    """S12: A description that is dropped is not held by those that read it; open files go on."""
    async with stack() as made:
        made.portal.add(LARGE)
        found = await made.reader.load(LARGE.skylink)
        listing = weakref.ref(found.listing)
        with closing(made.reader.open(found, 0, found.size)) as file:
            made.reader.forget(found)
            assert await file.wait(0, 10) == LARGE.payload[:10]
        made.reader.forget(found)
        made.reader.forget(found)
        del found, file
        await trio.testing.wait_all_tasks_blocked()
        gc.collect()
        assert listing() is None


async def test_provisional_is_not_kept(stack: OpenContentStack, tmp_path: Path):
    """T6: Neither the description nor the content is kept on disk, nor is any of it used."""
    async with running(FakePortal()) as liar, running(FakePortal()) as honest:
        liar.base_sectors = False
        liar.add(FORGED)
        honest.add(LARGE)
        honest.fault(fake.status(503))
        urls = [liar.url, honest.url]
        async with stack(disk=tmp_path / "c", urls=urls) as made:
            assert await everything(made, FORGED) == FORGED.payload
            await made.settled()
            assert made.queue is not None
            assert made.queue.counts.stored == 0
        liar.add(LARGE)
        async with stack(disk=tmp_path / "c", urls=urls) as made:
            assert await everything(made, LARGE) == LARGE.payload


async def test_unchecked_is_not_taken_for_the_best_there_is(
    stack: OpenContentStack, tmp_path: Path
):
    """K5: What was read with `verify = "off"` is described anew once it is to be checked."""
    content = skyfiles.of_files({"f": noise(5 * MIB)})
    async with running(FakePortal()) as portal:
        portal.add(content)
        async with stack(disk=tmp_path / "c", urls=[portal.url], policy=VerifyPolicy.OFF) as made:
            await everything(made, content)
        async with stack(disk=tmp_path / "c", urls=[portal.url]) as made:
            assert (await made.reader.load(content.skylink)).verified is Verified.YES
            assert await everything(made, content) == content.payload


async def test_portal_down_and_not_all_is_there(stack: OpenContentStack, tmp_path: Path):
    """K1: What is not there fails as without a cache."""
    content = skyfiles.of_files({"f": noise(9 * MIB)})
    async with running(FakePortal()) as portal:
        portal.add(content)
        async with stack(disk=tmp_path / "c", urls=[portal.url]) as made:
            found = await made.reader.load(content.skylink)
            await made.reader.read(found, 0, 10)
    async with stack(disk=tmp_path / "c", urls=["http://127.0.0.1:1"]) as made:
        found = await made.reader.load(content.skylink)
        assert bytes(await made.reader.read(found, 5, 5)) == content.payload[5:10]
        with pytest.raises(PortalError):
            await made.reader.read(found, 5 * MIB, 5)


async def reads(stack: ContentStack, content: FakeSkyfile, spans: list[tuple[int, int]]) -> None:
    """Read some ranges, and compare."""
    found = await stack.reader.load(content.skylink)
    for start, length in spans:
        data = await stack.reader.read(found, start, length)
        assert bytes(data) == content.payload[start : start + length]


IN_ORDER = [(at, min(256 << 10, 3 * MIB + 70_000 - at)) for at in range(0, 3 * MIB, 256 << 10)]
AT_RANDOM = [(n * 37 % 96 * 32768, 4096) for n in range(96)]


async def test_whole_blocks_are_kept_and_small_ones_cut_from_them(
    stack: OpenContentStack, tmp_path: Path
):
    """K1: What was read in order is there for who reads at random; what was read at random and
    cannot be proved stays in memory.
    """
    content = unverifiable(describe(FILES), b"".join(FILES.values()))
    async with running(FakePortal()) as portal:
        portal.add(content)
        async with stack(disk=tmp_path / "c", urls=[portal.url]) as made:
            await reads(made, content, AT_RANDOM[:40])
            await made.settled()
            assert made.queue is not None
            assert made.queue.counts.stored == 1  # the description
        async with stack(disk=tmp_path / "c", urls=[portal.url]) as made:
            await reads(made, content, IN_ORDER)
        portal.fault(fake.resets_after(-1))
        for spans in (AT_RANDOM, IN_ORDER[:12], [(2 * MIB + 5, 100)]):
            async with stack(disk=tmp_path / "c", urls=[portal.url]) as made:
                await reads(made, content, spans)


async def test_bytes_of_another_portal_than_the_describing_one(
    stack: OpenContentStack, tmp_path: Path
):
    """K5: Of what cannot be verified the describing portal's bytes are kept, as its word."""
    content = unverifiable(describe(FILES), b"".join(FILES.values()))
    other = unverifiable(describe(FILES), noise(len(content.payload), 9))
    async with running(FakePortal()) as one, running(FakePortal()) as two:
        one.add(content)
        two.add(other)
        one.fault(fake.status(500), "GET.*concat")
        urls = [one.url, two.url]
        async with stack(disk=tmp_path / "c", urls=urls) as made:
            await reads(made, other, [(0, 100)])
            await made.settled()
        one.heal()
        async with stack(disk=tmp_path / "c", urls=urls) as made:
            await reads(made, content, [(0, 100)])
