"""``skymount publish``: content under a link that stays the same."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from skymount.cli.options import PortalFlags, hashed_option, portal_options
from skymount.cli.output import emit, json_option, progress, warn

if TYPE_CHECKING:
    from skymount.cli.session import Writing
    from skymount.wire.skylink import Skylink


@click.command()
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("--key", "owner", metavar="KEY", required=True, help="Key that signs the entry.")
@click.option("--as", "data_key", metavar="DATAKEY", required=True, help="Data key of the entry.")
@hashed_option
@portal_options
@json_option
def publish(
    path: Path, owner: str, data_key: str, hashed: bool, flags: PortalFlags, as_json: bool
) -> None:
    """Upload the file or directory PATH under a link that stays the same; print that link.

    KEY is the name of a key in the keyring (see `skymount key`), DATAKEY any text: the two name the
    registry entry that is pointed at the upload. Its link is a skylink, which leads to what was
    published last. If the upload is done and the entry cannot be posted, the entry is kept, see
    `skymount registry pending`. --json has the upload's skylink, the link, and the revision.

    \b
    Examples:
      skymount publish site/ --key home --as site
      ls ~/sky/skylinks/"$(skymount publish site/ --key home --as site)"
    """
    from skymount.cli.key_argument import entry_of, key_pair
    from skymount.cli.session import run_with_entries
    from skymount.portal.client.upload import UploadBody
    from skymount.portal.client.upload_source import empty_directories
    from skymount.wire.registry_entry import entry_link

    settings = flags.load()
    pair = key_pair(owner)
    ref = entry_of(pair, data_key, hashed=hashed)
    body = UploadBody.of_path(path)
    for empty in empty_directories(path):
        warn(f"{empty}: empty, and not part of the upload")
    with progress() as bar:

        async def send(writing: "Writing") -> "tuple[Skylink, int]":
            skylink = await writing.upload(body.with_progress(bar))
            return skylink, (await writing.set(ref, pair, bytes(skylink))).revision

        skylink, revision = run_with_entries(settings, send)
    link = str(entry_link(ref.public_key, ref.tweak))
    emit({"skylink": str(skylink), "link": link, "revision": revision}, as_json, [link])
