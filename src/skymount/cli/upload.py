"""``skymount upload``."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from skymount.cli.options import portal_options
from skymount.errors import UnavailableError

if TYPE_CHECKING:
    from skymount.config import Config
    from skymount.portal.upload import Progress, UploadBody
    from skymount.wire.messages import UploadResult


@click.command()
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@portal_options
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON.")
def upload(
    path: Path,
    portals: tuple[str, ...],
    dialect: str | None,
    config_file: str | None,
    as_json: bool,
) -> None:
    """Upload the file or directory PATH; print its skylink.

    \b
    Examples:
      skymount upload notes.pdf
      skymount upload site/ --portal https://portal.example
      skymount upload --json site/ | jq -r .merkleroot
    """
    import trio

    from skymount import config
    from skymount.portal.upload import UploadBody, empty_directories

    flags = {"portals": portals or None, "dialect": dialect}
    settings = config.load(flags, environ=os.environ, file=config_file or "")
    with _progress() if sys.stderr.isatty() else nullcontext() as progress:
        body = UploadBody.of_path(path, progress)
        for empty in empty_directories(path):
            click.echo(f"skymount: warning: {empty}: empty, and not part of the upload", err=True)
        result = trio.run(_send, settings, body)
    click.echo(result.encode().decode().rstrip("\n") if as_json else str(result.skylink))


async def _send(settings: "Config", body: "UploadBody") -> "UploadResult":
    """Send to the first portal alone: what was read once cannot be sent again."""
    from skymount.portal.client import PortalClient
    from skymount.portal.options import PortalOptions
    from skymount.wire.dialect import dialect_named

    options = PortalOptions.parse(
        settings.portal_urls[0], dialect_named(settings.dialect), api_key=settings.api_key
    )
    async with PortalClient(options) as client:
        try:
            return await client.upload(body)
        except UnavailableError as error:
            if settings.portals:
                raise
            raise UnavailableError(
                f"{error}; start a portal with `skymount portal serve` or `skymount mount`, "
                "or name one with --portal URL"
            ) from error


@contextmanager
def _progress() -> Iterator["Progress"]:
    """Show a progress bar on stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    with Bar(
        BarColumn(), DownloadColumn(), TransferSpeedColumn(), console=Console(stderr=True)
    ) as bar:
        task = bar.add_task("")
        yield lambda sent, total: bar.update(task, completed=sent, total=total)
