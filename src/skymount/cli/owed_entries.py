"""Sends portals what they are owed, for ``skymount registry retry``."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from skymount.cli.output import warn
from skymount.cli.pending_entries import sent_fact
from skymount.errors import SkymountError
from skymount.settings import Config

if TYPE_CHECKING:
    from skymount.cli.session import WriteSession
    from skymount.portal.ledger.owed_entry import OwedEntry
    from skymount.portal.registry.owed_sender import SendContent

_MIN_MEMORY_CACHE = 1 << 20  # bytes; without any, each part of a unit would fetch all of it


async def send_owed(
    session: "WriteSession", settings: Config, owed: "Sequence[OwedEntry]"
) -> list[dict[str, Any]]:
    """Send portals entries, and first the content behind them that they lack; return what was
    sent. Warn of what was not, and of writes that something newer won over.
    """
    from skymount.portal.registry.owed_sender import OwedSender

    clients = {client.url: client for client in session.portals.writable_clients}
    before = {each.id for each in session.ledger.pending()}
    sent: list[dict[str, Any]] = []
    async with _content_sender(session, settings, owed) as send_content:
        sender = OwedSender(session.registry, session.ledger, send_content=send_content)
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
    for kept in session.ledger.pending():
        if kept.id not in before:
            warn(f"{kept.id}: {kept.reason}; it is kept as a change in conflict")
    return sent


@asynccontextmanager
async def _content_sender(
    session: "WriteSession", settings: Config, owed: "Sequence[OwedEntry]"
) -> "AsyncIterator[SendContent | None]":
    """Open what brings content to portals, if there is any to be sent."""
    if not any(each.with_content for each in owed):
        yield None
        return
    from skymount.content.cache.memory_cache import MemoryCache
    from skymount.content.fetch.reader import open_reader
    from skymount.content.fetch.skyfile_loader import SkyfileLoader
    from skymount.content.replication.replicator import Replicator

    loader = SkyfileLoader(session.portals, settings.verify)
    cache = MemoryCache(max(settings.memory_cache, _MIN_MEMORY_CACHE))
    async with open_reader(session.portals, loader, cache) as reader:
        yield Replicator(session.portals, reader, loader).replicate
