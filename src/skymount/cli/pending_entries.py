"""How pending registry entries are shown."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from skymount.cli.key_argument import user_keyring
from skymount.cli.output import warn

if TYPE_CHECKING:
    from skymount.portal.ledger.outbox import Pending

_SHOWN_LIMIT = 60  # characters of an entry's data in a line
_HEAD = ("NUMBER", "SINCE", "ENTRY", "REVISION", "CONTENT")


def warn_of_dropped(each: "Pending", why: str = "something was written later") -> None:
    """Warn that a change was dropped without having been posted."""
    entry = _entry(each, key_names())
    warn(
        f"{each.id}: {entry} was to be {_shown(each.data)}, which is superseded and given up: {why}"
    )


def key_names() -> dict[bytes, str]:
    """Return the names of the keys in the keyring, by public key."""
    from skymount.errors import KeyringError

    try:
        return {key: name for name, key in user_keyring().public_keys().items()}
    except KeyringError:
        return {}


def pending_facts(each: "Pending") -> dict[str, Any]:
    """Return what --json shows of a pending entry, or of one that a portal is owed."""
    return {
        "id": each.id,
        "public_key": each.public_key.hex(),
        "data_key": each.data_key,
        "hashed_data_key": each.tweak.hex(),
        "revision": each.signed.entry.revision if each.signed else None,
        "hex": each.data.hex(),
        "reason": each.reason,
        "created": _time(each.created),
        "posting": each.is_posting,
        "portals": list(each.portals),
        "waiting": each.status.value == "waiting",
        "owed": each.accepted,
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True)
class PendingRow:
    """A line of the table, and why it is still there."""

    cells: tuple[str, ...]
    reason: str


def pending_row(each: "Pending", names: dict[bytes, str]) -> PendingRow:
    """Return the row of a pending entry, or of one that a portal is owed."""
    revision = str(each.signed.entry.revision) if each.signed else "not signed"
    data = _shown(each.data, _SHOWN_LIMIT)
    owed = f"owed to {each.portals[0]}: " if each.accepted else ""
    reason = "being posted now" if each.is_posting else each.reason
    cells = str(each.id), _time(each.created), _entry(each, names), revision, data
    return PendingRow(cells, f"{owed}{reason}")


def table(rows: Sequence[PendingRow]) -> list[str]:
    """Return the lines of a table in which each reason stands once, above the rows it is of."""
    if not rows:
        return []
    widths = [
        max(map(len, column)) for column in zip(_HEAD, *(row.cells for row in rows), strict=True)
    ]
    lines = [_line(_HEAD, widths)]
    for reason in dict.fromkeys(row.reason for row in rows):
        lines.append(f"{reason}:")
        lines += [_line(row.cells, widths) for row in rows if row.reason == reason]
    return lines


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    number, *others = cells
    padded = (cell.ljust(width) for cell, width in zip(others, widths[1:], strict=True))
    return "  ".join([number.rjust(widths[0]), *padded]).rstrip()


def sent_fact(each: "Pending", revision: int) -> dict[str, Any]:
    """Return what is printed of a change that was posted, with the name of its entry."""
    return {"id": each.id, "entry": _entry(each, key_names()), "revision": revision}


def _entry(each: "Pending", names: dict[bytes, str]) -> str:
    owner = names.get(each.public_key, each.public_key.hex())
    return f"{owner}/{each.tweak.hex() if each.data_key is None else each.data_key}"


def _shown(content: bytes, limit: int | None = None) -> str:
    from skymount.wire.registry_entry import DELETED, linked_skylink

    if content == DELETED:
        return "(deletion)"
    skylink = linked_skylink(content)
    try:
        shown = str(skylink) if skylink else f'"{content.decode()}"'
    except UnicodeDecodeError:
        shown = content.hex()
    return shown if limit is None or len(shown) <= limit else f"{shown[:limit]}..."
