"""Sends portals what they are owed, for ``skymount registry retry``."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from skymount.cli.output import warn
from skymount.cli.pending_entries import sent_fact
from skymount.errors import SkymountError

if TYPE_CHECKING:
    from skymount.content.opening import Content
    from skymount.portal.ledger.owed_entry import OwedEntry


async def send_owed(content: "Content", owed: "Sequence[OwedEntry]") -> list[dict[str, Any]]:
    """Send portals entries, and first the content behind them that they lack; return what was
    sent. Warn of what was not, and of writes that something newer won over.
    """
    from skymount.portal.registry.owed_sender import OwedSender

    clients = {client.url: client for client in content.portals.writable_clients}
    before = {each.id for each in content.ledger.pending()}
    sent: list[dict[str, Any]] = []
    send_content = None
    if any(each.with_content for each in owed):
        from skymount.content.replication.replicator import Replicator

        send_content = Replicator(content.portals, content.reader).replicate
    sender = OwedSender(content.registry, content.ledger, send_content=send_content)
    for each in owed:
        client = clients.get(each.portal)
        if client is None:
            text = "is not among the portals that this command writes to"
            warn(f"{each.id}: {each.portal} {text}")
            continue
        try:
            if await sender.send(client, each):
                sent.append(sent_fact(each, each.signed.entry.revision))
        except SkymountError as error:
            warn(f"{each.id}: {error}")
    for kept in content.ledger.pending():
        if kept.id not in before:
            warn(f"{kept.id}: {kept.reason}; it is kept as a change in conflict")
    return sent
