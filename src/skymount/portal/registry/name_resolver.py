"""Owns what a name that moves leads to now: a domain or a v2 skylink, to a v1 skylink.

`CachedResolution`, a plain value, decides how long an answer holds, when to ask again after a failure and
what is served meanwhile. `NameResolver` asks, with one request per name for all callers. An answer
ends early when a registry entry on its path turns out to lead elsewhere.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import trio
from cachetools import LRUCache

from skymount.errors import (
    BadContentError,
    MalformedError,
    NotFoundError,
    PortalError,
    StorageError,
    UnavailableError,
)
from skymount.portal.client import hns as names
from skymount.portal.client.base import PortalReader
from skymount.portal.failover import Portals
from skymount.portal.registry.revision_marks import EntryId
from skymount.portal.registry.verified_registry import EntryState, VerifiedRegistry
from skymount.wire.hns import DomainRecord, RegistryRecord
from skymount.wire.registry_entry import SignedEntry, entry_link, linked_skylink
from skymount.wire.registry_proof import HOPS, check_proof, parse_proof
from skymount.wire.skylink import Skylink

log = logging.getLogger(__name__)

ResolvableName = Skylink | str
"""What can move: a v2 skylink, or a domain in the form of `wire.hns.parse_domain`."""

ResolutionPath = dict[Skylink, Skylink | None]
"""The registry entries by which an answer came, as v2 skylinks, and where each led, if anywhere."""

NEGATIVE_TTL = 5.0
"""Seconds for which «not found» holds: the name may be made any moment."""

_FIRST_PAUSE = 2.0
"""Seconds after a failure until a name is asked for again; doubled for each further one in a row,
up to the time for which an answer holds."""

_PROVISIONAL_TTL = 5.0
"""Seconds for which an answer holds that a portal which failed might have disproved."""

_PROOF_LIMIT = 16 << 10
"""Bytes of a proof; the longest honest one has less than 2 KiB."""

_KEPT = 4096  # names and keys that are remembered, those that were used last


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a name leads to."""

    skylink: Skylink
    """A v1 skylink."""
    verified: bool
    """Whether each registry entry on the way was; never of a domain, whose record is a portal's
    word."""
    at: float = 0.0
    """When it was asked for, by trio's clock."""
    provisional: bool = False
    """Whether nobody proved it, and a portal failed that might have proved something else."""


@dataclass(frozen=True, slots=True)
class CachedResolution:
    """What is known of a name. Times are seconds of one clock."""

    found: Resolution | None = None
    """The last good answer."""
    absent: bool = False
    """Whether the last answer was that there is no such name."""
    asked: float = 0.0
    """When that answer was asked for."""
    failures: int = 0
    """In a row, since that answer."""
    failed: float = 0.0
    """When the last of them was."""
    outdated: bool = False
    """Whether it is known to have changed since."""

    @property
    def stale(self) -> bool:
        """Whether the last good answer is served though it may have changed."""
        return self.found is not None and (self.failures > 0 or self.outdated)

    def pause(self, now: float, ttl: float) -> float:
        """Return the seconds until the name is to be asked for again; 0: now."""
        if self.outdated:
            return 0.0
        if self.failures:
            until = self.failed + min(ttl, _FIRST_PAUSE * 2.0 ** min(self.failures - 1, 32))
        elif self.absent:
            until = self.asked + NEGATIVE_TTL
        elif self.found is not None:
            until = self.asked + (min(ttl, _PROVISIONAL_TTL) if self.found.provisional else ttl)
        else:
            return 0.0
        return max(0.0, until - now)

    def answer(self, now: float, ttl: float) -> Resolution | None:
        """Return what holds without asking; NotFoundError when that is what holds."""
        if not self.pause(now, ttl):
            return None
        if self.absent:
            raise NotFoundError("there is no such name")
        return self.found

    def fail(self, now: float) -> "CachedResolution":
        """Return what is known after a failure: «not found» is not believed any longer."""
        failures = self.failures + 1
        return replace(self, absent=False, failures=failures, failed=now, outdated=False)


@dataclass(frozen=True, slots=True)
class NameResolverConfig:
    """How names are resolved."""

    ttl: float = 60.0
    """Seconds for which an answer holds."""
    check: bool = True
    """Whether proofs are checked, and looked for where a portal sends none."""
    require: bool = False
    """Whether a v2 skylink that nobody proves is refused, and every domain."""


@dataclass(slots=True)
class _Held:
    """A name: what is known of it, and who may ask."""

    known: CachedResolution = field(default_factory=CachedResolution)
    way: ResolutionPath = field(default_factory=dict)
    """Of the last good answer, or as far as the request under way has come."""
    outdated: bool = False
    """Whether one of these entries has changed since."""
    asking: trio.Lock = field(default_factory=trio.Lock)

    def outdate(self) -> None:
        """End what is known, and what a request under way will bring."""
        self.outdated = True
        self.known = replace(self.known, outdated=True)


class NameResolver:
    """Resolves domains and v2 skylinks, through all portals.

    `entries` reads registry entries whose public key is known. Of others it is for the portals to
    prove where a v2 skylink leads, and `entries` tells whether that was rolled back.
    """

    def __init__(
        self, portals: Portals, entries: VerifiedRegistry, config: NameResolverConfig | None = None
    ) -> None:
        self._portals = portals
        self._entries = entries
        self._config = config or NameResolverConfig()
        self._held: LRUCache[ResolvableName, _Held] = LRUCache(_KEPT)
        self._refs: LRUCache[Skylink, EntryId] = LRUCache(_KEPT)
        entries.watch(self._entry_changed)

    def _entry_changed(self, ref: EntryId, state: EntryState) -> None:
        """End what is known of each name that came by an entry when that led elsewhere."""
        link = entry_link(ref.public_key, ref.tweak)
        leads_to = None if state.data is None else linked_skylink(state.data)
        for held in self._held.values():
            if held.way.get(link, leads_to) != leads_to:
                held.outdate()

    def known(self, goal: ResolvableName) -> CachedResolution:
        """Return what is known of a name."""
        held = self._held.get(goal)
        return CachedResolution() if held is None else held.known

    def pause(self, goal: ResolvableName) -> float:
        """Return the seconds until a name is to be asked for again; 0: now."""
        return self.known(goal).pause(trio.current_time(), self._config.ttl)

    def learn(self, record: DomainRecord) -> None:
        """Take in the public key that a domain's record names."""
        if isinstance(record, RegistryRecord):
            self._refs[record.skylink] = EntryId(record.public_key, record.tweak)

    def set_back(self, goal: ResolvableName) -> None:
        """Count a failure: what the name leads to now cannot be used."""
        held = self._hold(goal)
        held.known = held.known.fail(trio.current_time())

    async def resolve(self, goal: ResolvableName) -> Resolution:
        """Return what a name leads to, from memory as long as that holds.

        While asking fails the last good answer is returned, if there was one; else that failure is
        raised as the PortalError that it is. NotFoundError only when every portal says so.
        """
        held = self._hold(goal)
        async with held.asking:
            found = held.known.answer(trio.current_time(), self._config.ttl)
            return await self._ask(goal, held) if found is None else found

    def _hold(self, goal: ResolvableName) -> _Held:
        held = self._held.get(goal)
        if held is None:
            held = self._held[goal] = _Held()
        return held

    async def _ask(self, goal: ResolvableName, held: _Held) -> Resolution:
        now = trio.current_time()
        before, held.way, held.outdated = held.way, {}, False
        try:
            found = replace(await self._find(goal, held.way), at=now)
        except NotFoundError:
            held.known = CachedResolution(absent=True, asked=now, outdated=held.outdated)
            raise
        except (PortalError, StorageError) as error:
            held.way = before | held.way
            held.known = held.known.fail(trio.current_time())
            if held.known.found is not None:
                log.warning("%s: the last good answer is served: %s", goal, error)
                return held.known.found
            if isinstance(error, StorageError):  # what was rolled back could not be told
                raise UnavailableError(str(error)) from None
            raise
        held.known = CachedResolution(found, asked=now, outdated=held.outdated)
        return found

    async def _find(self, goal: ResolvableName, way: ResolutionPath) -> Resolution:
        if isinstance(goal, Skylink):
            return await self._follow(goal, way)
        if self._config.require:
            raise BadContentError(f"{goal}: what a domain leads to is not verified")
        record = await self._portals.first(partial(self._record, domain=goal))
        self.learn(record)
        return replace(await self._follow(record.skylink, way), verified=False)

    @staticmethod
    async def _record(client: PortalReader, domain: str) -> DomainRecord:
        return (await names.resolve(client.transport, domain, client.options)).record

    async def _follow(self, link: Skylink, way: ResolutionPath) -> Resolution:
        """Follow a skylink of any version, and note the way."""
        for _ in range(HOPS + 1):
            if link.version == 1:
                return Resolution(link, verified=True)
            following = await self._following(link, way)
            if following is None:
                return await self._by_portal(link, way)
            link = following
        raise BadContentError(f"{link}: more registry entries than {HOPS} are on the way")

    # By the registry

    async def _following(self, link: Skylink, way: ResolutionPath) -> Skylink | None:
        """Read the entry that a v2 skylink names; None where only a portal can tell.

        What a portal forged or rolled back is an error: its word would be no better.
        """
        ref = self._refs.get(link) or await self._entries.key_of(link)
        if ref is None:
            return None
        self._refs[link] = ref
        try:
            state = await self._entries.read(ref, named=False)
        except BadContentError:
            raise
        except PortalError as error:
            log.info("%s: its entry cannot be read: %s", link, error)
            return None
        if state.signed is None:  # or the portals have no registry, and still know the way
            return None
        way[link] = None if state.data is None else linked_skylink(state.data)
        return _linked(link, state.signed)

    # By a portal's word and proof

    async def _by_portal(self, link: Skylink, way: ResolutionPath) -> Resolution:
        """Let a portal follow a v2 skylink, one that proves its answer if there is such a one."""
        way[link] = None
        ask = partial(self._head, link=link, way=way)
        if not self._config.check:
            return await self._portals.first(ask)
        found, failed = await self._portals.best(ask, lambda resolution: resolution.verified)
        if not failed:
            return found
        names = ", ".join(sorted(client.url for client in failed))
        log.warning("%s: provisional: not proven, and failed to answer: %s", link, names)
        return replace(found, provisional=True)

    async def _head(self, client: PortalReader, link: Skylink, way: ResolutionPath) -> Resolution:
        asked = trio.current_time()
        head = await self._portals.budget.run(partial(client.head, link))
        if head.skylink is None or head.skylink.version != 1:
            raise BadContentError("the portal does not say what it resolved to", url=client.url)
        proven = False
        if self._config.check and head.proof is not None:
            try:
                hops = proven_way(link, head.skylink, head.proof)
                way.update((hop.link, linked_skylink(hop.entry.data)) for hop in hops)
                await self._accept(hops, asked, client.url)
            except MalformedError as error:
                raise BadContentError(f"{link}: {error}", url=client.url) from None
            proven = True
        if self._config.require and not proven:
            raise BadContentError(f"{link}: where it leads is not verified", url=client.url)
        if not proven:
            way[link] = head.skylink
        return Resolution(head.skylink, proven)

    async def _accept(self, hops: Sequence[SignedEntry], asked: float, portal: str) -> None:
        """Take note of entries that are proven; BadContentError when one was rolled back."""
        for hop in hops:
            await self._entries.accept(hop, asked, portal)
        for hop in hops:
            self._refs[hop.link] = EntryId(hop.public_key, hop.entry.tweak)


def proven_way(link: Skylink, resolved: Skylink, proof: bytes) -> Sequence[SignedEntry]:
    """Return the entries of a proof; MalformedError when it is none."""
    if len(proof) > _PROOF_LIMIT:
        raise MalformedError(f"a proof has at most {_PROOF_LIMIT} bytes")
    hops = parse_proof(proof)
    if len(hops) > HOPS:
        raise MalformedError(f"a proof has at most {HOPS} registry entries")
    check_proof(link, resolved, hops)
    return hops


def _linked(link: Skylink, signed: SignedEntry) -> Skylink:
    """Return the skylink that an entry holds; NotFoundError when its owner deleted it."""
    if signed.entry.is_deleted:
        raise NotFoundError(f"{link}: its registry entry was deleted")
    found = linked_skylink(signed.entry.data) if signed.entry.kind == 1 else None
    if found is None:
        raise BadContentError(f"{link}: its registry entry holds no skylink")
    return found
