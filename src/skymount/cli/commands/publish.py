"""``skymount publish``: uploads content and points a registry entry at it."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from skymount.cli import completion
from skymount.cli.key_argument import EntryArgument, hashed_option
from skymount.cli.options import PathType, portal_options
from skymount.cli.output import emit, json_option, progress
from skymount.cli.upload_options import PageOptions, page_options, prepared, selection_options
from skymount.wire.skylink import Skylink

if TYPE_CHECKING:
    from skymount.content.opening import Content
    from skymount.portal.registry.entry_reader import EntryState
    from skymount.settings import Config
    from skymount.upload_selection.selection import SelectionRules


@click.command(short_help="Upload PATH under a link that stays the same.")
@click.argument("path", type=PathType(exists=True, path_type=Path))
@click.option(
    "--key",
    "owner",
    metavar="KEY",
    required=True,
    shell_complete=completion.key_names,
    help="Key that signs the entry.",
)
@click.option("--as", "data_key", metavar="DATAKEY", required=True, help="Data key of the entry.")
@hashed_option
@page_options
@selection_options
@portal_options
@json_option
def publish(
    path: Path,
    owner: str,
    data_key: str,
    hashed: bool,
    pages: PageOptions,
    rules: "SelectionRules",
    settings: "Config",
    as_json: bool,
) -> None:
    """Upload the file or directory PATH under a link that stays the same; print that link.

    KEY is the name of a key in the keyring (see `skymount key`), DATAKEY any text. The two name the
    registry entry that will point to the upload; the link is that entry's skylink, which leads to
    what was published last. Both go to all portals; registry_writes in the configuration says how
    many must have them. If the upload is done but the entry cannot be posted, the entry is
    kept, see `skymount registry pending`. Of a directory the same is left out as by `skymount
    upload`. --json prints the skylink of the upload, the link, and the revision.

    \b
    Examples:
      skymount publish site/ --key home --as site
      ls ~/sky/skylinks/"$(skymount publish site/ --key home --as site)"
    """
    from skymount.cli import uploads
    from skymount.cli.session import change
    from skymount.portal.client.upload import upload_query
    from skymount.wire.registry_entry import entry_link

    entry = EntryArgument(owner, data_key, hashed)
    pair = entry.key_pair()
    [body] = prepared([path], rules, query=upload_query(**pages))
    with progress() as bar:

        async def send(opened: "Content") -> "tuple[Skylink, EntryState]":
            return await uploads.publish(opened, entry.id, pair, body.with_progress(bar))

        skylink, state = change(settings, send, entry.id)
    link = str(entry_link(pair.public_key, entry.tweak))
    emit({"skylink": str(skylink), "link": link, "revision": state.revision}, as_json, [link])
