"""``skymount hns``: what domains resolve to, through a portal."""

from typing import TYPE_CHECKING

import click

from skymount.cli.options import portal_options
from skymount.cli.output import emit, json_option
from skymount.errors import NotFoundError

if TYPE_CHECKING:
    from skymount.portal.client.client import PortalClient
    from skymount.portal.client.hns import HnsResult
    from skymount.settings import Config


@click.group()
def hns() -> None:
    """Resolve domains.

    `skymount ls`, `cat` and `download` take hns://DOMAIN/PATH. For names that a portal of this
    machine answers to, see `skymount portal hns`.

    \b
    Examples:
      skymount hns resolve example
      skymount download hns://example/index.html
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
    from skymount.cli.session import client, run

    async def ask(opened: "PortalClient") -> "HnsResult":
        try:
            return await opened.resolve_hns(domain)
        except NotFoundError as error:
            said = f"{domain}: the portal knows no such name: "
            raise error.explained(before=said) from error

    found = run(client(settings), ask)
    emit({"skylink": found.skylink, "data": found.data}, as_json, [found.skylink])


@hns.command(hidden=True, context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def download(arguments: tuple[str, ...]) -> None:
    """Say what there is instead."""
    raise click.UsageError("it was removed: use `skymount download hns://DOMAIN/PATH`")
