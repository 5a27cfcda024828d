"""When a registry entry counts as rolled back: older than the highest revision seen of it."""

from __future__ import annotations

from dataclasses import dataclass

from skymount.wire.registry_entry import MAX_REVISION, Entry


@dataclass(frozen=True, slots=True)
class RevisionMark:
    """The highest revision seen of an entry: nothing below it is believed any more."""

    revision: int
    work: bytes  # `Entry.work`, 32 bytes. Of two entries of one revision the lower work wins
    seen_at: float  # when this machine first saw it, in seconds since 1970


def is_rolled_back(mark: RevisionMark | None, entry: Entry) -> bool:
    """Whether an entry is older than the mark (docs/wire.md 6.3): a portal must not show it."""
    if mark is None or entry.revision != mark.revision:
        return mark is not None and entry.revision < mark.revision
    if mark.revision == MAX_REVISION:
        return entry.work != mark.work
    return entry.work > mark.work


def raised(mark: RevisionMark | None, entry: Entry, now: float) -> RevisionMark:
    """Return the mark after that entry was seen; the same object if it does not change."""
    if mark is not None and (is_rolled_back(mark, entry) or entry.work == mark.work):
        return mark
    return RevisionMark(entry.revision, entry.work, now)


def later(one: RevisionMark | None, other: RevisionMark) -> RevisionMark:
    """Return the higher one of two marks of one entry."""
    if one is None:
        return other
    return one if (one.revision, other.work) >= (other.revision, one.work) else other


def rollback_reason(mark: RevisionMark | None, entry: Entry) -> str:
    """Return a text that says how an entry is behind a mark."""
    known = "another" if mark is None else mark.revision
    return f"revision {entry.revision} is behind revision {known}, which was seen before"
