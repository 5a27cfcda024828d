"""What names that move lead to: how long an answer holds, who is believed, what is followed."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from skymount.errors import BadContentError, NotFoundError, PortalError, UnavailableError
from skymount.policies import VerifyPolicy
from skymount.portal.client.base import PortalReader
from skymount.portal.failover.contestants import FailoverConfig
from skymount.portal.failover.health import State
from skymount.portal.failover.portals import Portals
from skymount.portal.ledger.ledger import Ledger
from skymount.portal.registry.name_resolver import NameResolver, NameResolverConfig, ResolvableName
from skymount.portal.registry.verified_registry import EntryId, VerifiedRegistry
from skymount.settings import PortalOptions
from skymount.wire.hns import RegistryRecord, encode_resolution
from skymount.wire.registry_entry import DELETED, Entry, SignedEntry, hash_data_key
from skymount.wire.registry_proof import encode_proof
from skymount.wire.skylink import Skylink
from tests.fakes import portal as fake
from tests.fakes import skyfiles
from tests.fakes.portal import FakePortal, Reply, running
from tests.fakes.resolving import FakeRegistry
from tests.fakes.skyfiles import FakeSkyfile
from tests.server.registry_entries import OWNER, link_of, signed

SITE = skyfiles.of_files({"f": b"site"})
OTHER = skyfiles.of_files({"f": b"other"})


# --- portals


class Rig:
    """A resolver over fake portals; with or without the registry of this machine."""

    def __init__(
        self, names: NameResolver, registries: list[FakeRegistry], entries: VerifiedRegistry
    ) -> None:
        self.names = names
        self.registries = registries
        self.entries = entries

    @property
    def registry(self) -> FakeRegistry:
        """That of the first portal."""
        return self.registries[0]

    def asked(self, pattern: str = "") -> list[str]:
        """Return what the first portal was asked."""
        return [f"{r.method} {r.path}" for r in self.registry.portal.asked(pattern)]

    async def resolve(self, goal: ResolvableName) -> tuple[Skylink, bool]:
        with trio.fail_after(20):
            found = await self.names.resolve(goal)
        return found.skylink, found.verified


@asynccontextmanager
async def open_rig(
    portals: int = 1, ledger: Path | None = None, **config: object
) -> AsyncIterator[Rig]:
    """Make names and what is below; `ledger` is where this machine's registry is to be kept."""
    async with AsyncExitStack() as stack:
        registries, clients = [], []
        for _ in range(portals):
            portal = await stack.enter_async_context(running(FakePortal()))
            registries.append(FakeRegistry(portal))
            portal.add(SITE, OTHER)
            options = PortalOptions(portal.url, idle_timeout=5, retries=0)
            clients.append(await stack.enter_async_context(PortalReader.of(options)))
        probes = await stack.enter_async_context(trio.open_nursery())
        stack.callback(probes.cancel_scope.cancel)
        asked = Portals(clients, FailoverConfig(backoff=0.001), background=probes)
        made = NameResolverConfig(**config)  # type: ignore[arg-type]
        known = None
        if ledger is not None:
            known = Ledger.open(ledger / "ledger.sqlite3")
            stack.callback(known.close)
        entries = VerifiedRegistry(asked, known)
        yield Rig(NameResolver(asked, entries, made), registries, entries)


def to(skyfile: FakeSkyfile | Skylink, key: str = "key", revision: int = 0) -> SignedEntry:
    """Return an entry that leads somewhere."""
    link = skyfile if isinstance(skyfile, Skylink) else skyfile.skylink
    return signed(key, bytes(link), revision)


V2 = link_of("key")
KEY = EntryId(OWNER.public_key, hash_data_key("key"))


# --- domains


async def test_domain_of_a_skylink():
    """H1: the skylink that the domain resolves to, by a skylink or a registry record.

    It is asked for once as long as the answer holds.
    """
    async with open_rig() as rig:
        rig.registry.lead("example", SITE.skylink)
        for _ in range(3):
            assert await rig.resolve("example") == (SITE.skylink, False)
        assert rig.asked() == ["GET /hnsres/example"]


async def test_domain_where_verification_is_required():
    """T5: `verify = "require"` refuses with EIO what cannot be checked.

    What a domain leads to is the portal's word.
    """
    async with open_rig(verify=VerifyPolicy.REQUIRE) as rig:
        rig.registry.lead("example", SITE.skylink)
        with pytest.raises(BadContentError, match="not verified"):
            await rig.resolve("example")
        assert rig.asked() == []


@pytest.mark.parametrize("with_ledger", [False, True])
async def test_domain_of_a_registry_entry(with_ledger: bool, tmp_path: Path):
    """H1: by a skylink or a registry record.

    The entry is read from the registry, which the record names.
    """
    async with open_rig(ledger=tmp_path if with_ledger else None) as rig:
        rig.registry.set(to(SITE))
        record = RegistryRecord(OWNER.public_key, hash_data_key("key"))
        rig.registry.domains["example"] = encode_resolution(record)
        assert await rig.resolve("example") == (SITE.skylink, False)
        assert rig.asked() == ["GET /hnsres/example", "GET /svc/registry"]


async def test_chain(tmp_path: Path):
    """H1, H4: a domain may lead to a v2 skylink, that to another, and that to content."""
    for ledger in (None, tmp_path):
        async with open_rig(ledger=ledger) as rig:
            rig.registry.set(to(link_of("inner"), "outer"), to(SITE, "inner"))
            rig.registry.lead("example", link_of("outer"))
            assert await rig.resolve("example") == (SITE.skylink, False)


async def test_unknown_domain():
    """H1: Unknown domains are ENOENT, once every portal says so; and that is remembered."""
    async with open_rig(2) as rig:
        for _ in range(3):
            with pytest.raises(NotFoundError):
                await rig.resolve("example")
        assert [len(r.portal.requests) for r in rig.registries] == [1, 1]
        rig.registries[1].lead("other", SITE.skylink)
        assert await rig.resolve("other") == (SITE.skylink, False)


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"[]", b"<html>", b'{"skylink":"x"}', b'{"registry":{}}', b"\xff", b"[" * 9999],
)
async def test_record_of_no_sense(body: bytes):
    """L4: A portal that fails is never reported as ENOENT: nonsense is bad content."""
    async with open_rig() as rig:
        rig.registry.domains["example"] = body
        with pytest.raises(BadContentError):
            await rig.resolve("example")


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (fake.status(500, "Handshake error: x"), UnavailableError),
        (fake.resets_after(-1), UnavailableError),
        (fake.status(404), NotFoundError),
    ],
)
async def test_first_answer_is_a_failure(fault: fake.Fault, error: type[PortalError]):
    """Without an earlier answer a failure is what it is, and asked about again at once."""
    async with open_rig() as rig:
        rig.registry.lead("example", SITE.skylink)
        rig.registry.portal.heal()
        rig.registry.portal.fault(fault)
        with pytest.raises(error):
            await rig.resolve("example")
        rig.registry.portal.heal()
        rig.registry.portal.fault(rig.registry.answer)
        if error is not NotFoundError:
            assert await rig.resolve("example") == (SITE.skylink, False)


async def test_last_good_answer():
    """H3: While the resolver fails, the last good tree is served.

    It is not asked at each look-up, and believed again when it answers.
    """
    async with open_rig(ttl=0.01) as rig:
        rig.registry.lead("example", SITE.skylink)
        await rig.resolve("example")
        rig.registry.portal.heal()
        rig.registry.portal.fault(fake.status(500))
        await trio.sleep(0.02)
        assert await rig.resolve("example") == (SITE.skylink, False)
        assert rig.names.cached("example").stale
        rig.registry.portal.heal()
        rig.registry.portal.fault(rig.registry.answer)
        rig.registry.lead("example", OTHER.skylink)
        await trio.sleep(0.02)
        assert await rig.resolve("example") == (OTHER.skylink, False)
        assert not rig.names.cached("example").stale


async def test_name_that_is_gone():
    """A definite «not found» is no failure: the last good answer is not good any more."""
    async with open_rig(ttl=0.01) as rig:
        rig.registry.lead("example", SITE.skylink)
        await rig.resolve("example")
        rig.registry.domains.clear()
        await trio.sleep(0.02)
        with pytest.raises(NotFoundError):
            await rig.resolve("example")


async def test_one_request_for_all():
    """However many want a name at once, it is asked for once."""
    async with open_rig() as rig:
        rig.registry.lead("example", SITE.skylink)
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(rig.resolve, "example")
        assert rig.asked() == ["GET /hnsres/example"]


async def test_who_gives_up_leaves_no_lock():
    """Whoever is cancelled while asking makes room for the next."""
    async with open_rig() as rig:
        rig.registry.lead("example", SITE.skylink)
        rig.registry.portal._rules.clear()
        rig.registry.portal.fault(fake.stalls_after(-1), times=1)
        rig.registry.portal.fault(rig.registry.answer)
        with trio.move_on_after(0.1):
            await rig.names.resolve("example")
        assert await rig.resolve("example") == (SITE.skylink, False)


# --- v2 skylinks


async def test_proof():
    """H4: It is verified if the portal sends a proof that fits."""
    async with open_rig() as rig:
        rig.registry.set(to(SITE))
        assert await rig.resolve(V2) == (SITE.skylink, True)
        assert rig.asked() == [f"HEAD /{V2}"]


async def test_without_proof():
    """H4: else it is served only with `verify` below `require`."""
    for verify in (VerifyPolicy.AVAILABLE, VerifyPolicy.REQUIRE):
        async with open_rig(verify=verify) as rig:
            rig.registry.set(to(SITE))
            rig.registry.proves = False
            if verify is VerifyPolicy.REQUIRE:
                with pytest.raises(BadContentError, match="not verified"):
                    await rig.resolve(V2)
            else:
                assert await rig.resolve(V2) == (SITE.skylink, False)


async def test_the_one_who_proves_is_preferred():
    """T3: A portal whose answer cannot be checked is believed only when no other portal gives one
    that can be.
    """
    for verify in (VerifyPolicy.AVAILABLE, VerifyPolicy.REQUIRE):
        async with open_rig(3, verify=verify) as rig:
            for registry, skyfile in zip(rig.registries, (SITE, OTHER, OTHER), strict=True):
                registry.set(to(skyfile))
                registry.proves = registry is rig.registries[2]
            assert await rig.resolve(V2) == (OTHER.skylink, True)


async def test_newest_entry_of_all_portals():
    """G18: a proof is the word of one portal; another one may have a newer entry."""
    for newer in (0, 1):
        async with open_rig(2) as rig:
            for number, registry in enumerate(rig.registries):
                is_newer = number == newer
                registry.set(to(OTHER if is_newer else SITE, revision=4 if is_newer else 0))
            assert await rig.resolve(V2) == (OTHER.skylink, True)


async def test_entry_that_comes_late(tmp_path: Path):
    """G18: nobody waits for a late portal; once it has answered, the newest entry counts."""
    async with open_rig(2, tmp_path) as rig:
        prompt, late = rig.registries
        prompt.set(to(SITE))
        late.set(to(OTHER, revision=1))
        wait = fake.waits(3.0)
        late.portal.fault(lambda *asked: wait(asked[0], late.answer(*asked)), first=True)
        assert (await rig.entries.read(KEY)).revision == 0
        with trio.fail_after(30):
            while (found := rig.entries.recall(KEY)) is None or not found.revision:
                await trio.sleep(0.01)


async def test_proof_of_a_portal_without_a_registry():
    """H4: it is enough if no portal hands out the entry."""
    async with open_rig(2) as rig:
        for registry in rig.registries:
            registry.set(to(SITE))
            registry.has_registry = False
        assert await rig.resolve(V2) == (SITE.skylink, True)


async def test_entry_that_was_deleted_since():
    """G18: what another portal proves is not shown then."""
    async with open_rig(2) as rig:
        rig.registry.set(to(SITE))
        rig.registries[1].set(signed("key", DELETED, 1))
        with pytest.raises(NotFoundError):
            await rig.resolve(V2)


async def test_the_one_who_proves_fails_at_first():
    """T3: those that fail are asked three times before what nobody can check is believed."""
    async with open_rig(2) as rig:
        word, honest = rig.registries
        word.set(to(SITE))
        word.proves = False
        honest.set(to(OTHER))
        honest.portal.fault(fake.status(503), times=2, first=True)
        assert await rig.resolve(V2) == (OTHER.skylink, True)


async def test_provisional_answer(caplog: pytest.LogCaptureFixture):
    """T6: Where a v2 skylink leads is provisional in the same way."""
    async with open_rig(2) as rig:
        word, honest = rig.registries
        word.set(to(SITE))
        word.proves = False
        honest.set(to(OTHER))
        honest.portal.fault(fake.status(503), first=True)
        found = await rig.names.resolve(V2)
        assert (found.skylink, found.verified, found.provisional) == (SITE.skylink, False, True)
        assert 0 < rig.names.revalidate_in(V2) <= 5
        assert "provisional" in caplog.text
        assert honest.portal.url in caplog.text


@pytest.mark.parametrize("proves", [True, False])
async def test_headers_that_cannot_be_had(proves: bool):
    """T3: The headers of a HEAD request are not needed: the resolve endpoint tells it as well."""
    async with open_rig() as rig:
        rig.registry.set(to(SITE))
        rig.registry.proves = proves
        rig.registry.portal.fault(fake.status(502), "^HEAD", first=True)
        assert await rig.resolve(V2) == (SITE.skylink, proves)
        assert rig.asked() == [f"HEAD /{V2}", f"GET /svc/resolve/{V2}"]


async def test_nothing_is_checked():
    """T5: `"off"` checks nothing."""
    async with open_rig(2, verify=VerifyPolicy.OFF) as rig:
        for registry in rig.registries:
            registry.set(to(SITE))
        rig.registry.portal._rules.clear()
        rig.registry.portal.fault(_forged(encode_proof([to(OTHER)])))
        assert await rig.resolve(V2) == (SITE.skylink, False)
        assert rig.registries[1].portal.requests == []


def _forged(proof: bytes, target: Skylink = SITE.skylink) -> fake.Fault:
    headers = ((b"Svc-Skylink", str(target).encode()), (b"Svc-Proof", proof))
    return lambda *_: Reply(200, headers)


GOOD = to(SITE)
FORGERIES = {
    "empty": b"",
    "no hop": b"[]",
    "no JSON": b"<html>",
    "elsewhere": encode_proof([to(OTHER)]),
    "a bit of the signature": encode_proof(
        [replace(GOOD, signature=GOOD.signature[:9] + b"\0" + GOOD.signature[10:])]
    ),
    "many": encode_proof([GOOD] * 3),
    "huge": encode_proof([GOOD] * 100),
}


@pytest.mark.parametrize("what", FORGERIES)
@pytest.mark.parametrize("verify", [VerifyPolicy.AVAILABLE, VerifyPolicy.REQUIRE])
async def test_forged_proof(what: str, verify: VerifyPolicy):
    """T3: A portal whose answer fails the check is not believed: the next portal is asked."""
    async with open_rig(2, verify=verify) as rig:
        rig.registry.portal._rules.clear()
        rig.registry.portal.fault(_forged(FORGERIES[what]))
        rig.registries[1].set(to(OTHER))
        assert await rig.resolve(V2) == (OTHER.skylink, True)
        rig.registries[1].entries.clear()
    async with open_rig(verify=verify) as rig:
        rig.registry.portal._rules.clear()
        rig.registry.portal.fault(_forged(FORGERIES[what]))
        with pytest.raises(BadContentError):
            await rig.resolve(V2)


@pytest.mark.parametrize("target", [b"", b"nonsense", str(link_of("other")).encode()])
async def test_portal_that_does_not_say_where(target: bytes):
    """A portal that does not say what a v2 skylink stands for is of no use."""
    async with open_rig() as rig:
        rig.registry.portal._rules.clear()
        rig.registry.portal.fault(lambda *_: Reply(200, ((b"Svc-Skylink", target),)))
        with pytest.raises(BadContentError):
            await rig.resolve(V2)


async def test_unknown_v2_skylink(tmp_path: Path):
    """A v2 skylink whose entry is absent or was deleted is not there."""
    for ledger in (None, tmp_path):
        async with open_rig(ledger=ledger, ttl=0.01) as rig:
            with pytest.raises(NotFoundError):
                await rig.resolve(V2)
            rig.names.record_failure(V2)  # ends what «not found» holds for
            await trio.sleep(0.02)
            rig.registry.set(to(SITE))
            await rig.resolve(V2)
            rig.registry.set(signed("key", DELETED, 1))
            await trio.sleep(0.02)
            with pytest.raises(NotFoundError):
                await rig.resolve(V2)


@pytest.mark.parametrize("with_ledger", [False, True])
async def test_rolled_back(with_ledger: bool, tmp_path: Path):
    """G4: nor a revision below the highest that this machine has seen of the entry.

    A proof of what was there before is no proof: another portal is asked, and without one the last
    good answer stays.
    """
    async with open_rig(2, tmp_path if with_ledger else None, ttl=0.01) as rig:
        rig.registry.set(to(SITE, revision=5))
        rig.registries[1].set(to(SITE, revision=5))
        assert await rig.resolve(V2) == (SITE.skylink, True)
        rig.registry.set(to(OTHER, revision=4))
        await trio.sleep(0.02)
        assert await rig.resolve(V2) == (SITE.skylink, True)
        assert not rig.names.cached(V2).stale
        rig.registries[1].set(to(OTHER, revision=4))
        await trio.sleep(0.02)
        assert await rig.resolve(V2) == (SITE.skylink, True)
        assert rig.names.cached(V2).stale
        rig.registries[1].set(to(OTHER, revision=6))
        await trio.sleep(0.02)
        assert await rig.resolve(V2) == (OTHER.skylink, True)


async def test_rolled_back_before_the_restart(tmp_path: Path):
    """G4: nor a revision below the highest that this machine has seen: also in an earlier mount."""
    async with open_rig(ledger=tmp_path) as rig:
        rig.registry.set(to(SITE, revision=5))
        await rig.resolve(V2)
    async with open_rig(ledger=tmp_path) as rig:
        rig.registry.set(to(OTHER, revision=4))
        with pytest.raises(BadContentError):
            await rig.resolve(V2)


async def test_key_that_a_proof_told(tmp_path: Path):
    """H4: or its entry can be read from the registry.

    Whose public key is known from an earlier proof needs no other one.
    """
    async with open_rig(ledger=tmp_path, ttl=0.01, verify=VerifyPolicy.REQUIRE) as rig:
        rig.registry.set(to(SITE))
        await rig.resolve(V2)
        rig.registry.proves = False
        rig.registry.set(to(OTHER, revision=1))
        await trio.sleep(0.02)
        assert await rig.resolve(V2) == (OTHER.skylink, True)
        assert not rig.names.cached(V2).stale


async def test_key_that_the_ledger_knows(tmp_path: Path):
    """H4: or its entry can be read from the registry.

    So it can be for an entry that was used on this machine before.
    """
    ledger = Ledger.open(tmp_path / "ledger.sqlite3")
    for n in range(20):
        ledger.record_seen(SignedEntry(bytes([n]) * 32, Entry(bytes(32), b"", 0), bytes(64)), None)
    ledger.record_seen(to(SITE), "key")
    ledger.close()
    async with open_rig(ledger=tmp_path, verify=VerifyPolicy.REQUIRE) as rig:
        rig.registry.proves = False
        rig.registry.set(to(SITE))
        assert await rig.resolve(V2) == (SITE.skylink, True)
        assert rig.asked() == ["GET /svc/registry"]


async def test_portal_without_a_registry(tmp_path: Path):
    """Where the entry cannot be read, a proof will do, though the key is known."""
    async with open_rig(ledger=tmp_path, ttl=0.01) as rig:
        rig.registry.set(to(SITE))
        await rig.resolve(V2)
        rig.registry.has_registry = False
        await trio.sleep(0.02)
        assert await rig.resolve(V2) == (SITE.skylink, True)
        assert not rig.names.cached(V2).stale


async def test_entries_without_end(tmp_path: Path):
    """Entries that lead to one another lead nowhere, and are not followed for ever."""
    async with open_rig(ledger=tmp_path) as rig:
        keys = [f"k{n}" for n in range(6)]
        hops = [to(link_of(keys[(n + 1) % 6]), key) for n, key in enumerate(keys)]
        rig.registry.set(*hops)
        for hop in hops:
            rig.names.learn_key(RegistryRecord(hop.public_key, hop.entry.tweak))
        with pytest.raises(BadContentError, match="on the way"):
            await rig.resolve(hops[0].link)
        assert len(rig.asked("registry")) == 3


@pytest.mark.parametrize("data", [b"", b"text", bytes(34)[:33], b"\xff" * 34])
async def test_entry_that_holds_no_skylink(data: bytes, tmp_path: Path):
    """An entry that is about something else leads nowhere."""
    async with open_rig(ledger=tmp_path) as rig:
        rig.registry.set(signed("key", data))
        record = RegistryRecord(OWNER.public_key, hash_data_key("key"))
        rig.registry.domains["example"] = encode_resolution(record)
        with pytest.raises(BadContentError):
            await rig.resolve("example")


# --- entries that change meanwhile


async def test_entry_that_changes(tmp_path: Path):
    """H5: the v2 skylinks and domains that it now leads elsewhere are asked for again.

    Not those that it does not lead anywhere else, nor those that came another way.
    """
    async with open_rig(ledger=tmp_path) as rig:
        rig.registry.set(to(link_of("inner"), "outer"), to(SITE, "inner"), to(SITE))
        rig.registry.lead("chain", link_of("outer"))
        rig.registry.lead("direct", SITE.skylink)
        goals: list[ResolvableName] = ["chain", "direct", link_of("outer"), link_of("inner"), V2]
        for goal in goals * 2:
            assert (await rig.resolve(goal))[0] == SITE.skylink
        by_inner = {"chain", link_of("outer"), link_of("inner")}
        for content, expected in ((SITE, set[ResolvableName]()), (OTHER, by_inner)):
            rig.registry.set(to(content, "inner", 1 if content is SITE else 2))
            await rig.entries.read(replace(KEY, tweak=hash_data_key("inner")))
            assert {goal for goal in goals if not rig.names.revalidate_in(goal)} == expected
        for goal in goals:
            target = OTHER if goal in by_inner else SITE
            assert (await rig.resolve(goal))[0] == target.skylink
        assert all(rig.names.revalidate_in(goal) for goal in goals)


@pytest.mark.parametrize("proves", [False, True])
async def test_entry_of_an_answer_by_a_portal(tmp_path: Path, proves: bool):
    """H5: a registry entry that is found changed, also where a portal told the way.

    That its proof shows the entry is no change.
    """
    async with open_rig(ledger=tmp_path) as rig:
        rig.registry.set(to(SITE))
        rig.registry.proves = proves
        assert await rig.resolve(V2) == (SITE.skylink, proves)
        await rig.entries.read(KEY)
        assert rig.names.revalidate_in(V2)
        rig.registry.set(to(OTHER, revision=1))
        await rig.entries.read(KEY)
        assert not rig.names.revalidate_in(V2)
        assert (await rig.resolve(V2))[0] == OTHER.skylink
        assert rig.names.revalidate_in(V2)


async def test_entry_that_is_deleted(tmp_path: Path):
    """H5: a name whose entry is deleted is gone, and is there again with the entry."""
    async with open_rig(ledger=tmp_path) as rig:
        for revision in (0, 2):
            rig.registry.set(to(SITE, revision=revision))
            await rig.entries.read(KEY)
            assert (await rig.resolve(V2))[0] == SITE.skylink
            rig.registry.set(signed("key", DELETED, revision + 1))
            await rig.entries.read(KEY)
            with pytest.raises(NotFoundError):
                await rig.resolve(V2)


async def test_entry_that_changes_while_the_resolver_fails(tmp_path: Path):
    """H5: By which entries the tree came that is served then (H3) is still known."""
    async with open_rig(ledger=tmp_path, ttl=1.0) as rig:
        rig.registry.set(to(SITE))
        rig.registry.lead("example", V2)
        assert await rig.resolve("example") == (SITE.skylink, False)
        rig.registry.domains["example"] = b"nonsense"
        await trio.sleep(1)
        assert await rig.resolve("example") == (SITE.skylink, False)
        assert rig.names.revalidate_in("example")
        rig.registry.set(to(OTHER, revision=1))
        await rig.entries.read(KEY)
        assert not rig.names.revalidate_in("example")


@pytest.mark.parametrize("verify", [VerifyPolicy.AVAILABLE, VerifyPolicy.OFF])
@pytest.mark.parametrize("name", ["example", V2], ids=["domain", "skylink"])
async def test_failed_portal_comes_back(name: ResolvableName, verify: VerifyPolicy):
    """R12: names alone are enough for that."""
    async with open_rig(2, ttl=0.0, verify=verify) as rig:
        for registry in rig.registries:
            registry.set(to(SITE))
            registry.lead("example", SITE.skylink)
        rig.registry.portal.fault(fake.status(503), "/", first=True)
        first = rig.entries.portals.health(rig.entries.portals.clients[0])
        assert (await rig.resolve(name))[0] == SITE.skylink
        assert first.state(trio.current_time()) is State.OPEN
        rig.registry.portal.heal("/")
        await trio.sleep(1.1)
        assert (await rig.resolve(name))[0] == SITE.skylink
        with trio.fail_after(10):
            while first.state(trio.current_time()) is not State.CLOSED:
                await trio.sleep(0.01)
