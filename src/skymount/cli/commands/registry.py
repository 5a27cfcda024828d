"""``skymount registry``: entries of the registry, signed and verified on this machine."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from skymount.cli.commands.registry_outbox import drop, forget, pending, retry
from skymount.cli.key_argument import EntryArgument, entry_arguments
from skymount.cli.options import portal_options, reading_options, removed_option, wait_option
from skymount.cli.output import emit, json_option
from skymount.cli.standard_streams import standard_input, standard_output
from skymount.errors import MalformedError, NotFoundError
from skymount.wire.dialect import Dialect
from skymount.wire.http import requests
from skymount.wire.skylink import split_link

if TYPE_CHECKING:
    from skymount.content.opening import Content
    from skymount.portal.registry.entry_reader import EntryState
    from skymount.settings import Config

_INPUT_LIMIT = 1 << 10  # bytes read from standard input; an entry holds 113


@click.group()
def registry() -> None:
    """Read and write registry entries, each of up to 113 bytes.

    KEY is the name of a key in the keyring (see `skymount key`), or a public key of 64 hex digits,
    which is enough for reading. DATAKEY is any text.

    \b
    Examples:
      skymount registry set home greeting "hello, world"
      skymount registry get home greeting
      skymount registry link home greeting
    """


@registry.command()
@entry_arguments
@click.option("--raw", is_flag=True, help="Write the bytes of the data as they are.")
@wait_option
@reading_options
@json_option
def get(entry: EntryArgument, raw: bool, wait: float, settings: "Config", as_json: bool) -> None:
    """Print the data of an entry. Its signature is verified.

    A portal may show an old state, by mistake or on purpose. An entry older than one that this
    machine has seen is therefore refused, and the next portal is asked. What was seen is kept in
    the ledger, which mounts and commands share. If the ledger cannot be used there is a warning,
    and with --verify require nothing is printed.

    Text is printed as it is, a skylink of 34 bytes as a link, anything else in hex digits. --json
    prints all forms, the revision and the signature. Exit code 3 if there is no such entry.

    \b
    Examples:
      skymount registry get home greeting
      skymount registry get --json home greeting | jq .revision
    """
    from skymount.cli.session import content, run

    if raw and as_json:
        raise click.UsageError("--raw and --json exclude each other")

    async def read(opened: "Content") -> "EntryState":
        return await (await opened.entries()).read(entry.id)

    signed = run(content(settings, wait=wait, cached=False), read).signed
    if signed is None:
        raise NotFoundError(f"{entry.data_key!r}: there is no such registry entry", status=404)
    if signed.entry.is_deleted:
        raise NotFoundError(f"{entry.data_key!r}: this registry entry was deleted", status=404)
    data = signed.entry.data
    if raw:
        stdout = standard_output()
        stdout.write(data)
        stdout.flush()
        return
    dialect = settings.first_dialect
    facts = _facts(dialect, entry.data_key, data, signed.entry.revision)
    facts |= {"public_key": entry.public_key.hex(), "link": dialect.link(signed.link)}
    emit(facts | {"signature": signed.signature.hex()}, as_json, _lines(facts))


def _lines(facts: Mapping[str, Any]) -> list[str]:
    lines = (facts["text"] or "").removesuffix("\n").split("\n")
    if facts["text"] and all(line.replace("\t", "").isprintable() for line in lines):
        return lines
    return [facts["skylink"] or facts["hex"]]


def _facts(dialect: "Dialect", data_key: str, data: bytes, revision: int) -> dict[str, Any]:
    from skymount.wire.registry_entry import linked_skylink

    skylink = linked_skylink(data)
    try:
        text: str | None = data.decode()
    except UnicodeDecodeError:
        text = None
    return {
        "data_key": data_key,
        "revision": revision,
        "hex": data.hex(),
        "text": text,
        "skylink": dialect.link(skylink) if skylink else None,
    }


@registry.command("set")
@entry_arguments
@click.argument("data", required=False)
@click.option("--hex", "is_hex", is_flag=True, help="The data is given in hex digits.")
@click.option("--skylink", "is_skylink", is_flag=True, help="Store a skylink's 34 bytes.")
@removed_option("--revision", "an entry gets the next revision")
@portal_options
@json_option
def set_(
    entry: EntryArgument,
    data: str | None,
    is_hex: bool,
    is_skylink: bool,
    settings: "Config",
    as_json: bool,
) -> None:
    """Sign DATA with the key KEY of the keyring, and set the entry.

    DATA is the data itself, up to 113 bytes, not a file as in `skymount db set`. Without DATA, or
    with -, it is read from standard input as it is, including a line feed at its end. Prints the
    entry's revision. A change that cannot be posted is kept, see `skymount registry pending`.

    \b
    Examples:
      skymount registry set home greeting "hello, world"
      skymount registry set --skylink home site "$(skymount upload site/)"
      printf '\\0\\1' | skymount registry set home bytes
    """
    from skymount.cli.session import change
    from skymount.wire.registry_entry import entry_link

    pair = entry.key_pair()
    content = _content(data, is_hex=is_hex, is_skylink=is_skylink)
    written = change(
        settings, lambda opened: opened.registry.write(entry.id, pair, content, None), entry.id
    )
    dialect = settings.first_dialect
    link = dialect.link(entry_link(pair.public_key, entry.tweak))
    facts = _facts(dialect, entry.data_key, content, written.revision)
    facts |= {"public_key": pair.public_hex, "link": link}
    emit(facts, as_json, [f"revision {written.revision}"])


def _content(data: str | None, *, is_hex: bool, is_skylink: bool) -> bytes:
    if is_hex and is_skylink:
        raise click.UsageError("--hex and --skylink exclude each other")
    if data is None or data == "-":
        raw = standard_input().read(_INPUT_LIMIT + 1)
        if not is_hex and not is_skylink:
            return raw
        data = raw.decode("ascii", "replace").strip()
    if is_skylink:
        skylink, path = split_link(data)
        if path:
            raise click.UsageError(
                f"a registry entry holds a skylink without a path: leave out {path!r}"
            )
        return bytes(skylink)
    if not is_hex:
        return os.fsencode(data)
    try:
        return bytes.fromhex(data)
    except ValueError:
        raise MalformedError("the data is not in hex digits") from None


@registry.command()
@entry_arguments
@portal_options
@json_option
def url(entry: EntryArgument, settings: "Config", as_json: bool) -> None:
    """Print the URL that answers with an entry. No network traffic.

    \b
    Example:
      skymount registry url home greeting
    """
    request = requests.registry_get(settings.first_dialect, entry.public_key, entry.tweak)
    found = settings.portal_urls[0] + request.target
    emit({"url": found}, as_json, [found])


@registry.command()
@entry_arguments
@portal_options
@json_option
def link(entry: EntryArgument, settings: "Config", as_json: bool) -> None:
    """Print the v2 skylink that leads to whatever an entry points to. No network traffic.

    \b
    Example:
      skymount registry link home site
    """
    from skymount.wire.registry_entry import entry_link

    dialect = settings.first_dialect
    found = dialect.link(entry_link(entry.public_key, entry.tweak))
    emit({"link": found}, as_json, [found])


for _command in (pending, retry, drop, forget):
    registry.add_command(_command)
