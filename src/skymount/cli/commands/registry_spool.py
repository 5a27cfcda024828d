"""``skymount registry pending``, ``retry``, ``drop`` and ``forget``: what this machine keeps of
entries that a mount wrote.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from skymount.cli.options import PortalFlags, hashed_option, portal_options
from skymount.cli.output import emit, json_option, warn

if TYPE_CHECKING:
    from skymount.cli.session import Writing
    from skymount.portal.registry.ledger import Ledger
    from skymount.portal.registry.pending_write import PendingWrite
    from skymount.wire.key_pair import KeyPair

_SHOWN = 60  # characters of content in a line


@click.command()
@json_option
def pending(as_json: bool) -> None:
    """List what a mount or a command wrote to entries and could not post, the oldest first.

    What failed because no portal answered is sent by itself once one does, while a mount runs.
    Each line has a number for `retry` and `drop`, the key and the data key, the revision if one was
    signed, the content, and why it was not posted.

    \b
    Examples:
      skymount registry pending
      skymount registry retry
    """
    with _ledger() as ledger:
        found = ledger.pending()
    names = _key_names() if found else {}
    emit([_facts(each) for each in found], as_json, [_line(each, names) for each in found])


@click.command()
@click.argument("numbers", metavar="[NUMBER]...", type=int, nargs=-1)
@click.option("--overwrite", is_flag=True, help="Replace what somebody else has set since.")
@portal_options
@json_option
def retry(numbers: tuple[int, ...], overwrite: bool, flags: PortalFlags, as_json: bool) -> None:
    """Post what is pending: the very same bytes, or signed now if no revision was taken.

    Without numbers everything is. What is superseded, since the entry was changed later, is given
    up, with a warning that has the content, unless it is to overwrite what is there: then it gets
    the next revision. A change of what somebody else had changed before stays pending: overwrite or
    drop it. It goes to the portals of this command; if the mount was given others, name them here
    too: `pending --json` has them. A mount does all this by itself, but overwrites nothing.

    \b
    Examples:
      skymount registry retry
      skymount registry retry --overwrite 3
    """
    from skymount.cli.session import run_with_entries

    settings = flags.load()
    with _ledger() as ledger:
        chosen = _chosen(ledger.pending(), numbers)
        pairs = {key: _pair(key) for key in {each.public_key for each in chosen}}

        async def send(writing: "Writing") -> list[dict[str, Any]]:
            return await _send_all(writing, chosen, pairs, overwrite=overwrite)

        sent = run_with_entries(settings, send) if chosen else []
        left = {each.id for each in ledger.pending()}
    emit(sent, as_json, [f"{each['id']}: revision {each['revision']}" for each in sent])
    stay = sum(each.id in left for each in chosen)
    if stay:
        raise click.ClickException(f"{stay} of {len(chosen)} stay pending")


async def _send_all(
    writing: "Writing",
    chosen: "Sequence[PendingWrite]",
    pairs: "dict[bytes, KeyPair | None]",
    *,
    overwrite: bool,
) -> list[dict[str, Any]]:
    """Post one after another; say what failed, and drop what is superseded.

    What was written later replaces what was written before to the same entry, and posted just now.
    """
    import trio

    from skymount.errors import SkymountError, StaleEntryError
    from skymount.portal.registry.pending_write import PendingStatus
    from skymount.portal.registry.revision_marks import EntryId

    entries, ledger = writing.entries, writing.ledger
    sent: list[dict[str, Any]] = []
    posted: dict[EntryId, int] = {}
    for each in chosen:
        ref, pair = EntryId(each.public_key, each.tweak, each.data_key), pairs[each.public_key]
        try:
            try:
                state = await entries.send(each, pair, overwrite=overwrite)
            except StaleEntryError as error:
                known = entries.recall(ref)
                if known is None or posted.get(ref) != known.revision:
                    kept = ledger.get(each.id)
                    if kept is None or kept.status is PendingStatus.CONFLICT:
                        raise
                    await trio.to_thread.run_sync(ledger.drop, each.id)
                    give_up(each, error.message)
                    continue
                state = await entries.send(each, pair, overwrite=True)
        except SkymountError as error:
            if ledger.get(each.id) is not None:  # else something later was posted
                warn(f"{each.id}: {error}")
        else:
            posted[ref] = state.revision
            sent.append({"id": each.id, "revision": state.revision})
    return sent


def give_up(each: "PendingWrite", why: str = "something was written later") -> None:
    """Say that something is not pending any more, though it was never posted."""
    entry = _entry(each, _key_names())
    warn(f"{each.id}: {entry} was to be {_shown(each)}, which is superseded and given up: {why}")


@click.command()
@click.argument("numbers", metavar="[NUMBER]...", type=int, nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Drop all that is pending.")
def drop(numbers: tuple[int, ...], everything: bool) -> None:
    """Give up what is pending; it is gone then.

    \b
    Example:
      skymount registry drop 3
    """
    if bool(numbers) == everything:
        raise click.UsageError("name what to drop by its numbers, or use --all")
    with _ledger() as ledger:
        for each in _chosen(ledger.pending(), numbers):
            ledger.drop(each.id)


@click.command()
@click.argument("owner", metavar="KEY")
@click.argument("data_key", metavar="DATAKEY")
@hashed_option
@click.option("--seen", is_flag=True, help="Forget as well which revision of it was seen.")
def forget(owner: str, data_key: str, hashed: bool, seen: bool) -> None:
    """Take an entry out of the listings of mounts. The entry itself stays as it is.

    Using it again lists it again. With --seen an entry older than what was seen before is believed
    again, and shown: after a portal's registry was set up anew, for instance. Mounts that run have
    to be mounted again for that. Exit code 3 when nothing is known of the entry.

    \b
    Examples:
      skymount registry forget home greeting
      skymount registry forget --seen home greeting
    """
    from skymount.cli.key_argument import public_key
    from skymount.errors import NotFoundError
    from skymount.portal.client import arguments

    key, tweak = bytes.fromhex(public_key(owner)), arguments.tweak(data_key, hashed)
    with _ledger() as ledger:
        if not ledger.forget(key, tweak, seen=seen):
            raise NotFoundError(f"{data_key}: no such entry is listed")


@contextmanager
def _ledger() -> "Iterator[Ledger]":
    from skymount.portal.registry.ledger import Ledger

    with closing(Ledger.of_user()) as ledger:
        ledger.prepare()
        yield ledger


def _chosen(pending: "Sequence[PendingWrite]", numbers: Sequence[int]) -> "list[PendingWrite]":
    """Return what has these numbers, without any all; what a mount is posting is left to it.

    The oldest first.
    """
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


def _pair(public_key: bytes) -> "KeyPair | None":
    """Return the key that signs; what is signed already needs none."""
    from skymount.cli.key_argument import key_pair
    from skymount.errors import KeyringError

    try:
        return key_pair(public_key.hex())
    except KeyringError:
        return None


def _key_names() -> dict[bytes, str]:
    from skymount.errors import KeyringError
    from skymount.keyring import Keyring, default_path

    try:
        return {key: name for name, key in Keyring(default_path()).public_keys().items()}
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
    columns = (
        str(each.id),
        _time(each),
        _entry(each, names),
        revision,
        _shown(each, _SHOWN),
        state,
    )
    return "  ".join(columns)


def _entry(each: "PendingWrite", names: dict[bytes, str]) -> str:
    owner = names.get(each.public_key, each.public_key.hex())
    return f"{owner}/{each.tweak.hex() if each.data_key is None else each.data_key}"


def _shown(each: "PendingWrite", limit: int | None = None) -> str:
    """Return the content as a line shows it: text between quotes, a skylink, or hex digits."""
    from skymount.wire.registry_entry import DELETED, linked_skylink

    if each.data == DELETED:
        return "(deletion)"
    skylink = linked_skylink(each.data)
    try:
        shown = str(skylink) if skylink else f'"{each.data.decode()}"'
    except UnicodeDecodeError:
        shown = each.data.hex()
    return shown if limit is None or len(shown) <= limit else f"{shown[:limit]}..."
