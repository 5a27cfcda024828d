"""``skymount registry``: entries of the registry, signed and verified on this machine."""

import os
import sys
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from skymount.cli.commands.registry_spool import drop, forget, pending, retry
from skymount.cli.options import (
    PortalFlags,
    hashed_option,
    portal_options,
    reading_options,
    wait_option,
)
from skymount.cli.output import emit, json_option

if TYPE_CHECKING:
    from skymount.cli.session import Writing
    from skymount.config import Config
    from skymount.portal.client.client import PortalClient
    from skymount.wire.dialect import Dialect
    from skymount.wire.key_pair import KeyPair

_OWNER = click.argument("owner", metavar="KEY")
_DATA_KEY = click.argument("data_key", metavar="DATAKEY")
_INPUT_LIMIT = 1 << 10  # bytes read from standard input; an entry holds 113


@click.group()
def registry() -> None:
    """Read and write registry entries, each of up to 113 bytes.

    KEY is the name of a key in the keyring (see `skymount key`), or a public key of 64 hex digits,
    which suffices for reading. DATAKEY is any text.

    \b
    Examples:
      skymount registry set home greeting "hello, world"
      skymount registry get home greeting
      skymount registry link home greeting
    """


@registry.command()
@_OWNER
@_DATA_KEY
@hashed_option
@click.option("--raw", is_flag=True, help="Write the bytes of the data as they are.")
@wait_option
@reading_options
@json_option
def get(
    owner: str,
    data_key: str,
    hashed: bool,
    raw: bool,
    wait: float,
    flags: PortalFlags,
    as_json: bool,
) -> None:
    """Print the data of an entry, whose signature is verified.

    An entry older than one that was seen before on this machine is refused, and the next portal is
    asked: a portal may show an old state, by mistake or on purpose. What was seen is kept in the
    ledger, which mounts and commands share; where it cannot be used, a warning says so, and with
    --verify require nothing is printed.

    Text is printed as it is, a skylink of 34 bytes as a link, anything else in hex digits; --json
    has every form, the revision and the signature. Exit code 3 when there is no such entry.

    \b
    Examples:
      skymount registry get home greeting
      skymount registry get --json home greeting | jq .revision
    """
    from skymount.cli.key_argument import public_key
    from skymount.cli.session import run_with_known
    from skymount.errors import NotFoundError
    from skymount.portal.client import arguments
    from skymount.portal.registry.revision_marks import EntryId
    from skymount.wire.dialect import dialect_named

    if raw and as_json:
        raise click.UsageError("--raw and --json exclude each other")
    settings = flags.load()
    key = public_key(owner)
    ref = EntryId(
        bytes.fromhex(key), arguments.tweak(data_key, hashed), None if hashed else data_key
    )
    state = run_with_known(settings, lambda entries: entries.read(ref), wait)
    signed = state.signed
    if signed is None:
        raise NotFoundError(f"{data_key!r}: there is no such registry entry", status=404)
    if signed.entry.is_deleted:
        raise NotFoundError(f"{data_key!r}: this registry entry was deleted", status=404)
    data = signed.entry.data
    if raw:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    dialect = dialect_named(settings.dialect)
    facts = _facts(dialect, data_key, data, signed.entry.revision)
    facts |= {"public_key": key, "link": dialect.link(signed.link)}
    emit(facts | {"signature": signed.signature.hex()}, as_json, _lines(facts))


def _lines(facts: Mapping[str, Any]) -> list[str]:
    """Return what people are shown: the data as text, as a link, or else in hex digits."""
    lines = (facts["text"] or "").removesuffix("\n").split("\n")
    if facts["text"] and all(line.replace("\t", "").isprintable() for line in lines):
        return lines
    return [facts["skylink"] or facts["hex"]]


def _facts(dialect: "Dialect", data_key: str, data: bytes, revision: int) -> dict[str, Any]:
    from skymount.wire.registry_entry import linked_skylink

    skylink = linked_skylink(data)
    text: str | None
    try:
        text = data.decode()
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
@_OWNER
@_DATA_KEY
@click.argument("data", required=False)
@hashed_option
@click.option("--hex", "is_hex", is_flag=True, help="The data is given in hex digits.")
@click.option("--skylink", "is_skylink", is_flag=True, help="Store a skylink's 34 bytes.")
@click.option("--revision", type=int, help="The entry's revision; default: the next one.")
@portal_options
@json_option
def set_(
    owner: str,
    data_key: str,
    data: str | None,
    hashed: bool,
    is_hex: bool,
    is_skylink: bool,
    revision: int | None,
    flags: PortalFlags,
    as_json: bool,
) -> None:
    """Sign DATA with the key of that name in the keyring, and set the entry.

    Without DATA, or with -, it is read from standard input as it is, line feed included. Prints
    the entry's revision. What cannot be posted is kept, see `skymount registry pending`; with
    --revision it is not, and one that is not above the registry's is refused.

    \b
    Examples:
      skymount registry set home greeting "hello, world"
      skymount registry set --skylink home site "$(skymount upload site/)"
      printf '\\0\\1' | skymount registry set home bytes
    """
    from skymount.cli.key_argument import entry_of, key_pair
    from skymount.cli.session import run_with_entries
    from skymount.wire.dialect import dialect_named
    from skymount.wire.registry_entry import entry_link

    settings = flags.load()
    pair = key_pair(owner)
    ref = entry_of(pair, data_key, hashed=hashed)
    content = _content(data, is_hex=is_hex, is_skylink=is_skylink)
    if revision is None:

        async def store(writing: "Writing") -> int:
            return (await writing.set(ref, pair, content)).revision

        number = run_with_entries(settings, store)
    else:
        number = revision
        _set_revision(settings, pair, data_key, content, revision, hashed=hashed)
    dialect = dialect_named(settings.dialect)
    link = dialect.link(entry_link(pair.public_key, ref.tweak))
    facts = _facts(dialect, data_key, content, number)
    facts |= {"public_key": pair.public_hex, "link": link}
    emit(facts, as_json, [f"revision {number}"])


def _set_revision(
    settings: "Config", pair: "KeyPair", data_key: str, content: bytes, number: int, *, hashed: bool
) -> None:
    """Set an entry of just that revision, at the first portal."""
    from skymount.cli.key_argument import explaining_conflicts
    from skymount.cli.session import run_with_client
    from skymount.portal.client.registry import RegistryEntry
    from skymount.portal.registry.ledger import Ledger

    entry = RegistryEntry(data_key, content, number)

    async def store(client: "PortalClient") -> None:
        async with explaining_conflicts(
            client, pair.public_hex, data_key, hashed=hashed, revision=number
        ):
            await client.registry.set_entry(pair.private_hex, entry, hashed_data_key_hex=hashed)

    with closing(Ledger.of_user()) as ledger:
        ledger.prepare()
        run_with_client(settings, store, ledger)


def _content(data: str | None, *, is_hex: bool, is_skylink: bool) -> bytes:
    from skymount.errors import MalformedError
    from skymount.wire.skylink import split_link

    if is_hex and is_skylink:
        raise click.UsageError("--hex and --skylink exclude each other")
    if data is None or data == "-":
        raw = sys.stdin.buffer.read(_INPUT_LIMIT + 1)
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
@_OWNER
@_DATA_KEY
@hashed_option
@portal_options
@json_option
def url(
    owner: str,
    data_key: str,
    hashed: bool,
    flags: PortalFlags,
    as_json: bool,
) -> None:
    """Print the URL that answers with an entry. No network traffic.

    \b
    Example:
      skymount registry url home greeting
    """
    from skymount.cli.key_argument import public_key
    from skymount.wire import requests
    from skymount.wire.dialect import dialect_named

    settings = flags.load()
    key, tweak = bytes.fromhex(public_key(owner)), _tweak(data_key, hashed=hashed)
    request = requests.registry_get(dialect_named(settings.dialect), key, tweak)
    found = settings.portal_urls[0] + request.target
    emit({"url": found}, as_json, [found])


@registry.command()
@_OWNER
@_DATA_KEY
@hashed_option
@portal_options
@json_option
def link(
    owner: str,
    data_key: str,
    hashed: bool,
    flags: PortalFlags,
    as_json: bool,
) -> None:
    """Print the v2 skylink that leads to whatever an entry points to. No network traffic.

    \b
    Example:
      skymount registry link home site
    """
    from skymount.cli.key_argument import public_key
    from skymount.wire.dialect import dialect_named
    from skymount.wire.registry_entry import entry_link

    dialect = dialect_named(flags.load().dialect)
    key = bytes.fromhex(public_key(owner))
    found = dialect.link(entry_link(key, _tweak(data_key, hashed=hashed)))
    emit({"link": found}, as_json, [found])


def _tweak(data_key: str, *, hashed: bool) -> bytes:
    from skymount.wire.registry_entry import hash_data_key, parse_tweak

    return parse_tweak(data_key) if hashed else hash_data_key(data_key)


for _command in (pending, retry, drop, forget):
    registry.add_command(_command)
