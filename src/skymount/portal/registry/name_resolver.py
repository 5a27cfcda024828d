"""Resolves names that can change, domains and v2 skylinks, to v1 skylinks.

All callers of a name share one request. An answer ends early when a registry entry on its path
turns out to lead elsewhere.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress
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
from skymount.policies import VerifyPolicy
from skymount.portal.client import hns
from skymount.portal.client.base import PortalReader
from skymount.portal.failover.portals import Portals
from skymount.portal.ledger.entries import EntryId
from skymount.portal.registry.entry_reader import EntryReader, EntryState
from skymount.settings import DEFAULTS
from skymount.wire.hns import (
    DomainRecord,
    RegistryRecord,
    encode_resolution,
    parse_resolution,
)
from skymount.wire.registry_entry import SignedEntry, entry_link, linked_skylink
from skymount.wire.registry_proof import HOPS, verified_hops
from skymount.wire.skylink import Skylink

log = logging.getLogger(__name__)

ResolvableName = Skylink | str
"""A v2 skylink, or a domain in the form of `wire.hns.parse_domain`. They are never the same text: a
v2 skylink begins with ``AQ``, and a domain has no capitals.
"""
ResolutionPath = dict[Skylink, Skylink | None]  # entries on the path, and where each one led
_CACHED_NAMES = 4096  # names, and keys; the least recently used go first

NEGATIVE_TTL = 5.0  # seconds for which «not found» holds: somebody may register the name any moment
_FIRST_BACK_OFF = 2.0  # seconds; doubled for each further failure in a row, up to the TTL
_MOST_DOUBLINGS = 32
_REFRESH_AHEAD = 5.0  # seconds before an answer runs out, if that is not more than a quarter of it

_PROVISIONAL_TTL = 5.0


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a name leads to."""

    skylink: Skylink  # a v1 skylink
    verified: bool  # whether each registry entry on the path was; never of a domain
    requested_at: float = 0.0  # when it was asked for, by trio's clock
    provisional: bool = False  # whether nobody proved it, and a portal failed
    stale: bool = False  # whether no portal has an answer, and this was seen last


@dataclass(frozen=True, slots=True)
class CachedResolution:
    """What is known of a name. Times are seconds of one clock."""

    found: Resolution | None = None  # the last good answer
    absent: bool = False  # whether the last answer was that there is no such name
    requested_at: float = 0.0
    failures: int = 0  # in a row, since that answer
    failed_at: float = 0.0
    outdated: bool = False  # whether it is known to have changed since

    @property
    def stale(self) -> bool:
        """Whether the last good answer is served though it may have changed."""
        return self.found is not None and (self.failures > 0 or self.outdated)

    def revalidate_in(self, now: float, ttl: float) -> float:
        """Return the seconds until the portals are to be asked again; 0: now."""
        if self.outdated:
            return 0.0
        if self.failures:
            doublings = min(self.failures - 1, _MOST_DOUBLINGS)
            until = self.failed_at + min(ttl, _FIRST_BACK_OFF * 2.0**doublings)
        elif self.absent:
            until = self.requested_at + NEGATIVE_TTL
        elif self.found is not None:
            holds = min(ttl, _PROVISIONAL_TTL) if self.found.provisional else ttl
            until = self.requested_at + holds
        else:
            return 0.0
        return max(0.0, until - now)

    def refresh_in(self, now: float, ttl: float) -> float | None:
        """Return the seconds until a name in use is asked for before its answer runs out.

        None where that is not done: there is no good answer, it is provisional and holds for
        seconds only, or the last attempt failed.
        """
        if self.found is None or self.found.provisional or self.failures or self.outdated:
            return None
        return max(0.0, self.requested_at + ttl - min(_REFRESH_AHEAD, ttl / 4) - now)

    def answer(self, now: float, ttl: float) -> Resolution | None:
        """Return what still holds, or raise NotFoundError; None if the portals are to be asked."""
        if not self.revalidate_in(now, ttl):
            return None
        if self.absent:
            raise NotFoundError("there is no such name")
        return self.found

    def after_failure(self, now: float) -> "CachedResolution":
        failures = self.failures + 1
        return replace(self, absent=False, failures=failures, failed_at=now, outdated=False)


@dataclass(frozen=True, slots=True)
class NameResolverConfig:
    """How names are resolved."""

    ttl: float = DEFAULTS.hns_ttl
    # OFF: proofs are not checked. REQUIRE: every domain and unproven v2 skylink is refused.
    verify: VerifyPolicy = DEFAULTS.verify


@dataclass(slots=True)
class _NameState:
    cached: CachedResolution = field(default_factory=CachedResolution)
    path: ResolutionPath = field(default_factory=dict)  # of the last good answer, or in flight
    outdated: bool = False  # whether an entry on the path has changed since
    asking: trio.Lock = field(default_factory=trio.Lock)

    def outdate(self) -> None:
        """End what is known, and what a request in flight will bring."""
        self.outdated = True
        self.cached = replace(self.cached, outdated=True)


class NameResolver:
    """Resolves domains and v2 skylinks, through all portals.

    A registry entry whose public key is known is read with `entries`. Other v2 skylinks have to be
    proved by the portals; `entries` tells whether such a proof was rolled back.
    """

    def __init__(
        self, portals: Portals, entries: EntryReader, config: NameResolverConfig | None = None
    ) -> None:
        self._portals = portals
        self._entries = entries
        self._config = config or NameResolverConfig()
        self._names: LRUCache[ResolvableName, _NameState] = LRUCache(_CACHED_NAMES)
        self._records: LRUCache[str, DomainRecord] = LRUCache(_CACHED_NAMES)
        self._refs: LRUCache[Skylink, EntryId] = LRUCache(_CACHED_NAMES)
        entries.watch(self._entry_changed)

    def _entry_changed(self, ref: EntryId, state: EntryState) -> None:
        link = entry_link(ref.public_key, ref.tweak)
        leads_to = None if state.data is None else linked_skylink(state.data)
        for each in self._names.values():
            if each.path.get(link, leads_to) != leads_to:
                each.outdate()

    def set_ttl(self, seconds: float) -> None:
        self._config = replace(self._config, ttl=seconds)

    def outdate_all(self) -> None:
        """Let every name be resolved again when it is used next."""
        for each in self._names.values():
            each.outdate()

    def cached(self, name: ResolvableName) -> CachedResolution:
        state = self._names.get(name)
        return CachedResolution() if state is None else state.cached

    def revalidate_in(self, name: ResolvableName) -> float:
        return self.cached(name).revalidate_in(trio.current_time(), self._config.ttl)

    def refresh_in(self, name: ResolvableName) -> float | None:
        return self.cached(name).refresh_in(trio.current_time(), self._config.ttl)

    def learn_key(self, record: DomainRecord) -> None:
        if isinstance(record, RegistryRecord):
            self._refs[record.skylink] = EntryId(record.public_key, record.tweak)

    def record_failure(self, name: ResolvableName) -> None:
        """Count a failure: what the name leads to now cannot be used."""
        state = self._state(name)
        state.cached = state.cached.after_failure(trio.current_time())

    async def resolve(self, name: ResolvableName) -> Resolution:
        """Return what a name leads to, from memory as long as that holds.

        If asking fails it is the last good answer. NotFoundError only when every portal says so.
        """
        state = self._state(name)
        async with state.asking:
            found = state.cached.answer(trio.current_time(), self._config.ttl)
            return await self._ask(name, state) if found is None else found

    async def refresh(self, name: ResolvableName) -> None:
        """Ask again although the last answer holds; a failure changes nothing.

        «Not found» is an answer.
        """
        state = self._state(name)
        async with state.asking:
            before = state.cached
            with suppress(PortalError):
                await self._ask(name, state)
            if state.cached.failures > before.failures:
                state.cached = replace(before, outdated=before.outdated or state.outdated)

    def _state(self, name: ResolvableName) -> _NameState:
        state = self._names.get(name)
        if state is None:
            state = self._names[name] = _NameState()
        return state

    async def _ask(self, name: ResolvableName, state: _NameState) -> Resolution:
        now = trio.current_time()
        old_path, state.path, state.outdated = state.path, {}, False
        try:
            found = replace(await self.find(name, state.path), requested_at=now)
        except NotFoundError:
            state.cached = CachedResolution(absent=True, requested_at=now, outdated=state.outdated)
            raise
        except (PortalError, StorageError) as error:
            state.path = old_path | state.path
            state.cached = state.cached.after_failure(trio.current_time())
            if state.cached.found is not None:
                log.warning("%s: the last good answer is served: %s", name, error)
                return state.cached.found
            if isinstance(error, StorageError):  # a rollback could not be detected
                raise UnavailableError(str(error)) from None
            raise
        failures = state.cached.failures + 1 if found.stale else 0
        state.cached = CachedResolution(
            found, requested_at=now, failures=failures, failed_at=now, outdated=state.outdated
        )
        return found

    async def find(self, name: ResolvableName, path: ResolutionPath) -> Resolution:
        """Ask what a name leads to, whatever is cached; add the entries passed to `path`."""
        if isinstance(name, Skylink):
            return await self._follow(name, path)
        if self._config.verify is VerifyPolicy.REQUIRE:
            raise BadContentError(f"{name}: what a domain leads to is not verified")
        record, is_stale = await self.record(name)
        self.learn_key(record)
        found = await self._follow(record.skylink, path)
        return replace(found, verified=False, stale=found.stale or is_stale)

    async def record(self, domain: str) -> tuple[DomainRecord, bool]:
        """Return the record of a domain, and whether it is the one that was seen last (G20)."""
        marks, name = self._entries.marks, f"record/{domain}"

        async def ask_one(client: PortalReader) -> DomainRecord:
            return (await hns.resolve(client.http, domain, client.options)).record

        async def ask() -> tuple[DomainRecord, bool]:
            record = await self._portals.first(ask_one, probe=ask_one)
            self._records[domain] = record
            with suppress(StorageError):
                await marks.name_since(name, encode_resolution(record).decode())
            return record, False

        async def recall() -> tuple[DomainRecord, bool] | None:
            if domain in self._records:  # the ledger may have an older one
                return self._records[domain], True
            text = await marks.name_target(name)
            with suppress(MalformedError):
                return None if text is None else (parse_resolution(text.encode()), True)
            return None

        return await self._entries.or_seen_last(domain, ask, recall)

    async def _follow(self, link: Skylink, path: ResolutionPath) -> Resolution:
        is_stale = False
        for _ in range(HOPS + 1):
            if link.version == 1:
                return Resolution(link, verified=True, stale=is_stale)
            target = await self._by_registry(link, path)
            if target is None or target[1]:
                try:
                    found = await self._by_portal(link, path)
                except (UnavailableError, BadContentError):
                    if target is None:
                        raise
                else:
                    if not found.verified or len(self._portals.clients) < 2:
                        return found
                    # one portal proved it; another may have a newer entry
                    target = await self._by_registry(link, path, is_proven=True)
                    if target is None or target[1]:
                        return found
            link, is_stale = target[0], is_stale or target[1]
        raise BadContentError(f"{link}: more registry entries than {HOPS} are on the way")

    async def _by_registry(
        self, link: Skylink, path: ResolutionPath, *, is_proven: bool = False
    ) -> tuple[Skylink, bool] | None:
        """Read the entry that a v2 skylink names, which may be the one that was seen last; None
        where only a portal can resolve it.

        A forged or rolled back entry is an error, unless a portal proved where the link leads: the
        word of the portal that sent it would be no better.
        """
        ref = self._refs.get(link) or await self._entries.marks.find_entry(link)
        if ref is None:
            return None
        self._refs[link] = ref
        try:
            state = await self._entries.read(ref, named=False)
        except PortalError as error:
            if isinstance(error, BadContentError) and not is_proven:
                raise
            log.info("%s: its entry cannot be read: %s", link, error)
            return None
        if state.signed is None:  # a portal without a registry may still resolve it
            return None
        path[link] = None if state.data is None else linked_skylink(state.data)
        return _linked(link, state.signed), state.stale

    async def _by_portal(self, link: Skylink, path: ResolutionPath) -> Resolution:
        """Let a portal resolve a v2 skylink; one that proves its answer is preferred."""
        path[link] = None
        ask = partial(self._head, link=link, path=path)
        probe = partial(self._head, link=link, path={})  # it may outlast this call
        if self._config.verify is VerifyPolicy.OFF:
            return await self._portals.first(ask, probe=probe)
        found, failed = await self._portals.best(
            ask, lambda resolution: resolution.verified, probe=probe
        )
        if not failed:
            return found
        urls = ", ".join(sorted(client.url for client in failed))
        log.warning("%s: provisional: not proven, and failed to answer: %s", link, urls)
        return replace(found, provisional=True)

    async def _head(self, client: PortalReader, link: Skylink, path: ResolutionPath) -> Resolution:
        requested_at = trio.current_time()
        head = await self._portals.budget.run(partial(client.head, link))
        if head.skylink is None or head.skylink.version != 1:
            raise BadContentError("the portal does not say what it resolved to", url=client.url)
        is_proven = False
        if self._config.verify is not VerifyPolicy.OFF and head.proof is not None:
            try:
                hops = verified_hops(link, head.skylink, head.proof)
                path.update((hop.link, linked_skylink(hop.entry.data)) for hop in hops)
                await self._accept(hops, requested_at, client.url)
            except MalformedError as error:
                raise BadContentError(f"{link}: {error}", url=client.url) from None
            is_proven = True
        if self._config.verify is VerifyPolicy.REQUIRE and not is_proven:
            raise BadContentError(f"{link}: where it leads is not verified", url=client.url)
        if not is_proven:
            path[link] = head.skylink
        return Resolution(head.skylink, is_proven)

    async def _accept(self, hops: Sequence[SignedEntry], requested_at: float, portal: str) -> None:
        for hop in hops:
            await self._entries.accept(hop, requested_at, portal)
        for hop in hops:
            self._refs[hop.link] = EntryId(hop.public_key, hop.entry.tweak)


def _linked(link: Skylink, signed: SignedEntry) -> Skylink:
    """Return the skylink that an entry holds; NotFoundError when its owner deleted it."""
    if signed.entry.is_deleted:
        raise NotFoundError(f"{link}: its registry entry was deleted")
    found = linked_skylink(signed.entry.data) if signed.entry.kind == 1 else None
    if found is None:
        raise BadContentError(f"{link}: its registry entry holds no skylink")
    return found
