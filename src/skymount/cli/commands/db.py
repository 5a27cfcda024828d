"""``skymount db``: SkyDB, JSON documents that registry entries point to."""

import json
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skymount.cli.key_argument import EntryArgument, entry_arguments
from skymount.cli.options import (
    PathType,
    portal_options,
    reading_options,
    removed_option,
    wait_option,
)
from skymount.cli.output import emit, json_option
from skymount.cli.standard_streams import standard_input
from skymount.errors import BadContentError, MalformedError, NotFoundError
from skymount.wire.skydb_document import (
    DOCUMENT_LIMIT,
    decode_document,
    document_name,
    encode_document,
)
from skymount.wording import readable_size

if TYPE_CHECKING:
    from skymount.content.fetch.reader import ContentReader
    from skymount.content.model.skyfile import Skyfile
    from skymount.content.opening import Content
    from skymount.portal.ledger.entries import EntryId
    from skymount.settings import Config
    from skymount.wire.skylink import Skylink


_READ_SIZE = 1 << 20  # bytes of a document that are read at once


class _DocumentFile(PathType):
    """An existing file, or - for standard input."""

    def __init__(self) -> None:
        super().__init__(exists=True, dir_okay=False, allow_dash=True, path_type=Path)

    def convert(
        self,
        value: "str | os.PathLike[str]",
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            if os.fspath(value).lstrip()[:1] not in ("{", "["):
                raise
            self.fail("a document is read from a file or standard input, not from here", param, ctx)


@click.group()
def db() -> None:
    """Read, write and delete JSON documents of up to 64 MiB.

    KEY is the name of a key in the keyring (see `skymount key`), or a public key of 64 hex digits,
    which is enough for reading. DATAKEY is any text. A document uses the registry entry of the same
    DATAKEY, and replaces what it holds.

    \b
    Examples:
      echo '{"hello": "world"}' | skymount db set home greeting
      skymount db get home greeting
    """


@db.command()
@entry_arguments
@click.option("--pretty", is_flag=True, help="Print over several lines.")
@wait_option
@reading_options
@json_option
def get(entry: EntryArgument, pretty: bool, wait: float, settings: "Config", as_json: bool) -> None:
    """Print a document.

    An entry older than one seen before is refused, as by `skymount registry get`. The document is
    verified as a mount verifies content; if it cannot be, there is a warning. --json prints an
    object with the document, its revision, its link, and whether it is verified. Exit code 3 if
    there is no document, or it was deleted.

    \b
    Example:
      skymount db get home greeting | jq .
    """
    from skymount.cli.link_target import warn_of_unverified
    from skymount.cli.session import content, run

    found = run(content(settings, wait=wait), lambda opened: _read(opened, entry))
    warn_of_unverified(found["data_link"], found["verified"], settings.verify)
    text = json.dumps(found["data"], ensure_ascii=False, indent=2 if pretty else None)
    emit(found, as_json, text.split("\n"))


async def _read(content: "Content", entry: EntryArgument) -> dict[str, Any]:
    skylink, revision = await find_document(content, entry.id, entry.data_key)
    skyfile = await content.reader.load(skylink)
    if skyfile.size > DOCUMENT_LIMIT:
        raise BadContentError(f"{entry.data_key!r}: longer than {readable_size(DOCUMENT_LIMIT)}")
    try:
        document = await read_document(content.reader, skyfile)
    except MalformedError:
        raise _no_document(entry.data_key) from None
    link = content.portals.clients[0].dialect.link(skylink)
    return {
        "data": document,
        "revision": revision,
        "data_link": link,
        "verified": skyfile.verified,
    }


async def find_document(content: "Content", entry: "EntryId", name: str) -> "tuple[Skylink, int]":
    """Return the v1 skylink that an entry holds, and the entry's revision; messages use `name`."""
    from skymount.wire.registry_entry import linked_skylink

    signed = (await (await content.entries()).read(entry)).signed
    if signed is None:
        raise NotFoundError(f"{name!r}: there is no such document", status=404)
    if signed.entry.is_deleted:
        raise NotFoundError(f"{name!r}: it was deleted", status=404)
    skylink = linked_skylink(signed.entry.data)
    if skylink is None or skylink.version != 1:
        raise _no_document(name)
    return skylink, signed.entry.revision


def _no_document(name: str) -> click.ClickException:
    """Return the error of an entry that holds no document."""
    return click.ClickException(
        f"{name!r}: this registry entry is not a JSON document; see it with `skymount registry get`"
    )


async def read_document(reader: "ContentReader", skyfile: "Skyfile") -> Any:
    """Return the document that some content is; MalformedError if it is none."""
    from skymount.concurrency import off_loop

    body = bytearray()
    while len(body) < skyfile.size:
        size = min(_READ_SIZE, skyfile.size - len(body))
        body += await reader.read(skyfile, len(body), size)
    return await off_loop(partial(decode_document, bytes(body)), len(body))


@db.command("set", short_help="Store the JSON document in FILE; print its link.")
@entry_arguments
@click.argument("file", type=_DocumentFile(), default="-")
@removed_option("--revision", "an entry gets the next revision")
@portal_options
@json_option
def set_(entry: EntryArgument, file: Path, settings: "Config", as_json: bool) -> None:
    """Store the JSON document in FILE, or on standard input; print its link.

    The document is an object or an array, and is read from a file, since it may be long; the short
    DATA of `skymount registry set` is an argument. If it was uploaded but its entry cannot be
    posted, the entry is kept, see `skymount registry pending`.

    \b
    Examples:
      skymount db set home profile profile.json
      echo '{"hello": "world"}' | skymount db set home greeting
    """
    from skymount.cli.session import change
    from skymount.cli.uploads import publish
    from skymount.portal.client.upload import UploadBody

    pair = entry.key_pair()
    name = document_name(entry.data_key, entry.hashed)
    body = UploadBody.of_document(encode_document(_document(file)), name)

    skylink, state = change(
        settings, lambda opened: publish(opened, entry.id, pair, body), entry.id
    )
    link = settings.first_dialect.link(skylink)
    emit({"revision": state.revision, "data_link": link}, as_json, [link])


def _document(file: Path) -> Any:
    name = str(file)
    if name == "-":
        name = "standard input"
        raw = standard_input().read(DOCUMENT_LIMIT + 1)
    else:
        with file.open("rb") as source:
            raw = source.read(DOCUMENT_LIMIT + 1)
    if len(raw) > DOCUMENT_LIMIT:
        raise MalformedError(f"{name}: longer than {readable_size(DOCUMENT_LIMIT)}")
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"{name}: not JSON: {error}") from None
    if not isinstance(found, dict | list):
        raise MalformedError(f"{name}: a document is an object or an array")
    return found


@db.command()
@entry_arguments
@portal_options
@json_option
def delete(entry: EntryArgument, settings: "Config", as_json: bool) -> None:
    """Delete a document: its entry then says that there is none.

    \b
    Example:
      skymount db delete home greeting
    """
    from skymount.cli.session import change

    pair = entry.key_pair()
    change(settings, lambda opened: opened.registry.delete(entry.id, pair), entry.id)
    emit({"data_key": entry.data_key, "deleted": True}, as_json, [])
