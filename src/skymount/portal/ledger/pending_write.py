"""Writes in the spool: content of registry entries that is not known to be posted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from skymount.wire.registry_entry import SignedEntry


class PendingStatus(Enum):
    """Who retries a pending write."""

    WAITING = "waiting"  # it is retried automatically once a portal answers
    FAILED = "failed"  # it is retried on request only
    CONFLICT = "conflict"  # as FAILED: somebody else had changed the entry that it was made from


@dataclass(frozen=True, slots=True)
class PendingWrite:
    """A write in the spool."""

    id: int
    public_key: bytes
    tweak: bytes
    data_key: str | None
    data: bytes
    signed: SignedEntry | None  # None when no revision was claimed for it
    base: int | None  # revision that it was made from, -1 of an absent entry; None if signed
    reason: str
    created: float  # seconds since 1970
    is_posting: bool  # whether a running process is posting it now
    portals: tuple[str, ...] = ()  # addresses that it was written for; empty when unknown
    status: PendingStatus = PendingStatus.FAILED
    lacking: tuple[str, ...] = ()  # addresses that lack the content behind it


def due(pending: Sequence[PendingWrite]) -> list[PendingWrite]:
    """Return the writes to retry automatically: the last one of each entry, if it is WAITING.

    `pending` is sorted by age.
    """
    latest = {(write.public_key, write.tweak): write for write in pending}
    return [
        write
        for write in latest.values()
        if write.status is PendingStatus.WAITING and not write.is_posting
    ]


def summary(pending: Sequence[PendingWrite]) -> str:
    """Return one line that says how much is pending; empty when nothing is."""
    if not pending:
        return ""
    changes = "1 change" if len(pending) == 1 else f"{len(pending)} changes"
    return f"{changes} of registry entries could not be posted: see `skymount registry pending`"
