"""How pending registry entries are shown."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from skymount.cli.key_argument import user_keyring
from skymount.cli.output import warn

if TYPE_CHECKING:
    from skymount.portal.ledger.owed_entry import OwedEntry
    from skymount.portal.ledger.pending_write import PendingWrite

_SHOWN_LIMIT = 60  # characters of an entry's data in a line


def warn_of_dropped(each: "PendingWrite", why: str = "something was written later") -> None:
    """Warn that a change was dropped without having been posted."""
    entry = _pending_entry(each, key_names())
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
        "created": _time(each.created),
        "posting": each.is_posting,
        "portals": list(each.portals),
        "waiting": each.status is PendingStatus.WAITING,
        "owed": False,
    }


def owed_facts(each: "OwedEntry") -> dict[str, Any]:
    """Return what --json shows of an entry that a portal is owed."""
    entry = each.signed.entry
    return {
        "id": each.id,
        "public_key": each.signed.public_key.hex(),
        "data_key": each.data_key,
        "hashed_data_key": entry.tweak.hex(),
        "revision": entry.revision,
        "hex": entry.data.hex(),
        "reason": each.reason,
        "created": _time(each.since),
        "posting": each.is_posting,
        "portals": [each.portal],
        "waiting": True,
        "owed": True,
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def pending_line(each: "PendingWrite", names: dict[bytes, str]) -> str:
    """Return the line for a pending entry."""
    revision = f"revision {each.signed.entry.revision}" if each.signed else "not signed"
    state = "being posted now" if each.is_posting else each.reason
    entry, data = _pending_entry(each, names), _shown(each.data, _SHOWN_LIMIT)
    return "  ".join((str(each.id), _time(each.created), entry, revision, data, state))


def owed_line(each: "OwedEntry", names: dict[bytes, str]) -> str:
    """Return the line for an entry that a portal is owed."""
    signed = each.signed
    reason = "being posted now" if each.is_posting else each.reason
    parts = (
        str(each.id),
        _time(each.since),
        _entry(signed.public_key, signed.entry.tweak, each.data_key, names),
        f"revision {signed.entry.revision}",
        _shown(signed.entry.data, _SHOWN_LIMIT),
        f"owed to {each.portal}: {reason}",
    )
    return "  ".join(parts)


def _pending_entry(each: "PendingWrite", names: dict[bytes, str]) -> str:
    return _entry(each.public_key, each.tweak, each.data_key, names)


def _entry(public_key: bytes, tweak: bytes, data_key: str | None, names: dict[bytes, str]) -> str:
    owner = names.get(public_key, public_key.hex())
    return f"{owner}/{tweak.hex() if data_key is None else data_key}"


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
