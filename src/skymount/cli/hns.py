"""``skymount hns``: what domains resolve to, through a portal."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from skymount.cli.options import portal_options
from skymount.cli.output import emit, json_option, progress

if TYPE_CHECKING:
    from skymount.portal.client import PortalClient
    from skymount.portal.names import HnsResult


@click.group()
def hns() -> None:
    """Resolve domains, and download what they point to.

    For names that a portal of this machine answers to, see `skymount portal hns`.

    \b
    Examples:
      skymount hns resolve example
      skymount hns download example/index.html
    """


@hns.command()
@click.argument("domain")
@portal_options
@json_option
def resolve(
    domain: str,
    portals: tuple[str, ...],
    dialect: str | None,
    config_file: str | None,
    as_json: bool,
) -> None:
    """Print the link that DOMAIN resolves to; exit code 3 when it has none.

    \b
    Examples:
      skymount hns resolve example
      skymount ls "$(skymount hns resolve example)"
    """
    from skymount.cli.session import load, run_with_client

    settings = load(portals=portals, dialect=dialect, config_file=config_file)

    async def ask(client: "PortalClient") -> "HnsResult":
        return await client.resolve_hns(domain)

    found = run_with_client(settings, ask)
    emit({"skylink": found.skylink, "data": found.data}, as_json, [found.skylink])


@hns.command()
@click.argument("name", metavar="DOMAIN[/PATH]")
@click.argument("destination", type=click.Path(path_type=Path), required=False)
@portal_options
@json_option
def download(
    name: str,
    destination: Path | None,
    portals: tuple[str, ...],
    dialect: str | None,
    config_file: str | None,
    as_json: bool,
) -> None:
    """Download what DOMAIN resolves to into the file DESTINATION.

    Without DESTINATION the file has the last name of the path, or of the domain, and must not be
    there yet. The portal is believed; `skymount download hns://DOMAIN/PATH` checks content against
    its hash.

    \b
    Example:
      skymount hns download example/index.html
    """
    from skymount.cli.session import load, run_with_client

    settings = load(portals=portals, dialect=dialect, config_file=config_file)
    domain, _, path = name.removeprefix("hns://").partition("/")
    path = path.strip("/")
    target = destination or Path((path or domain).rpartition("/")[2])
    if target.is_dir():
        target = target / (path or domain).rpartition("/")[2]
    if destination is None and target.exists():
        raise click.UsageError(f"{target} is there already; name the destination to replace it")

    with progress() as bar:

        async def fetch(client: "PortalClient") -> None:
            await client.download_file_hns(target, domain, path=path, on_progress=bar)

        run_with_client(settings, fetch)
    emit({"path": str(target), "size": target.stat().st_size}, as_json, [])
