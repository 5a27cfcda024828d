"""Entries that portals are owed: posted elsewhere, but not known to be at that portal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from skymount.wire.registry_entry import SignedEntry

LACKS_CONTENT = "the content behind the entry could not be sent there"


@dataclass(frozen=True, slots=True)
class Debt:
    """Why a portal is to get an entry that was posted to others."""

    portal: str
    """Its address."""
    reason: str
    with_content: bool = False
    """Whether the content behind the entry is not there either, and goes first."""
    is_posting: bool = False
    """Whether this process is posting it now."""
    is_own: bool = False
    """Whether the entry was written by this machine."""


def lacking_debts(portals: Iterable[str]) -> list[Debt]:
    """Return the debts to portals that lack the content behind an entry written here."""
    return [Debt(url, LACKS_CONTENT, with_content=True, is_own=True) for url in portals]


@dataclass(frozen=True, slots=True)
class OwedEntry:
    """An entry that a portal is owed, as it is in the ledger."""

    id: int
    """No pending write has the same."""
    portal: str
    signed: SignedEntry
    """Not verified since it was read."""
    data_key: str | None
    with_content: bool
    since: float
    """Since when the portal is behind, in seconds since 1970."""
    attempts: int
    next_at: float
    """When it is to be sent again, in seconds since 1970."""
    reason: str
    is_posting: bool
    """Whether a running process is posting it now."""
    is_own: bool = False
    """Whether the entry was written by this machine."""

    @property
    def public_key(self) -> bytes:
        return self.signed.public_key

    @property
    def tweak(self) -> bytes:
        return self.signed.entry.tweak

    @property
    def data(self) -> bytes:
        return self.signed.entry.data


@dataclass(frozen=True, slots=True)
class OwedTotal:
    """What one portal is owed."""

    portal: str
    count: int
    since: float
    """Of the oldest."""
    reason: str
    """Why the last attempt failed."""


def owed_summary(totals: Sequence[OwedTotal]) -> str:
    """Return one line that says what portals are owed; empty when nothing is."""
    if not totals:
        return ""
    found = [f"{each.portal} {each.count}" for each in totals]
    return f"registry entries still to be sent to portals that lack them: {', '.join(found)}"
