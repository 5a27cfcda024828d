"""``skymount registry pending``, ``retry``, ``drop`` and ``forget``: what the ledger keeps of
registry entries.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from skymount.cli.key_argument import entry_arguments, open_ledger
from skymount.cli.options import PortalFlags, portal_options
from skymount.cli.output import emit, json_option, warn

if TYPE_CHECKING:
    from skymount.cli.session import WriteSession
    from skymount.portal.registry.pending_write import PendingWrite
    from skymount.wire.key_pair import SigningKeyPair

_SHOWN_LIMIT = 60  # characters of an entry's data in a line


@click.command()
@json_option
def pending(as_json: bool) -> None:
    """List changes of entries that a mount or a command could not post, oldest first.

    If no portal answered, a running mount posts the change by itself once one does. Each line has a
    number for `retry` and `drop`, the key and the data key, the revision if one was signed, the
    data, and why it was not posted.

    \b
    Examples:
      skymount registry pending
      skymount registry retry
    """
    with open_ledger() as ledger:
        found = ledger.pending()
    names = _key_names() if found else {}
    emit([_facts(each) for each in found], as_json, [_line(each, names) for each in found])


@click.command()
@click.argument("numbers", metavar="[NUMBER]...", type=int, nargs=-1)
@click.option("--overwrite", is_flag=True, help="Replace what somebody else has set meanwhile.")
@portal_options
@json_option
def retry(numbers: tuple[int, ...], overwrite: bool, flags: PortalFlags, as_json: bool) -> None:
    """Post pending changes: all of them, or those with these numbers.

    A change that was signed is posted as it is, another one is signed now. A change is superseded
    if the entry was changed later: it is dropped with a warning that shows its data, or with
    --overwrite gets the next revision. A change in conflict with somebody else's stays pending
    until you overwrite or drop it.

    The changes go to the portals of this command. If the mount used others, name them here too:
    `pending --json` shows them. A mount does all this by itself, but never overwrites.

    \b
    Examples:
      skymount registry retry
      skymount registry retry --overwrite 3
    """
    from skymount.cli.session import run_with_writes

    settings = flags.load()
    with open_ledger() as ledger:
        chosen = _chosen(ledger.pending(), numbers)
        pairs = {key: _pair(key) for key in {each.public_key for each in chosen}}
        sent = []
        if chosen:
            sent = run_with_writes(
                settings, lambda session: _send_all(session, chosen, pairs, overwrite=overwrite)
            )
        left = {each.id for each in ledger.pending()}
    emit(sent, as_json, [f"{each['id']}: revision {each['revision']}" for each in sent])
    stay = sum(each.id in left for each in chosen)
    if stay:
        raise click.ClickException(f"{stay} of {len(chosen)} stay pending")


async def _send_all(
    session: "WriteSession",
    chosen: "Sequence[PendingWrite]",
    pairs: "dict[bytes, SigningKeyPair | None]",
    *,
    overwrite: bool,
) -> list[dict[str, Any]]:
    """Post changes one after another; warn of failures, and drop what is superseded.

    A change that only this loop's own earlier post has superseded is posted over it.
    """
    import trio

    from skymount.errors import SkymountError, StaleEntryError
    from skymount.portal.registry.pending_write import PendingStatus
    from skymount.portal.registry.revision_marks import EntryId

    registry, ledger = session.registry, session.ledger
    sent: list[dict[str, Any]] = []
    posted: dict[EntryId, int] = {}
    for each in chosen:
        entry, pair = EntryId(each.public_key, each.tweak, each.data_key), pairs[each.public_key]
        try:
            try:
                state = await registry.send(each, pair, overwrite=overwrite)
            except StaleEntryError as error:
                known = registry.recall(entry)
                if known is None or posted.get(entry) != known.revision:
                    pending = ledger.get(each.id)
                    if pending is None or pending.status is PendingStatus.CONFLICT:
                        raise
                    await trio.to_thread.run_sync(ledger.drop, each.id)
                    warn_of_dropped(each, error.message)
                    continue
                state = await registry.send(each, pair, overwrite=True)
        except SkymountError as error:
            if ledger.get(each.id) is not None:  # else something later was posted
                warn(f"{each.id}: {error}")
        else:
            posted[entry] = state.revision
            sent.append({"id": each.id, "revision": state.revision})
    return sent


def warn_of_dropped(each: "PendingWrite", why: str = "something was written later") -> None:
    """Warn that a change was dropped without having been posted."""
    entry = _entry(each, _key_names())
    warn(f"{each.id}: {entry} was to be {_shown(each)}, which is superseded and given up: {why}")


@click.command()
@click.argument("numbers", metavar="[NUMBER]...", type=int, nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Drop all pending changes.")
def drop(numbers: tuple[int, ...], everything: bool) -> None:
    """Drop pending changes for good.

    \b
    Example:
      skymount registry drop 3
    """
    if bool(numbers) == everything:
        raise click.UsageError("name what to drop by its numbers, or use --all")
    with open_ledger() as ledger:
        for each in _chosen(ledger.pending(), numbers):
            ledger.drop(each.id)


@click.command()
@entry_arguments
@click.option("--seen", is_flag=True, help="Also forget which revision of it was seen.")
def forget(owner: str, data_key: str, hashed: bool, seen: bool) -> None:
    """Remove an entry from the listings of mounts. The entry itself does not change.

    Using the entry lists it again. With --seen an older entry than the one seen before is accepted
    again, for instance after a portal's registry was set up anew; running mounts have to be mounted
    again for that. Exit code 3 if nothing is known of the entry.

    \b
    Examples:
      skymount registry forget home greeting
      skymount registry forget --seen home greeting
    """
    from skymount.cli.key_argument import public_key, tweak
    from skymount.errors import NotFoundError

    key, hashed_key = public_key(owner), tweak(data_key, hashed=hashed)
    with open_ledger() as ledger:
        if not ledger.forget(key, hashed_key, seen=seen):
            raise NotFoundError(f"{data_key}: no such entry is listed")


def _chosen(pending: "Sequence[PendingWrite]", numbers: Sequence[int]) -> "list[PendingWrite]":
    """Return the changes with these numbers, or all but those being posted; oldest first."""
    from skymount.errors import NotFoundError, StorageError

    found = {each.id: each for each in pending}
    if not numbers:
        return [each for each in found.values() if not each.is_posting]
    for number in numbers:
        if number not in found:
            raise NotFoundError(f"{number}: nothing of that number is pending")
        if found[number].is_posting:
            raise StorageError(f"{number}: another process is posting it now")
    return [found[number] for number in sorted(set(numbers))]


def _pair(public_key: bytes) -> "SigningKeyPair | None":
    """Return the key that signs, None without one: signed changes need none."""
    from skymount.cli.key_argument import key_pair
    from skymount.errors import KeyringError

    try:
        return key_pair(public_key.hex())
    except KeyringError:
        return None


def _key_names() -> dict[bytes, str]:
    from skymount.cli.key_argument import user_keyring
    from skymount.errors import KeyringError

    try:
        return {key: name for name, key in user_keyring().public_keys().items()}
    except KeyringError:
        return {}


def _facts(each: "PendingWrite") -> dict[str, Any]:
    from skymount.portal.registry.pending_write import PendingStatus

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


def _line(each: "PendingWrite", names: dict[bytes, str]) -> str:
    revision = f"revision {each.signed.entry.revision}" if each.signed else "not signed"
    state = "being posted now" if each.is_posting else each.reason
    entry, data = _entry(each, names), _shown(each, _SHOWN_LIMIT)
    return "  ".join((str(each.id), _time(each), entry, revision, data, state))


def _entry(each: "PendingWrite", names: dict[bytes, str]) -> str:
    owner = names.get(each.public_key, each.public_key.hex())
    return f"{owner}/{each.tweak.hex() if each.data_key is None else each.data_key}"


def _shown(each: "PendingWrite", limit: int | None = None) -> str:
    """Return the data for a line: text in quotes, a skylink, or hex digits."""
    from skymount.wire.registry_entry import DELETED, linked_skylink

    if each.data == DELETED:
        return "(deletion)"
    skylink = linked_skylink(each.data)
    try:
        shown = str(skylink) if skylink else f'"{each.data.decode()}"'
    except UnicodeDecodeError:
        shown = each.data.hex()
    return shown if limit is None or len(shown) <= limit else f"{shown[:limit]}..."
