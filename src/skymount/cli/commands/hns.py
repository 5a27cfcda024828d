"""``skymount hns``: what domains resolve to, through a portal."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from skymount.cli import completion
from skymount.cli.options import portal_options, reading_options
from skymount.cli.output import emit, interruption, is_stream, json_option, progress
from skymount.errors import NotFoundError
from skymount.wire.http import requests

if TYPE_CHECKING:
    from skymount.config import Config
    from skymount.portal.client.client import PortalClient
    from skymount.portal.client.download import DownloadResult
    from skymount.portal.client.hns import HnsResult


@click.group()
def hns() -> None:
    """Resolve domains, and download what they point to.

    For names that a portal of this machine answers to, see `skymount portal hns`.

    \b
    Examples:
      skymount hns resolve example
      skymount hns download example/index.html
    """


@hns.command(short_help="Print the link that DOMAIN resolves to.")
@click.argument("domain")
@portal_options
@json_option
def resolve(domain: str, settings: "Config", as_json: bool) -> None:
    """Print the link that DOMAIN resolves to; exit code 3 if it has none.

    \b
    Examples:
      skymount hns resolve example
      skymount ls "$(skymount hns resolve example)"
    """
    from skymount.cli.session import run_with_client

    async def ask(client: "PortalClient") -> "HnsResult":
        with _named(domain):
            return await client.resolve_hns(domain)

    found = run_with_client(settings, ask)
    emit({"skylink": found.skylink, "data": found.data}, as_json, [found.skylink])


@hns.command(short_help="Save what DOMAIN resolves to.")
@click.argument("name", metavar="DOMAIN[/PATH]")
@click.argument("destination", metavar="[DEST]", required=False, shell_complete=completion.files)
@click.option("--force", is_flag=True, help="Replace a file that exists already.")
@reading_options
@json_option
def download(
    name: str, destination: str | None, force: bool, settings: "Config", as_json: bool
) -> None:
    """Download what DOMAIN resolves to into the file DEST, or into the directory DEST.

    If DEST is '-' (stdout), a device or a pipe, it is written to that. Without DEST the file is
    named after the last element of the path, or the domain; `download` replaces a name that begins
    with a dash or holds control or invisible characters. For a directory the portal sends its index
    page, or a zip archive if there is none; `skymount download --archive zip hns://example
    site.zip` gets all of it.

    Nothing is verified, as a warning says. `skymount download hns://DOMAIN/PATH` at least verifies
    that the content is the one that the portal says the domain leads to.

    \b
    Examples:
      skymount hns download example/index.html
      skymount hns download example page.html
    """
    from skymount.cli.commands.copying.download import check_destination, file_destination, unsaved
    from skymount.cli.link_target import HNS, ParsedLink, safe_name, warn_of_unverified
    from skymount.cli.session import run_with_client
    from skymount.portal.policies import Verified

    check_destination(destination, as_json, force=force)
    link = ParsedLink.parse(name if name[:4].lower() == "hns:" else HNS + name)
    domain, path = str(link.root), link.path.decode("utf-8", "surrogateescape")
    shown = f"{domain}/{path}".rstrip("/")
    if destination is not None and is_stream(destination):
        out = destination
        with interruption(unsaved(destination)):
            size = run_with_client(
                settings, lambda client: _copy_out(client, domain, path, shown, out)
            )
        warn_of_unverified(HNS + shown, Verified.NO, settings.verify)
        emit({"path": out, "size": size, "verified": Verified.NO.value}, as_json, [])
        return
    own = (path or domain).rpartition("/")[2]
    own = "download" if own in (".", "..") else safe_name(own, "download")
    parent, file = file_destination(destination, own, chosen=True, force=force)
    target = Path(parent, file)
    with interruption(unsaved(destination)), progress() as bar:

        async def fetch(client: "PortalClient") -> "DownloadResult":
            with _named(shown):
                return await client.download_file_hns(target, domain, path=path, on_progress=bar)

        done = run_with_client(settings, fetch)
    warn_of_unverified(HNS + shown, done.verified, settings.verify)
    found = {"path": str(target), "size": done.size, "verified": done.verified.value}
    emit(found, as_json, [])


async def _copy_out(
    client: "PortalClient", domain: str, path: str, shown: str, destination: str
) -> int:
    from skymount.cli.commands.copying.download import copy_out
    from skymount.portal.client.verification import DOMAIN_UNVERIFIABLE, refuse_unverified

    refuse_unverified(client.options, shown, DOMAIN_UNVERIFIABLE)
    with _named(shown):
        return await copy_out(client, requests.hns_download(domain, path), destination)


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Name what is missing: a portal's answer says little more than the status."""
    try:
        yield
    except NotFoundError as error:
        error.message = f"{name}: the portal knows no such name: {error.message}"
        raise
