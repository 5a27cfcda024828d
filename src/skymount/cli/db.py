"""``skymount db``: SkyDB, JSON documents behind registry entries."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skymount.cli.options import hashed_option, portal_options
from skymount.cli.output import emit, json_option

if TYPE_CHECKING:
    from skymount.portal.client import PortalClient
    from skymount.portal.skydb import JSONResult

_OWNER = click.argument("owner", metavar="KEY")
_DATA_KEY = click.argument("data_key", metavar="DATAKEY")


@click.group()
def db() -> None:
    """Read, write and delete JSON documents of any size.

    KEY is the name of a key in the keyring (see `skymount key`), or a public key of 64 hex digits,
    which suffices for reading. DATAKEY is any text.

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
@click.option("--timeout", type=float, default=5, show_default=True, help="Seconds, at most 300.")
@portal_options
@json_option
def get(
    owner: str,
    data_key: str,
    hashed: bool,
    pretty: bool,
    timeout: float,
    portals: tuple[str, ...],
    dialect: str | None,
    config_file: str | None,
    as_json: bool,
) -> None:
    """Print a document; with --json an object of it, its revision and its link.

    Exit code 3 when there is none, or it was deleted.

    \b
    Example:
      skymount db get home greeting | jq .
    """
    from skymount.cli.owner import public_key
    from skymount.cli.session import load, run_with_client
    from skymount.errors import NotFoundError

    settings = load(portals=portals, dialect=dialect, config_file=config_file)
    key = public_key(owner)

    async def ask(client: "PortalClient") -> "JSONResult":
        return await client.db.get_json(key, data_key, timeout=timeout, hashed_data_key_hex=hashed)

    found = run_with_client(settings, ask)
    if found.data_link is None:
        raise NotFoundError("there is no such document", status=404)
    text = json.dumps(found.data, ensure_ascii=False, indent=2 if pretty else None)
    emit(
        {"data": found.data, "revision": found.revision, "data_link": found.data_link},
        as_json,
        text.split("\n"),
    )


@db.command("set")
@_OWNER
@_DATA_KEY
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True), default="-")
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
    portals: tuple[str, ...],
    dialect: str | None,
    config_file: str | None,
    as_json: bool,
) -> None:
    """Store the JSON document in FILE, or on standard input; print its link.

    \b
    Examples:
      skymount db set home profile profile.json
      echo '{"hello": "world"}' | skymount db set home greeting
    """
    from skymount.cli.owner import key_pair
    from skymount.cli.session import load, run_with_client

    settings = load(portals=portals, dialect=dialect, config_file=config_file)
    pair = key_pair(owner)
    document = _document(file)

    async def store(client: "PortalClient") -> "JSONResult":
        return await client.db.set_json(
            pair.private_hex, data_key, document, revision=revision, hashed_data_key_hex=hashed
        )

    found = run_with_client(settings, store)
    emit(
        {"revision": found.revision, "data_link": found.data_link}, as_json, [str(found.data_link)]
    )


def _document(file: Path) -> Any:
    from skymount.errors import MalformedError
    from skymount.portal.skydb import DOCUMENT_LIMIT

    if str(file) == "-":
        raw = sys.stdin.buffer.read(DOCUMENT_LIMIT + 1)
    else:
        with file.open("rb") as source:
            raw = source.read(DOCUMENT_LIMIT + 1)
    if len(raw) > DOCUMENT_LIMIT:
        raise MalformedError(f"{file}: longer than {DOCUMENT_LIMIT} bytes")
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"{file}: not JSON: {error}") from None


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
    portals: tuple[str, ...],
    dialect: str | None,
    config_file: str | None,
    as_json: bool,
) -> None:
    """Delete a document: its entry says from then on that there is none.

    \b
    Example:
      skymount db delete home greeting
    """
    from skymount.cli.owner import key_pair
    from skymount.cli.session import load, run_with_client

    settings = load(portals=portals, dialect=dialect, config_file=config_file)
    pair = key_pair(owner)

    async def remove(client: "PortalClient") -> None:
        await client.db.delete_json(pair.private_hex, data_key, hashed_data_key_hex=hashed)

    run_with_client(settings, remove)
    emit({"data_key": data_key, "deleted": True}, as_json, [])
