"""How pending registry entries are shown."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from skymount.cli.key_argument import user_keyring
from skymount.cli.output import warn

if TYPE_CHECKING:
    from skymount.portal.ledger.pending_write import PendingWrite

_SHOWN_LIMIT = 60  # characters of an entry's data in a line


def warn_of_dropped(each: "PendingWrite", why: str = "something was written later") -> None:
    """Warn that a change was dropped without having been posted."""
    entry = _entry(each, key_names())
    warn(f"{each.id}: {entry} was to be {_shown(each)}, which is superseded and given up: {why}")


def key_names() -> dict[bytes, str]:
    """Return the names of the keys in the keyring, by public key."""
    from skymount.errors import KeyringError

    try:
        return {key: name for name, key in user_keyring().public_keys().items()}
    except KeyringError:
        return {}


def pending_facts(each: "PendingWrite") -> dict[str, Any]:
    """Return what --json shows of a pending entry."""
    from skymount.portal.ledger.pending_write import PendingStatus

    return {
        "id": each.id,
        "public_key": each.public_key.hex(),
        "data_key": each.data_key,
        "hashed_data_key": each.tweak.hex(),
        "revision": each.signed.entry.revision if each.signed else None,
        "hex": each.data.hex(),
        "reason": each.reason,
        "created": _time(each),
        "posting": each.is_posting,
        "portals": list(each.portals),
        "waiting": each.status is PendingStatus.WAITING,
    }


def _time(each: "PendingWrite") -> str:
    return datetime.fromtimestamp(each.created, UTC).isoformat(timespec="seconds")


def pending_line(each: "PendingWrite", names: dict[bytes, str]) -> str:
    """Return the line for a pending entry."""
    revision = f"revision {each.signed.entry.revision}" if each.signed else "not signed"
    state = "being posted now" if each.is_posting else each.reason
    entry, data = _entry(each, names), _shown(each, _SHOWN_LIMIT)
    return "  ".join((str(each.id), _time(each), entry, revision, data, state))


def _entry(each: "PendingWrite", names: dict[bytes, str]) -> str:
    owner = names.get(each.public_key, each.public_key.hex())
    return f"{owner}/{each.tweak.hex() if each.data_key is None else each.data_key}"


def _shown(each: "PendingWrite", limit: int | None = None) -> str:
    from skymount.wire.registry_entry import DELETED, linked_skylink

    if each.data == DELETED:
        return "(deletion)"
    skylink = linked_skylink(each.data)
    try:
        shown = str(skylink) if skylink else f'"{each.data.decode()}"'
    except UnicodeDecodeError:
        shown = each.data.hex()
    return shown if limit is None or len(shown) <= limit else f"{shown[:limit]}..."
