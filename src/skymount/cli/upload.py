"""``skymount upload``."""

import json
from pathlib import Path

import click

from skymount.cli.options import portal_options
from skymount.cli.output import emit, json_option, progress, warn


@click.command()
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@portal_options
@json_option
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
    from skymount.cli.session import load, run_with_client
    from skymount.portal.upload import UploadBody, empty_directories

    settings = load(portals=portals, dialect=dialect, config_file=config_file)
    with progress() as report:
        body = UploadBody.of_path(path, report)
        for empty in empty_directories(path):
            warn(f"{empty}: empty, and not part of the upload")
        # to the first portal alone: who uploads says where to
        result = run_with_client(settings, lambda client: client.send_upload(body))
    emit(json.loads(result.encode()), as_json, [str(result.skylink)])
