"""Uploads of commands: which portals take them, and what is said of those that do not."""

from typing import TYPE_CHECKING

import click

from skymount.cli.output import warn
from skymount.errors import SkymountError
from skymount.wording import counted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from skymount.content.opening import Content
    from skymount.errors import PortalError
    from skymount.portal.client.base import PortalReader
    from skymount.portal.client.upload import UploadBody
    from skymount.portal.failover.portals import Portals
    from skymount.portal.ledger.entries import EntryId
    from skymount.portal.registry.entry_reader import EntryState
    from skymount.portal.uploads.upload import Copies
    from skymount.wire.http.responses import UploadResult
    from skymount.wire.key_pair import SigningKeyPair
    from skymount.wire.skylink import Skylink

_PATIENCE = 10.0  # seconds that a portal gets, at least, once enough others have it


async def upload_replicas(portals: "Portals", body: "UploadBody", count: int) -> "UploadResult":
    """Upload to so many portals; an error says which have it if some do not."""
    return (await _copies(portals, body, count)).agreed()


async def _copies(portals: "Portals", body: "UploadBody", count: int) -> "Copies":
    """Upload to so many portals, and say of each that fails which one is tried then."""
    from skymount.portal.uploads.upload import upload_copies

    _check_count(portals, count)
    copies = await upload_copies(portals, body, count, _warn_of_fallback)
    if count > 1 and len(copies.results) < count:
        raise _shortage(copies.results, count, copies.failures.values())
    copies.agreed()
    if copies.doubt:
        warn(copies.doubt)
    if count == 1 and portals.writable().clients[0] not in copies.results:
        warn(f"it was uploaded to {next(iter(copies.results)).url}")
    return copies


async def upload_pipe_replicas(
    content: "Content", body: "UploadBody", count: int
) -> "UploadResult":
    """Upload to one portal, and bring it from there to others; an error as of `upload_replicas`."""
    from skymount.content.replication.replicator import Replicator

    _check_count(content.portals, count)
    copies = await _copies(content.portals, body, 1)
    result = copies.agreed()
    replicator = Replicator(content.portals, content.reader)
    results, failures = copies.results, list[SkymountError]()
    for client in content.portals.writable().clients:
        if client not in results and len(results) < count:
            try:
                await replicator.replicate(result.skylink, client)
                results[client] = result
            except SkymountError as error:
                failures.append(error)
    if len(results) < count:
        raise _shortage(results, count, failures)
    return result


async def publish(
    content: "Content", entry: "EntryId", pair: "SigningKeyPair", body: "UploadBody"
) -> "tuple[Skylink, EntryState]":
    """Upload to all portals, as many as the settings demand, then set an entry to it. Warn of those
    that lack the content: they are owed both.
    """
    from skymount.portal.uploads.upload import upload_with_entry

    needed = content.settings.writes.needed(len(content.portals.writable().clients))

    async def write(skylink: "Skylink", lacking: "Collection[str]") -> "tuple[Skylink, EntryState]":
        data = bytes(skylink)
        return skylink, await content.registry.write(entry, pair, data, None, lacking=lacking)

    return await upload_with_entry(
        content.portals,
        body,
        needed,
        write,
        patience=_PATIENCE,
        extra=1.0,
        on_copies=_warn_of_lacking,
    )


def _warn_of_lacking(copies: "Copies") -> None:
    for error in copies.failures.values():
        later = "it gets content and entry later, from a mount or with `skymount registry retry`"
        warn(f"{error}; {later}")
    if copies.doubt:
        warn(copies.doubt)


def _warn_of_fallback(error: "PortalError", then: "PortalReader") -> None:
    again = " again" if f"{error.url}/".startswith(f"{then.url}/") else ""
    warn(f"{error}; now trying {then.url}{again}")


def _check_count(portals: "Portals", count: int) -> None:
    writable = len(portals.writable().clients)
    if count > writable:
        raise click.UsageError(
            f"--replicas {count}: only {counted(writable, 'portal')} can be uploaded to"
        )


def _shortage(
    results: "Mapping[PortalReader, UploadResult]",
    count: int,
    errors: "Iterable[SkymountError]",
) -> click.ClickException:
    """Return which portals have it, and why others do not."""
    parts = [f"{client.url} has {each.skylink}" for client, each in results.items()]
    parts += map(str, errors)
    return click.ClickException(f"{len(results)} of {count} portals have it: " + "; ".join(parts))
