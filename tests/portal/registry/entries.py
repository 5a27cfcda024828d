"""Entries by the name of their data key, what of them is pending, and a ledger without threads."""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TypeVar, TypeVarTuple

import trio

from skymount.portal.failover.portals import Portals
from skymount.portal.ledger.entries import EntryId
from skymount.portal.ledger.ledger import Ledger
from skymount.portal.ledger.outbox import Status
from skymount.portal.ledger.revision_marks import RevisionMarks
from skymount.portal.registry.verified_registry import VerifiedRegistry
from skymount.wire.registry_entry import SignedEntry, hash_data_key
from tests.portal.ledger import entries
from tests.portal.ledger.entries import KEY, unsent

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Inline(RevisionMarks):
    """Uses its ledger on the spot: the tests' clock jumps while a thread works."""

    async def in_thread(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        await trio.lowlevel.checkpoint()
        return function(*args)


def ref(name: str = "a") -> EntryId:
    return EntryId(KEY, hash_data_key(name), name)


def signed(data: bytes, revision: int, name: str = "a") -> SignedEntry:
    return entries.signed(data, revision, tweak=hash_data_key(name))


def pending(ledger: Ledger) -> list[tuple[bytes, int | None]]:
    """Return contents and revisions of what is in the outbox; nothing of it is being posted."""
    found = unsent(ledger)
    assert not any(each.is_posting for each in found)
    return [(each.data, each.signed.entry.revision if each.signed else None) for each in found]


def held(ledger: Ledger, data: bytes, name: str = "a", **more: object) -> int:
    """Keep content as if a portal had not answered; return its number."""
    given = {"portals": ["http://p1.invalid"], "status": Status.WAITING, **more}
    ledger.keep(ref(name), data, "down", **given)  # type: ignore[arg-type]
    return unsent(ledger)[-1].id


def among(entries: VerifiedRegistry, urls: Collection[str]) -> Portals:
    """Return the portals of a registry that have these addresses."""
    chosen = [each for each in entries.portals.clients if each.url in urls]
    return replace(entries.portals, clients=chosen)
