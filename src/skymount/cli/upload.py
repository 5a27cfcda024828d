"""``skymount upload``."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from skymount.cli.options import portal_options
from skymount.cli.output import emit, json_option, progress, warn

if TYPE_CHECKING:
    from skymount.portal.client import PortalClient
    from skymount.portal.upload import UploadBody
    from skymount.wire.messages import UploadResult


@click.command()
@click.argument("path", type=click.Path(exists=True, path_type=Path, allow_dash=True))
@click.option("--name", metavar="NAME", help="Name of the file or directory in the skylink.")
@click.option("--default-path", metavar="PATH", help="File that a browser is shown first.")
@click.option("--no-default-path", is_flag=True, help="Show a browser no file first.")
@click.option("--skykey-name", metavar="NAME", help="Let the portal encrypt it with this skykey.")
@click.option("--skykey-id", metavar="ID", help="The same, by the skykey's id.")
@click.option("--dry-run", is_flag=True, help="Only print the skylink that it would have.")
@portal_options
@json_option
def upload(
    path: Path,
    name: str | None,
    default_path: str | None,
    no_default_path: bool,
    skykey_name: str | None,
    skykey_id: str | None,
    dry_run: bool,
    portals: tuple[str, ...],
    dialect: str | None,
    config_file: str | None,
    as_json: bool,
) -> None:
    """Upload the file or directory PATH; print its skylink.

    With - as PATH the file is read from standard input, and needs a --name.

    \b
    Examples:
      skymount upload notes.pdf
      skymount upload site/ --portal https://portal.example
      pg_dump shop | skymount upload - --name shop.sql
      skymount upload --json site/ | jq -r .merkleroot
    """
    from skymount.cli.session import load, run_with_client
    from skymount.portal.sources import empty_directories
    from skymount.portal.upload import upload_query

    settings = load(portals=portals, dialect=dialect, config_file=config_file)
    query = upload_query(
        skykey_name=skykey_name or "",
        skykey_id=skykey_id or "",
        default_path=default_path or "",
        disable_default_path=no_default_path,
        dry_run=dry_run,
    )
    body = _body(path, name or "", query)
    for empty in empty_directories(path):
        warn(f"{empty}: empty, and not part of the upload")
    with progress() as bar:

        async def send(client: "PortalClient") -> "UploadResult":
            # to the first portal alone: who uploads says where to
            return await client.send_upload(body.with_progress(bar))

        result = run_with_client(settings, send)
    emit(json.loads(result.encode()), as_json, [str(result.skylink)])


def _body(path: Path, name: str, query: list[tuple[str, str]]) -> "UploadBody":
    from skymount.portal.sources import Source
    from skymount.portal.upload import FILE_FIELD, UploadBody

    if str(path) != "-":
        return UploadBody.of_path(path, name=name, query=query)
    if not name:
        raise click.UsageError("standard input has no name: add --name NAME")
    source = Source.of_file_object(sys.stdin.buffer, name)
    return UploadBody([source], field=FILE_FIELD, query=query)
