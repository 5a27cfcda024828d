"""``skymount db``: SkyDB, JSON documents behind registry entries."""

import json
import os
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skymount.cli.options import (
    PortalFlags,
    hashed_option,
    portal_options,
    reading_options,
    wait_option,
)
from skymount.cli.output import emit, json_option

if TYPE_CHECKING:
    from skymount.cli.session import Reading, Writing
    from skymount.config import Config
    from skymount.portal.client.client import PortalClient
    from skymount.portal.client.skydb import JSONResult
    from skymount.portal.registry.revision_marks import EntryId
    from skymount.wire.key_pair import KeyPair

_READ_SIZE = 1 << 20  # bytes of a document that are read at once

_OWNER = click.argument("owner", metavar="KEY")
_DATA_KEY = click.argument("data_key", metavar="DATAKEY")


class _DocumentFile(click.Path):
    """A file that is there, or - for standard input."""

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
    """Read, write and delete JSON documents of any size.

    KEY is the name of a key in the keyring (see `skymount key`), or a public key of 64 hex digits,
    which suffices for reading. DATAKEY is any text. A document lives in the registry entry of the
    same DATAKEY, and replaces what is there.

    \b
    Examples:
      echo '{"hello": "world"}' | skymount db set home greeting
      skymount db get home greeting
    """


@db.command()
@_OWNER
@_DATA_KEY
@hashed_option
@click.option("--pretty", is_flag=True, help="Print over several lines.")
@wait_option
@reading_options
@json_option
def get(
    owner: str,
    data_key: str,
    hashed: bool,
    pretty: bool,
    wait: float,
    flags: PortalFlags,
    as_json: bool,
) -> None:
    """Print a document; with --json an object of it, its revision, its link, and whether it is
    verified.

    Its entry is held to what was seen before, as of `skymount registry get`, and the document is
    checked as content of a mount is; if it cannot be, a warning says so. Exit code 3
    when there is none, or it was deleted.

    \b
    Example:
      skymount db get home greeting | jq .
    """
    from skymount.cli.key_argument import public_key
    from skymount.cli.link_target import warn_of_doubt
    from skymount.cli.session import run_with_reader
    from skymount.portal.client import arguments
    from skymount.portal.registry.revision_marks import EntryId

    settings = flags.load()
    key = bytes.fromhex(public_key(owner))
    ref = EntryId(key, arguments.tweak(data_key, hashed), None if hashed else data_key)
    found = run_with_reader(settings, lambda reading: _read(reading, ref, data_key), wait)
    warn_of_doubt(found["data_link"], found["verified"], settings.verify)
    text = json.dumps(found["data"], ensure_ascii=False, indent=2 if pretty else None)
    emit(found, as_json, text.split("\n"))


async def _read(reading: "Reading", ref: "EntryId", data_key: str) -> dict[str, Any]:
    """Read a document, and what --json has of it."""
    from skymount.errors import BadContentError, MalformedError, NotFoundError
    from skymount.wire.registry_entry import linked_skylink
    from skymount.wire.skydb_document import DOCUMENT_LIMIT, decode_document

    entry = (await (await reading.known.entries()).read(ref)).signed
    if entry is None:
        raise NotFoundError(f"{data_key!r}: there is no such document", status=404)
    if entry.entry.is_deleted:
        raise NotFoundError(f"{data_key!r}: it was deleted", status=404)
    skylink = linked_skylink(entry.entry.data)
    if skylink is None or skylink.version != 1:
        raise _no_document(data_key)
    skyfile = await reading.reader.load(skylink)
    if skyfile.size > DOCUMENT_LIMIT:
        raise BadContentError(f"{data_key!r}: longer than {DOCUMENT_LIMIT} bytes")
    body = bytearray()
    while len(body) < skyfile.size:
        size = min(_READ_SIZE, skyfile.size - len(body))
        body += await reading.reader.read(skyfile, len(body), size)
    try:
        document = decode_document(bytes(body))
    except MalformedError:
        raise _no_document(data_key) from None
    link = reading.portals.clients[0].dialect.link(skylink)
    return {
        "data": document,
        "revision": entry.entry.revision,
        "data_link": link,
        "verified": skyfile.verified,
    }


def _no_document(data_key: str) -> click.ClickException:
    return click.ClickException(
        f"{data_key!r}: this registry entry is not a JSON document; see it with "
        "`skymount registry get`"
    )


@db.command("set")
@_OWNER
@_DATA_KEY
@click.argument("file", type=_DocumentFile(), default="-")
@hashed_option
@click.option("--revision", type=int, help="The entry's revision; default: the next one.")
@portal_options
@json_option
def set_(
    owner: str,
    data_key: str,
    file: Path,
    hashed: bool,
    revision: int | None,
    flags: PortalFlags,
    as_json: bool,
) -> None:
    """Store the JSON document in FILE, or on standard input; print its link.

    The document is an object or an array. If it is uploaded and its entry cannot be posted, the
    entry is kept, see `skymount registry pending`; with --revision it is not.

    \b
    Examples:
      skymount db set home profile profile.json
      echo '{"hello": "world"}' | skymount db set home greeting
    """
    from skymount.cli.key_argument import key_pair

    settings = flags.load()
    pair = key_pair(owner)
    document = _document(file)
    if revision is None:
        number, link = _set_next(settings, pair, data_key, document, hashed=hashed)
    else:
        number = revision
        link = _set_revision(settings, pair, data_key, document, revision, hashed=hashed)
    emit({"revision": number, "data_link": link}, as_json, [link])


def _set_next(
    settings: "Config", pair: "KeyPair", data_key: str, document: Any, *, hashed: bool
) -> tuple[int, str]:
    """Store a document, whatever is there; return the entry's revision and the document's link."""
    from skymount.cli.key_argument import entry_of
    from skymount.cli.session import run_with_entries
    from skymount.portal.client.upload import FILE_FIELD, UploadBody
    from skymount.portal.client.upload_source import Source
    from skymount.wire.skydb_document import document_name, encode_document

    ref = entry_of(pair, data_key, hashed=hashed)
    name = document_name(data_key, hashed)
    source = Source.of_bytes(encode_document(document), name, contenttype="application/json")

    async def store(writing: "Writing") -> tuple[int, str]:
        skylink = await writing.upload(UploadBody([source], field=FILE_FIELD))
        state = await writing.set(ref, pair, bytes(skylink))
        return state.revision, writing.dialect.link(skylink)

    return run_with_entries(settings, store)


def _set_revision(
    settings: "Config", pair: "KeyPair", data_key: str, document: Any, number: int, *, hashed: bool
) -> str:
    """Store a document under just that revision, at the first portal; return its link."""
    from skymount.cli.key_argument import explaining_conflicts
    from skymount.cli.session import run_with_client
    from skymount.portal.registry.ledger import Ledger

    async def store(client: "PortalClient") -> "JSONResult":
        async with explaining_conflicts(
            client, pair.public_hex, data_key, hashed=hashed, revision=number
        ):
            return await client.db.set_json(
                pair.private_hex, data_key, document, revision=number, hashed_data_key_hex=hashed
            )

    with closing(Ledger.of_user()) as ledger:
        ledger.prepare()
        return str(run_with_client(settings, store, ledger).data_link)


def _document(file: Path) -> Any:
    from skymount.errors import MalformedError
    from skymount.wire.skydb_document import DOCUMENT_LIMIT

    name = str(file)
    if name == "-":
        name = "standard input"
        raw = sys.stdin.buffer.read(DOCUMENT_LIMIT + 1)
    else:
        with file.open("rb") as source:
            raw = source.read(DOCUMENT_LIMIT + 1)
    if len(raw) > DOCUMENT_LIMIT:
        raise MalformedError(f"{name}: longer than {DOCUMENT_LIMIT} bytes")
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"{name}: not JSON: {error}") from None
    if not isinstance(found, dict | list):
        raise MalformedError(f"{name}: a document is an object or an array")
    return found


@db.command()
@_OWNER
@_DATA_KEY
@hashed_option
@portal_options
@json_option
def delete(
    owner: str,
    data_key: str,
    hashed: bool,
    flags: PortalFlags,
    as_json: bool,
) -> None:
    """Delete a document: its entry says from then on that there is none.

    \b
    Example:
      skymount db delete home greeting
    """
    from skymount.cli.key_argument import entry_of, key_pair
    from skymount.cli.session import run_with_entries

    settings = flags.load()
    pair = key_pair(owner)
    ref = entry_of(pair, data_key, hashed=hashed)

    async def remove(writing: "Writing") -> None:
        await writing.delete(ref, pair)

    run_with_entries(settings, remove)
    emit({"data_key": data_key, "deleted": True}, as_json, [])
