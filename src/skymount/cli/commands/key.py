"""``skymount key``: the keyring. Secrets are printed only when asked for."""

import os
from typing import TYPE_CHECKING

import click

from skymount.cli import completion
from skymount.cli.key_argument import keyring_with, user_keyring
from skymount.cli.output import emit, json_option, warn
from skymount.cli.standard_streams import SURPLUS, read_secret, refuse_surplus
from skymount.wording import counted

if TYPE_CHECKING:
    from skymount.keyring import StoredKey

_SHORT_SECRET = 16  # characters below which a pass-phrase is warned of: a guess costs nothing

_SHOW_SEED = click.option("--show-seed", is_flag=True, help="Print the seed as well: a secret.")


@click.group()
def key() -> None:
    """Keep the private keys that sign registry entries.

    \b
    Examples:
      skymount key generate home
      skymount key import work
      skymount key list
    """


@key.command()
@click.argument("name")
@_SHOW_SEED
@json_option
def generate(name: str, show_seed: bool, as_json: bool) -> None:
    """Make a new key, store it under NAME, print its public key.

    The seed of the key is not stored: --show-seed prints it, this once. `key show --private` prints
    the key itself, for a copy in a safe place.

    \b
    Example:
      skymount key generate home
    """
    from skymount.keyring import gen_key_pair_and_seed

    pair, seed = gen_key_pair_and_seed()
    _emit_stored(user_keyring().add(name, pair), seed if show_seed else "", as_json)


@key.command(
    "import",
    context_settings=SURPLUS,
    short_help="Store the key of a seed or pass-phrase under NAME.",
)
@click.argument("name")
@click.option("--private-key", is_flag=True, help="Read a private key of 128 hex digits instead.")
@json_option
@click.pass_context
def import_(ctx: click.Context, name: str, private_key: bool, as_json: bool) -> None:
    """Store the key of a seed or pass-phrase under NAME, print its public key.

    The secret is read from standard input or the terminal, exactly as written, except for one line
    feed at its end. A pass-phrase should be long: whoever guesses it has the key, and guessing is
    cheap.

    \b
    Examples:
      skymount key import work
      pass show skymount/work | skymount key import work
      skymount key import --private-key work < private-key.txt
    """
    from skymount.wire.key_pair import SigningKeyPair

    refuse_surplus(ctx, "one name and nothing else")
    keyring = user_keyring()
    keyring.check_free(name)
    if private_key:
        pair = SigningKeyPair.from_private_hex(read_secret("Private key").strip())
    else:
        secret = read_secret("Seed or pass-phrase", confirm=True)
        _warn_of_guessable(secret)
        pair = SigningKeyPair.from_seed(secret)
    _emit_stored(keyring.add(name, pair), "", as_json)


def _warn_of_guessable(secret: str) -> None:
    if len(secret) < _SHORT_SECRET:
        length = counted(len(secret), "character")
        warn(
            f"a pass-phrase of {length} can be guessed, and whoever guesses it has the key; "
            f"use {_SHORT_SECRET} or more, or `skymount key generate`"
        )


@key.command(context_settings=SURPLUS, short_help="Derive a key from a master seed and a text.")
@click.argument("name", required=False)
@click.option("--child", required=True, metavar="TEXT", help="What the key is for; no secret.")
@_SHOW_SEED
@json_option
@click.pass_context
def derive(
    ctx: click.Context, name: str | None, child: str, show_seed: bool, as_json: bool
) -> None:
    """Derive a key from a master seed and the text --child, such as an application's name.

    The master seed is read as by `key import`, and not stored. The key is stored under NAME, and
    its public key printed. Without NAME nothing is stored: --show-seed prints the child's seed.

    \b
    Examples:
      skymount key derive notes --child notes.example
      skymount key derive --child notes.example --show-seed < master-seed
    """
    from skymount.wire.key_pair import SigningKeyPair, derive_child_seed

    refuse_surplus(ctx, "one name and nothing else")
    if name is None and not show_seed:
        raise click.UsageError("name the new key, or add --show-seed", ctx)
    if name is not None:
        user_keyring().check_free(name)
    seed = derive_child_seed(read_secret("Master seed", confirm=True), child)
    if name is None:
        emit({"seed": seed}, as_json, [seed])
        return
    stored = user_keyring().add(name, SigningKeyPair.from_seed(seed))
    _emit_stored(stored, seed if show_seed else "", as_json)


@key.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the keys: their names and public keys.

    A key that cannot be used is named on standard error with the reason. In JSON it has an `error`
    in place of a public key.

    \b
    Example:
      skymount key list
    """
    from skymount.keyring import StoredKey

    found = user_keyring().read_all()
    keys = [each for each in found if isinstance(each, StoredKey)]
    value = [
        _facts(each) if isinstance(each, StoredKey) else {"name": each.name, "error": each.reason}
        for each in found
    ]
    width = max((len(each.name) for each in keys), default=0)
    emit(value, as_json, [f"{each.name:<{width}}  {each.pair.public_hex}" for each in keys])
    for each in found:
        if not isinstance(each, StoredKey) and not as_json:
            warn(each.reason)


@key.command()
@click.argument("name", shell_complete=completion.key_names)
@click.option("--private", is_flag=True, help="Print the private key: a secret.")
@json_option
def show(name: str, private: bool, as_json: bool) -> None:
    """Print the public key of the key NAME.

    \b
    Examples:
      skymount key show home
      skymount key show --private home | gpg -c > home.key.gpg
    """
    stored = keyring_with(name).read(name)
    secret = {"private_key": stored.pair.private_hex} if private else {}
    line = stored.pair.private_hex if private else stored.pair.public_hex
    emit(_facts(stored) | secret, as_json, [line])


@key.command()
@click.argument("name", shell_complete=completion.key_names)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
def remove(name: str, yes: bool, as_json: bool) -> None:
    """Remove the key NAME permanently.

    \b
    Example:
      skymount key remove old
    """
    keyring = keyring_with(name)
    if not yes:
        if not os.isatty(0):
            raise click.UsageError("there is no terminal to ask on: add --yes")
        if not click.confirm(f"Remove the key {name}? This cannot be undone", err=True):
            raise click.ClickException("not removed")
    keyring.remove(name)
    emit({"name": name, "removed": True}, as_json, [])


def _facts(stored: "StoredKey") -> dict[str, str]:
    return {
        "name": stored.name,
        "public_key": stored.pair.public_hex,
        "created": stored.created.isoformat(),
    }


def _emit_stored(stored: "StoredKey", seed: str, as_json: bool) -> None:
    lines, value = [stored.pair.public_hex], _facts(stored)
    if seed:
        lines.append(f"seed: {seed}")
        value["seed"] = seed
    emit(value, as_json, lines)
