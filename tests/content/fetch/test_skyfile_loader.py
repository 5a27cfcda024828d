"""Finding out what a skylink is: from its base sector, from a portal's word, or not at all."""

import json
from contextlib import nullcontext
from dataclasses import replace

import pytest
import trio

from skymount.content.model.skyfile import Verified, VerifyPolicy
from skymount.errors import (
    AccessDeniedError,
    BadContentError,
    HeadTooLongError,
    NotFoundError,
    PortalError,
    UnavailableError,
)
from skymount.portal.failover.contestants import FailoverConfig
from skymount.portal.failover.health import HedgeBudget
from skymount.portal.failover.portals import PROOF_TIMEOUT
from skymount.portal.http.connection_pool import in_background
from skymount.wire import base_sector
from skymount.wire.merkle import sector_root
from skymount.wire.skylink import SECTOR_SIZE, Skylink
from tests.fakes import portal as fake
from tests.fakes import skyfiles
from tests.fakes.content_stack import OpenContentStack
from tests.fakes.skyfiles import FakeSkyfile, describe, noise

MIB = 1 << 20
FILES = {"a.txt": b"first", "d/b.txt": noise(20_000)}
INLINE = skyfiles.of_files(FILES)
LEGACY = skyfiles.of_metadata(
    b'{"filename":"f"}', b"content", cipher=base_sector.CIPHER_LEGACY_PLAIN
)
LARGE = skyfiles.of_files({"big": noise(5 * MIB)})
SPREAD = skyfiles.of_metadata(describe({"s": noise(MIB)}), noise(MIB), pieces=10, fan_out=True)
MANY = skyfiles.of_metadata(
    describe({f"{n:05}{'x' * 200}": b"" for n in range(22_000)} | {"z": noise(MIB)}), noise(MIB)
)
"""Its metadata has more than a sector, so that it is spilled."""


# --- with base sectors


@pytest.mark.parametrize(
    ("skyfile", "inline", "unit"),
    [
        (INLINE, True, SECTOR_SIZE),
        (LEGACY, True, SECTOR_SIZE),
        (LARGE, False, SECTOR_SIZE),
        (SPREAD, False, 10 * SECTOR_SIZE),
        (MANY, False, SECTOR_SIZE),
    ],
    ids=["inline", "legacy", "1 of n", "10 of 30", "spilled"],
)
@pytest.mark.parametrize("policy", [VerifyPolicy.AVAILABLE, VerifyPolicy.REQUIRE])
async def test_from_the_base_sector(
    stack: OpenContentStack, skyfile: FakeSkyfile, inline: bool, unit: int, policy: VerifyPolicy
):
    """T2: Larger content is checked as well where the portal hands out the base sector.

    Content of each shape is described by its base sector, and verified.
    """
    async with stack(policy=policy) as made:
        made.portal.add(skyfile)
        loaded = await made.loader.load(skyfile.skylink)
        found = loaded.skyfile
        assert (found.verified, found.inline, found.unit) == (Verified.YES, inline, unit)
        assert (found.skylink, found.size) == (skyfile.skylink, len(skyfile.payload))
        assert found.portal == made.portal.url
        assert loaded.payload == (skyfile.payload if inline else None)
        assert made.portal.asked("GET.*concat") == []


async def test_one_request_for_small_content(stack: OpenContentStack):
    """Description and content of a small skyfile take a single request."""
    async with stack() as made:
        made.portal.add(INLINE)
        await made.loader.load(INLINE.skylink)
        assert len(made.portal.asked("GET")) == 1


@pytest.mark.parametrize("size", [len(INLINE.base or b"") + 1, 65_536, SECTOR_SIZE])
async def test_base_sector_with_padding(stack: OpenContentStack, size: int):
    """A portal may hand out the whole sector, or a part of its padding."""
    base = INLINE.base or b""
    async with stack() as made:
        made.portal.add(INLINE)
        made.portal.fault(fake.body_is(base.ljust(size, b"\0")))
        assert (await made.loader.load(INLINE.skylink)).payload == INLINE.payload


@pytest.mark.parametrize(
    "fault",
    [
        fake.status(404),
        fake.status(500),
        fake.status(403),
        fake.flips(5),
        fake.short(9),
        fake.resets_after(9),
    ],
)
async def test_spilled_sector_that_cannot_be_had(stack: OpenContentStack, fault: fake.Fault):
    """Whatever is wrong with one of several sectors fetched at once is a PortalError."""
    async with stack() as made:
        made.portal.add(MANY)
        made.portal.fault(fault, "/svc/root")
        with pytest.raises(PortalError):
            await made.loader.load(MANY.skylink)
        made.portal.heal()
        assert (await made.loader.load(MANY.skylink)).skyfile.verified is Verified.YES


# --- what is authentic and makes no sense


def crafted(layout: base_sector.Layout, rest: bytes = b"") -> FakeSkyfile:
    """Return content with that layout, whatever it says."""
    base = bytes(layout) + rest
    return FakeSkyfile(Skylink.v1(sector_root(base), len(base)), b"{}", b"", base)


@pytest.mark.parametrize(
    "layout",
    [
        base_sector.Layout(1 << 63, 2),
        base_sector.Layout((1 << 64) - 1, 2),
        base_sector.Layout(0, 1 << 63),
        base_sector.Layout(0, (1 << 64) - 1),
        base_sector.Layout(5, 2, (1 << 64) - 1, 1),
        base_sector.Layout(5, 2, 1 << 40, 1),
        base_sector.Layout(5, 300 << 20, 0, 1),
        base_sector.Layout(5, 2, 31, 1),
        base_sector.Layout(5, 2, 32, 0),
        base_sector.Layout(5, 2, 64, 1),
        base_sector.Layout(SECTOR_SIZE + 1, 2, 32, 1),
        base_sector.Layout(5, 2, 32, 255, 255),
        base_sector.Layout(5, 3),
    ],
    ids=str,
)
async def test_layout_that_makes_no_sense(stack: OpenContentStack, layout: base_sector.Layout):
    """Sizes that contradict each other, or the sector, are bad content, found out at once."""
    content = crafted(layout, b"{}".ljust(200, b"x"))
    async with stack() as made:
        made.portal.add(content)
        with trio.fail_after(10), pytest.raises(BadContentError):
            await made.loader.load(content.skylink)


@pytest.mark.parametrize("policy", [VerifyPolicy.AVAILABLE, VerifyPolicy.REQUIRE])
async def test_chunks_too_large_to_hold(stack: OpenContentStack, policy: VerifyPolicy):
    """T4: `partly` where only names and sizes could be checked.

    Content in chunks of a gigabyte is not verified, so that nobody has to hold one.
    """
    layout = base_sector.Layout(1000, 2, 256 * 32, 255, 1)
    content = crafted(layout, noise(256 * 32) + b"{}")
    async with stack(policy=policy) as made:
        made.portal.add(content)
        if policy is VerifyPolicy.REQUIRE:
            with pytest.raises(BadContentError, match="too large to verify"):
                await made.loader.load(content.skylink)
        else:
            found = (await made.loader.load(content.skylink)).skyfile
            assert found.verified is Verified.PARTLY
            assert found.unit == MIB


# --- without base sectors


@pytest.mark.parametrize("skyfile", [INLINE, LEGACY], ids=["plain", "legacy"])
@pytest.mark.parametrize("header", [True, False])
async def test_small_content_is_rebuilt(
    stack: OpenContentStack, skyfile: FakeSkyfile, header: bool
):
    """T1: Content is checked against its skylink.

    Small content is verified by metadata (header or endpoint) and payload together.
    """
    async with stack(policy=VerifyPolicy.REQUIRE) as made:
        made.portal.add(skyfile)
        made.portal.base_sectors = False
        made.portal.metadata_header = header
        loaded = await made.loader.load(skyfile.skylink)
        assert loaded.skyfile.verified is Verified.YES
        assert loaded.skyfile.inline
        assert loaded.payload == skyfile.payload
        assert len(made.portal.asked("/svc/metadata/")) == (not header)


async def test_empty_content_is_rebuilt(stack: OpenContentStack):
    """Content of no bytes is verified without asking for any."""
    empty = skyfiles.of_files({"empty": b""})
    async with stack(policy=VerifyPolicy.REQUIRE) as made:
        made.portal.add(empty)
        made.portal.base_sectors = False
        loaded = await made.loader.load(empty.skylink)
        assert (loaded.skyfile.verified, loaded.payload) == (Verified.YES, b"")
        assert made.portal.asked("GET.*concat") == []


async def test_small_content_is_rebuilt_file_by_file(stack: OpenContentStack):
    """T1: all of it has been checked. So it is also from a portal that knows no ``format=concat``,
    which is asked for each file by its path.
    """
    async with stack() as made:
        made.portal.add(INLINE)
        made.portal.base_sectors = made.portal.concat = False
        loaded = await made.loader.load(INLINE.skylink)
        assert loaded.skyfile.verified is Verified.YES
        assert loaded.payload == INLINE.payload
        assert [request.path.partition("/d/")[2] for request in made.portal.asked("GET.*/d/")] == [
            "b.txt"
        ]


@pytest.mark.parametrize(
    ("policy", "verified"), [(VerifyPolicy.AVAILABLE, Verified.NO), (VerifyPolicy.OFF, Verified.NO)]
)
async def test_large_content_by_the_portals_word(
    stack: OpenContentStack, policy: VerifyPolicy, verified: Verified
):
    """T4: Not covered: content whose portal hands out no base sector and that is larger than 4 MiB.

    Large content without a base sector is served unverified, and says so.
    """
    async with stack(policy=policy) as made:
        made.portal.add(LARGE)
        made.portal.base_sectors = False
        found = (await made.loader.load(LARGE.skylink)).skyfile
        assert (found.verified, found.inline, found.size) == (verified, False, 5 * MIB)


@pytest.mark.parametrize(
    "skyfile",
    [LARGE, skyfiles.packed(FILES), skyfiles.encrypted(FILES)],
    ids=["large", "packed", "encrypted"],
)
async def test_verification_required(stack: OpenContentStack, skyfile: FakeSkyfile):
    """T5: `verify = "require"` refuses with EIO what cannot be checked.

    Where verification is required, what cannot be verified is refused.
    """
    async with stack(policy=VerifyPolicy.REQUIRE) as made:
        made.portal.add(skyfile)
        if skyfile is LARGE:
            made.portal.base_sectors = False
        with pytest.raises(BadContentError, match="cannot be verified"):
            await made.loader.load(skyfile.skylink)


async def test_packed_content(stack: OpenContentStack):
    """T4: skylinks into a packed sector (offset other than 0).

    Behind other content in a sector, the base sector proves nothing and is not asked for.
    """
    packed = skyfiles.packed(FILES)
    async with stack() as made:
        made.portal.add(packed)
        found = (await made.loader.load(packed.skylink)).skyfile
        assert found.verified is Verified.NO
        assert made.portal.asked("basesector") == []


async def test_encrypted_content(stack: OpenContentStack):
    """T4: content that the portal decrypts.

    What the portal decrypts is served unverified, however small; and that the portal has base
    sectors is not forgotten over it.
    """
    contents = [skyfiles.encrypted({"f": f"secret {n}".encode()}) for n in range(5)]
    async with stack() as made:
        made.portal.add(*contents, INLINE)
        for content in contents:
            found = await made.reader.load(content.skylink)
            assert found.verified is Verified.NO
            data = await made.reader.read(found, 0, found.size)
            assert bytes(data) == content.payload
        await made.loader.load(INLINE.skylink)
        assert len(made.portal.asked("basesector")) == 6


@pytest.mark.parametrize("hands_out_sectors", [True, False])
async def test_base_sector_that_is_encrypted_up_to_its_end(
    stack: OpenContentStack, hands_out_sectors: bool
):
    """Encrypted content is described by the portal's word, its own layout being noise; a mount
    that requires verification refuses it.
    """
    content = skyfiles.sealed({"f": b"secret"})
    if not hands_out_sectors:
        content = replace(content, sectors={})
    async with stack() as made:
        made.portal.add(content)
        found = await made.reader.load(content.skylink)
        assert found.verified is Verified.NO
        assert bytes(await made.reader.read(found, 0, found.size)) == b"secret"
    async with stack(policy=VerifyPolicy.REQUIRE) as made:
        made.portal.add(content)
        with pytest.raises(BadContentError):
            await made.loader.load(content.skylink)


async def test_content_that_only_claims_to_be_encrypted(stack: OpenContentStack):
    """A base sector that says it is encrypted, and is not the sector's start, is refused."""
    content = skyfiles.sealed({"f": b"secret"})
    assert content.base is not None
    async with stack() as made:
        made.portal.add(replace(content, base=content.base[:-1] + b"?"))
        with pytest.raises(BadContentError):
            await made.loader.load(content.skylink)


async def test_no_verification(stack: OpenContentStack):
    """T5: `"off"` checks nothing.

    With verification off nothing is checked, and nothing is asked for that.
    """
    async with stack(policy=VerifyPolicy.OFF) as made:
        made.portal.add(INLINE)
        found = (await made.loader.load(INLINE.skylink)).skyfile
        assert found.verified is Verified.NO
        assert [request.method for request in made.portal.requests] == ["HEAD"]


@pytest.mark.parametrize(
    ("raw", "length"),
    [(b'{"filename":"f"}', 9), (b'{"filename":"f","length":9}', None), (b"{}", 9)],
)
async def test_size_by_metadata_or_header(stack: OpenContentStack, raw: bytes, length: int | None):
    """The size comes from the metadata, or from the length of the answer."""
    content = skyfiles.unverifiable(raw, b"123456789")
    async with stack() as made:
        made.portal.add(content)
        if length is None:
            made.portal.fault(lambda _, reply: replace(reply, endless=b"x"), "HEAD")
        assert (await made.loader.load(content.skylink)).skyfile.size == 9


async def test_no_size_at_all(stack: OpenContentStack):
    """Content whose size nobody tells is bad content."""
    content = skyfiles.unverifiable(b'{"filename":"f"}', b"x")
    async with stack() as made:
        made.portal.add(content)
        made.portal.fault(lambda _, reply: replace(reply, endless=b"x"), "HEAD")
        with pytest.raises(BadContentError, match="size"):
            await made.loader.load(content.skylink)


async def test_no_metadata_anywhere(stack: OpenContentStack):
    """A portal with neither header nor endpoint has not got it, as far as anybody can tell."""
    async with stack() as made:
        made.portal.add(INLINE)
        made.portal.base_sectors = made.portal.metadata_header = False
        made.portal.metadata_endpoint = False
        with pytest.raises(NotFoundError):
            await made.loader.load(INLINE.skylink)


async def test_base_sector_is_asked_for_whatever_was_refused(stack: OpenContentStack):
    """T3: A portal that refused base sectors of other content may prove this one."""
    contents = [skyfiles.of_files({"f": noise(50, n)}) for n in range(6)]
    async with stack() as made:
        made.portal.add(*contents)
        made.portal.base_sectors = False
        for content in contents:
            await made.loader.load(content.skylink)
        assert len(made.portal.asked("basesector")) == 6


@pytest.mark.parametrize("background", [False, True])
async def test_head_is_asked_for_at_the_same_time(stack: OpenContentStack, background: bool):
    """G6: At a portal that has not sent a base sector yet; not for what is fetched ahead."""
    async with stack() as made:
        made.portal.add(INLINE)
        made.portal.fault(fake.waits(0.2), "basesector")
        with in_background() if background else nullcontext():
            loaded = await made.loader.load(INLINE.skylink)
        assert loaded.skyfile.verified is Verified.YES
        assert len(made.portal.asked("HEAD")) == (not background)


# --- a portal that fails to send headers


@pytest.mark.parametrize("skyfile", [INLINE, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("code", [500, 502, 503, 504])
async def test_head_that_fails(stack: OpenContentStack, skyfile: FakeSkyfile, code: int):
    """T3: The headers of a HEAD request are not needed: the metadata endpoint is asked."""
    async with stack() as made:
        made.portal.add(skyfile)
        made.portal.base_sectors = False
        made.portal.fault(fake.status(code), "^HEAD")
        found = (await made.loader.load(skyfile.skylink)).skyfile
        assert (found.size, found.listing.records) == (
            len(skyfile.payload),
            len(json.loads(skyfile.metadata)["subfiles"]),
        )
        assert found.verified is (Verified.YES if skyfile is INLINE else Verified.NO)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (fake.status(429), UnavailableError),
        (fake.status(404), NotFoundError),
        (fake.status(403), AccessDeniedError),
        (fake.closes_after(-1), PortalError),
    ],
    ids=["429", "404", "403", "closed"],
)
async def test_head_that_is_refused(
    stack: OpenContentStack, fault: fake.Fault, error: type[PortalError]
):
    """A portal that is busy, refuses, or breaks off is not asked for the same in another way."""
    async with stack() as made:
        made.portal.add(INLINE)
        made.portal.base_sectors = False
        made.portal.fault(fault, "^HEAD")
        with pytest.raises(error):
            await made.loader.load(INLINE.skylink)
        assert made.portal.asked("/svc/metadata/") == []


# --- portals that lie

LIES = {
    "base sector, a bit": (True, fake.flips(300), "basesector"),
    "base sector, another": (True, fake.body_is(LARGE.base or b""), "basesector"),
    "base sector, empty": (True, fake.body_is(b""), "basesector"),
    "base sector, a page": (True, fake.html, "basesector"),
    "base sector, cut": (True, fake.short(100), "basesector"),
    "base sector, without end": (True, fake.endless_body, "basesector"),
    "metadata": (False, fake.header(b"svc-metadata", describe({"a.txt": b"F" * 20_005})), "HEAD"),
    "metadata, padded": (
        False,
        fake.header(b"svc-metadata", INLINE.metadata + b"\t" * 9000 + b"."),
        "HEAD",
    ),
    "metadata, another size": (
        False,
        fake.header(b"svc-metadata", INLINE.metadata.replace(b"20005", b"90005")),
        "HEAD",
    ),
    "metadata, no JSON": (False, fake.header(b"svc-metadata", b"<html>"), "HEAD"),
    "payload, a bit": (False, fake.flips(10), "GET.*concat"),
    "payload, other bytes": (False, fake.swaps(noise(90_000, 9)), "GET.*concat"),
    "payload, cut": (False, fake.short(1), "GET"),
    "payload, too long": (False, fake.excess(b"!"), "GET /(?!svc/)"),
    "skylink": (False, fake.header(b"Svc-Skylink", b"nonsense"), "HEAD"),
}


@pytest.mark.parametrize("what", LIES)
async def test_lying_portal_and_an_honest_one(stack: OpenContentStack, what: str):
    """T3: A portal whose answer fails the check is not believed: the next portal is asked.

    A lie about small content is found out, and the next portal asked.
    """
    base_sectors, lie, where = LIES[what]
    async with stack(portals=2) as made:
        for portal in made.portals:
            portal.add(INLINE)
            portal.base_sectors = base_sectors
        made.portal.fault(lie, where)
        loaded = await made.loader.load(INLINE.skylink)
        assert loaded.payload == INLINE.payload
        assert all(map(loaded.skyfile.listing.record, FILES))
        assert loaded.skyfile.portal == made.portals[1].url
        assert loaded.skyfile.verified is Verified.YES


@pytest.mark.parametrize("what", LIES)
async def test_lying_portal_alone(stack: OpenContentStack, what: str):
    """T1: nothing is handed out, not even a name, before all of it has been checked.

    With nobody else to ask, a lie is an error.
    """
    base_sectors, lie, where = LIES[what]
    async with stack() as made:
        made.portal.add(INLINE)
        made.portal.base_sectors = base_sectors
        made.portal.fault(lie, where)
        with pytest.raises(BadContentError):
            await made.loader.load(INLINE.skylink)


async def test_described_again_for_its_payload(stack: OpenContentStack):
    """A payload that is no longer in memory is fetched and checked as at first."""
    async with stack(portals=2) as made:
        for portal in made.portals:
            portal.add(INLINE)
        found = (await made.loader.load(INLINE.skylink)).skyfile
        made.portal.fault(fake.flips(9))
        assert await made.loader.payload(found) == INLINE.payload


async def test_portals_that_no_longer_agree(stack: OpenContentStack):
    """Content that was small and is now called large is an error."""
    async with stack() as made:
        made.portal.add(INLINE)
        found = (await made.loader.load(INLINE.skylink)).skyfile
        made.portal.base_sectors = False
        huge = INLINE.metadata.replace(b"20005", b"99999999")
        made.portal.fault(fake.header(b"svc-metadata", huge), "HEAD")
        with pytest.raises(BadContentError, match="no longer agree"):
            await made.loader.payload(found)


# --- several portals


async def test_better_description_is_preferred(stack: OpenContentStack):
    """T3: is believed only when no other portal gives one that can be.

    A portal's mere word is believed only if no other portal can prove its own.
    """
    async with stack(portals=3) as made:
        for portal in made.portals:
            portal.add(LARGE)
        made.portals[0].base_sectors = False
        made.portals[1].fault(fake.status(503))
        found = (await made.loader.load(LARGE.skylink)).skyfile
        assert (found.verified, found.portal) == (Verified.YES, made.portals[2].url)
        made.portals[2].base_sectors = False
        found = (await made.loader.load(LARGE.skylink)).skyfile
        assert (found.verified, found.portal) == (Verified.NO, made.portals[0].url)


async def test_full_rounds_before_a_mere_word(stack: OpenContentStack):
    """T3: those that fail are asked three times before what nobody can check is believed."""
    async with stack(portals=2) as made:
        liar, honest = made.portals
        for portal in made.portals:
            portal.add(LARGE)
        liar.base_sectors = False
        honest.fault(fake.status(503), "basesector", times=2)
        found = (await made.loader.load(LARGE.skylink)).skyfile
        assert (found.verified, found.portal) == (Verified.YES, honest.url)


@pytest.mark.parametrize(
    "fault",
    [fake.status(503), fake.status(429), fake.flips(300), fake.closes_after(-1)],
    ids=["503", "429", "lie", "closed"],
)
async def test_provisional_while_a_portal_fails(
    stack: OpenContentStack, fault: fake.Fault, caplog: pytest.LogCaptureFixture
):
    """T6: What cannot be checked, while a portal that failed might have proved it, is provisional.

    The log says so once, and once that it no longer is.
    """
    async with stack(portals=2) as made:
        word, failing = made.portals
        for portal in made.portals:
            portal.add(LARGE)
        word.base_sectors = False
        failing.fault(fault)
        first = (await made.loader.load(LARGE.skylink)).skyfile
        again = (await made.loader.load(LARGE.skylink)).skyfile
        assert first.verified is again.verified is Verified.NO
        assert 0 != first.provisional != again.provisional != 0
        assert first.identity != again.identity
        assert len(failing.asked("basesector")) == FailoverConfig().rounds + 1
        [line] = [record.getMessage() for record in caplog.records if "provisional" in record.msg]
        assert all(text in line for text in (word.url, failing.url, str(LARGE.skylink)))
        caplog.clear()
        failing.heal()
        found = (await made.loader.load(LARGE.skylink)).skyfile
        assert (found.verified, found.provisional) == (Verified.YES, 0)
        assert "no longer provisional" in caplog.text


async def test_silent_portal_and_a_mere_word(stack: OpenContentStack):
    """T3: One that has not answered within 10 s counts as failed."""
    async with stack(portals=2, idle=60.0) as made:
        word, silent = made.portals
        word.add(LARGE)
        word.base_sectors = False
        silent.fault(fake.stalls_after(-1))
        begun = trio.current_time()
        with trio.fail_after(PROOF_TIMEOUT + 10):
            found = (await made.loader.load(LARGE.skylink)).skyfile
        assert trio.current_time() - begun >= PROOF_TIMEOUT
        assert found.provisional


async def test_liar_a_silent_portal_and_an_honest_one(stack: OpenContentStack):
    """T3: all others are asked at once, so a silent one does not keep an honest one from proving
    its answer.
    """
    async with stack(portals=3, idle=60.0) as made:
        liar, silent, honest = made.portals
        for portal in (liar, honest):
            portal.add(LARGE)
        liar.base_sectors = False
        silent.fault(fake.stalls_after(-1))
        with trio.fail_after(PROOF_TIMEOUT / 2):
            found = (await made.loader.load(LARGE.skylink)).skyfile
        assert (found.verified, found.portal) == (Verified.YES, honest.url)


@pytest.mark.parametrize("code", [404, 403, 401, 429])
async def test_refusals_and_a_mere_word(stack: OpenContentStack, code: int):
    """T6: a portal that does not have the content could not prove it; one that refuses might."""
    async with stack(portals=2) as made:
        word, other = made.portals
        word.add(LARGE)
        word.base_sectors = False
        other.fault(fake.status(code))
        found = (await made.loader.load(LARGE.skylink)).skyfile
        assert found.verified is Verified.NO
        assert found.is_provisional == (code != 404)


@pytest.mark.parametrize(
    "skyfile",
    [skyfiles.packed({"p": b"1"}), skyfiles.sealed({"f": b"secret"})],
    ids=["packed", "encrypted"],
)
async def test_what_no_portal_can_prove(stack: OpenContentStack, skyfile: FakeSkyfile):
    """T6: what lies in a packed sector, or is encrypted, is not provisional: there is no proof."""
    async with stack(portals=2) as made:
        word, failing = made.portals
        word.add(skyfile)
        failing.fault(fake.status(503))
        found = (await made.loader.load(skyfile.skylink)).skyfile
        assert (found.verified, found.is_provisional) == (Verified.NO, False)


CROWD = {f"d{n // 100}/{n:05}": b"x" for n in range(20_000)}
"""Files whose metadata is parsed in a worker."""


@pytest.mark.parametrize("base_sectors", [True, False])
async def test_large_metadata(stack: OpenContentStack, base_sectors: bool):
    """S10: is read by a worker process. It is read as any other is, wherever it comes from."""
    content = skyfiles.of_files(CROWD) if base_sectors else unverifiable(CROWD)
    async with stack() as made:
        made.portal.add(content)
        made.portal.base_sectors = base_sectors
        found = (await made.loader.load(content.skylink)).skyfile
        assert found.verified is (Verified.YES if base_sectors else Verified.NO)
        assert (found.size, found.listing.records) == (len(CROWD), len(CROWD))
        assert found.listing.record("d7/00777") == (777, 1, 0o644)
        assert [path for path, *_ in found.listing.extents_from(0)] == list(CROWD)


async def test_large_metadata_that_is_broken(stack: OpenContentStack):
    """A portal whose metadata cannot be read is not used: the next one is asked."""
    content = unverifiable(CROWD)
    async with stack(portals=2) as made:
        for portal in made.portals:
            portal.add(content)
        broken = content.metadata[:-9].replace(b"00777", b"777")
        made.portal.fault(fake.header(b"svc-metadata", broken), "^HEAD")
        found = (await made.loader.load(content.skylink)).skyfile
        assert found.portal == made.portals[1].url
        assert found.listing.records == len(CROWD)


@pytest.mark.parametrize("policy", [VerifyPolicy.AVAILABLE, VerifyPolicy.OFF])
async def test_trial_is_small(stack: OpenContentStack, policy: VerifyPolicy):
    """R11: whether a portal works again is seen from 64 KiB, not from a whole description.

    The trial takes the only hedge there is, so that on a slow machine nothing else is asked of it.
    """
    async with stack(portals=2, policy=policy, hedges=HedgeBudget(burst=1)) as made:
        for portal in made.portals:
            portal.add(INLINE, LEGACY)
            portal.metadata_header = False  # so that a description takes a second request
        first, tried = made.portal, made.failover.health(made.clients[0])
        first.fault(fake.status(503))
        await made.loader.load(LEGACY.skylink)
        first.heal()
        await trio.sleep(1.1)
        first.requests.clear()
        found = (await made.loader.load(INLINE.skylink)).skyfile
        assert found.portal == made.portals[1].url
        with trio.fail_after(60):
            while tried.is_tried:
                await trio.sleep(0.01)
        [request] = first.requests
        assert request.headers["range"] == "bytes=0-65535"


def unverifiable(files: dict[str, bytes]) -> FakeSkyfile:
    """Return content of files that nobody can check."""
    return skyfiles.unverifiable(describe(files), b"".join(files.values()))


async def test_header_too_long(stack: OpenContentStack):
    """S11: the metadata endpoint is asked instead; without one the headers are what went wrong."""
    raw = b'{"filename":"f","length":5,"x":"%s"}' % (b"x" * (9 << 20))
    content = skyfiles.unverifiable(raw, b"hello")
    async with stack() as made:
        made.portal.add(content)
        assert (await made.loader.load(content.skylink)).skyfile.size == 5
        made.portal.metadata_endpoint = False
        with pytest.raises(HeadTooLongError, match="more than 8 MiB of headers"):
            await made.loader.load(content.skylink)
