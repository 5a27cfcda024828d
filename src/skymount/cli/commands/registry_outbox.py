"""``skymount registry pending``, ``retry``, ``drop`` and ``forget``, which use the ledger."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from skymount.cli.key_argument import EntryArgument, entry_arguments, key_pair, open_ledger
from skymount.cli.options import portal_options
from skymount.cli.output import emit, json_option, warn
from skymount.cli.pending_entries import (
    key_names,
    pending_facts,
    pending_row,
    sent_fact,
    table,
    warn_of_dropped,
)
from skymount.errors import (
    KeyringError,
    NotFoundError,
    SkymountError,
    StaleEntryError,
    StorageError,
)

if TYPE_CHECKING:
    from skymount.content.opening import Content
    from skymount.portal.ledger.outbox import Pending
    from skymount.settings import Config
    from skymount.wire.key_pair import SigningKeyPair


@click.command(short_help="List changes of entries that are still to be posted.")
@json_option
def pending(as_json: bool) -> None:
    """List changes of entries that a mount or a command could not post, oldest first, and then
    entries that only some of several portals have: the others are owed them.

    If no portal answered, a running mount posts the change by itself once one does. The table has
    a number for `retry` and `drop`, the key and the data key, the revision if one was signed, and
    the data; above the changes of one kind stands why they were not posted. What is owed is sent by
    a running mount too.

    \b
    Examples:
      skymount registry pending
      skymount registry retry
    """
    with open_ledger() as ledger:
        found = ledger.pending()
    names = key_names() if found else {}
    rows = [pending_row(each, names) for each in found]
    emit([pending_facts(each) for each in found], as_json, table(rows))


@click.command()
@click.argument("numbers", metavar="[NUMBER]...", type=int, nargs=-1)
@click.option("--overwrite", is_flag=True, help="Replace what somebody else has set meanwhile.")
@portal_options
@json_option
def retry(numbers: tuple[int, ...], overwrite: bool, settings: "Config", as_json: bool) -> None:
    """Post pending changes: all of them, or those with these numbers.

    A change that was signed is posted as it is, another one is signed now. A change is superseded
    if the entry was changed later: it is dropped with a warning that shows its data, or with
    --overwrite gets the next revision. A change in conflict with somebody else's stays pending
    until you overwrite or drop it.

    Entries that portals are owed are sent to them, with the content behind them that they lack.

    The changes go to the portals of this command. If the mount used others, name them here too:
    `pending --json` shows them. A mount does all this by itself, but never overwrites.

    \b
    Examples:
      skymount registry retry
      skymount registry retry --overwrite 3
    """
    from skymount.cli.session import change

    with open_ledger() as ledger:
        chosen = _chosen(ledger.pending(), numbers)
        writes = [each for each in chosen if not each.accepted]
        owed = [each for each in chosen if each.accepted]
        pairs = {key: _pair(key) for key in {each.public_key for each in writes}}

        async def send(opened: "Content") -> list[dict[str, Any]]:
            posted = await _send_all(opened, writes, pairs, overwrite=overwrite)
            return [*posted, *(await _send_owed(opened, owed))]

        interrupted = "what was not sent stays pending, see `skymount registry pending`"
        sent = change(settings, send, interrupted=interrupted) if chosen else []
        left = {each.id for each in ledger.pending()}
    emit(
        sent,
        as_json,
        [f"{each['id']}: {each['entry']}, revision {each['revision']}" for each in sent],
    )
    stay = sum(each.id in left for each in chosen)
    if stay:
        raise click.ClickException(f"{stay} of {len(chosen)} stay pending")


async def _send_all(
    content: "Content",
    chosen: "Sequence[Pending]",
    pairs: "dict[bytes, SigningKeyPair | None]",
    *,
    overwrite: bool,
) -> list[dict[str, Any]]:
    """Post changes in order; return what was posted. Warn of what was not, and drop what somebody
    else's newer entry superseded, unless it is a conflict.
    """
    import trio

    from skymount.portal.ledger.outbox import Status

    registry, ledger = content.registry, content.ledger
    sent: list[dict[str, Any]] = []
    for each in chosen:
        try:
            state = await registry.send(each, pairs[each.public_key], overwrite=overwrite)
            sent.append(sent_fact(each, state.revision))
        except SkymountError as error:
            left = ledger.get(each.id)
            if left is None:  # something later was posted
                continue
            if isinstance(error, StaleEntryError) and left.status is not Status.CONFLICT:
                await trio.to_thread.run_sync(ledger.drop, each.id)
                warn_of_dropped(each, error.message)
            else:
                warn(f"{each.id}: {error}")
    return sent


async def _send_owed(content: "Content", owed: "Sequence[Pending]") -> list[dict[str, Any]]:
    """Send portals entries, and first the content behind them that they lack; return what was
    sent. Warn of what was not, and of writes that something newer won over.
    """
    from skymount.portal.registry.sender import Sender

    clients = {client.url: client for client in content.portals.writable_clients}
    before = {each.id for each in content.ledger.pending() if not each.accepted}
    sent: list[dict[str, Any]] = []
    send_content = None
    if any(each.lacking for each in owed):
        from skymount.content.replication.replicator import Replicator

        send_content = Replicator(content.portals, content.reader).replicate
    sender = Sender(content.registry, content.ledger, send_content=send_content)
    for each in owed:
        (portal,) = each.portals
        client = clients.get(portal)
        if client is None:
            text = "is not among the portals that this command writes to"
            warn(f"{each.id}: {portal} {text}")
            continue
        try:
            if await sender.send_owed(client, each):
                sent.append(sent_fact(each, each.entry.revision))
        except SkymountError as error:
            warn(f"{each.id}: {error}")
    for kept in content.ledger.pending():
        if not kept.accepted and kept.id not in before:
            warn(f"{kept.id}: {kept.reason}; it is kept as a change in conflict")
    return sent


@click.command()
@click.argument("numbers", metavar="[NUMBER]...", type=int, nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Drop all pending changes.")
def drop(numbers: tuple[int, ...], everything: bool) -> None:
    """Drop pending changes, and what portals are owed, for good.

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
def forget(entry: EntryArgument, seen: bool) -> None:
    """Remove an entry from the listings of mounts. The entry itself does not change.

    Using the entry lists it again. With --seen an older entry than the one seen before is accepted
    again, for instance after a portal's registry was set up anew; running mounts have to be mounted
    again for that. Exit code 3 if nothing is known of the entry.

    \b
    Examples:
      skymount registry forget home greeting
      skymount registry forget --seen home greeting
    """
    public_key = entry.public_key
    with open_ledger() as ledger:
        if not ledger.forget(public_key, entry.tweak, seen=seen):
            raise NotFoundError(f"{entry.data_key}: no such entry is listed")


def _chosen(pending: "Sequence[Pending]", numbers: Sequence[int]) -> "list[Pending]":
    """Return the changes with these numbers, or all but those being posted; oldest first."""
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
    try:
        return key_pair(public_key.hex())
    except KeyringError:
        return None
