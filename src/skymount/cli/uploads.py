"""Uploads of commands: which portals take them, and what is said of those that do not."""

from typing import TYPE_CHECKING

import click

from skymount.cli.output import warn

if TYPE_CHECKING:
    from skymount.errors import PortalError
    from skymount.portal.client.base import PortalReader
    from skymount.portal.client.upload import UploadBody
    from skymount.portal.failover import Portals
    from skymount.portal.uploads import Copies
    from skymount.wire.http.responses import UploadResult


async def upload_once(portals: "Portals", body: "UploadBody") -> "UploadResult":
    """Upload to the first portal that takes it; warn if another one comes before it."""
    from skymount.portal.uploads import upload_to_first

    preferred = portals.writable().clients[0]
    taker, result = await upload_to_first(portals, body, _warn_of_fallback)
    if taker is not preferred:
        warn(f"it was uploaded to {taker.url}")
    return result


async def upload_replicas(portals: "Portals", body: "UploadBody", count: int) -> "UploadResult":
    """Upload to so many portals; an error says which have it if some do not."""
    from skymount.portal.uploads import upload_copies

    writable = len(portals.writable().clients)
    if count > writable:
        raise click.UsageError(f"--replicas {count}: there are {writable} portals to upload to")
    copies = await upload_copies(portals, body, count, _warn_of_fallback)
    if len(copies.results) < count or not copies.is_same:
        raise click.ClickException(_shortage(copies, count, body.unrepeatable))
    return next(iter(copies.results.values()))


def _warn_of_fallback(error: "PortalError", then: "PortalReader") -> None:
    warn(f"{error}; now trying {then.url}")


def _shortage(copies: "Copies", count: int, reason: str) -> str:
    """Return which portals have it, and why others do not."""
    parts = [f"{client.url} has {each.skylink}" for client, each in copies.results.items()]
    if not copies.is_same:
        return "the portals gave it different skylinks: " + ", ".join(parts)
    parts += [str(error) for error in copies.failures.values()]
    parts += [reason] if copies.results and reason else []
    return f"{len(copies.results)} of {count} portals have it: " + "; ".join(parts)
