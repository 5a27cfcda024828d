"""``skymount skykey``: the named keys with which a node encrypts content."""

from typing import TYPE_CHECKING

import click

from skymount.cli.options import portal_options
from skymount.cli.output import emit, interruption, json_option
from skymount.cli.standard_streams import SURPLUS, read_secret, refuse_surplus

if TYPE_CHECKING:
    from skymount.settings import Config
    from skymount.wire.skykey import Skykey

_SHOW = click.option("--show-key", is_flag=True, help="Print the key itself: a secret.")

_UNSURE = "the portal may have done it, see `skymount skykey list`"
"""What became of a change that was interrupted."""


@click.group()
def skykey() -> None:
    """Manage the named keys with which a node encrypts content.

    \b
    Examples:
      skymount skykey create holidays
      skymount upload --skykey-name holidays photos/
      skymount skykey get --show-key holidays
    """


def _facts(key: "Skykey", show: bool) -> dict[str, str]:
    secret = {"skykey": key.text} if show else {}
    return secret | {"name": key.name, "id": key.id, "type": key.kind.value}


def _line(key: "Skykey", show: bool) -> str:
    return "  ".join([key.id, key.kind.value, key.name, *([key.text] if show else [])])


@skykey.command()
@click.argument("name")
@click.option(
    "--type",
    "kind",
    type=click.Choice(["private-id", "public-id"]),
    default="private-id",
    show_default=True,
    help="With public-id everybody can see which content has the same key.",
)
@_SHOW
@portal_options
@json_option
def create(name: str, kind: str, show_key: bool, settings: "Config", as_json: bool) -> None:
    """Make a new key called NAME; print its id.

    \b
    Example:
      skymount skykey create holidays
    """
    from skymount.cli.session import client, run

    with interruption(_UNSURE):
        key = run(client(settings, writes=True), lambda opened: opened.create_skykey(name, kind))
    emit(_facts(key, show_key), as_json, [key.text if show_key else key.id])


@skykey.command(context_settings=SURPLUS)
@portal_options
@json_option
@click.pass_context
def add(ctx: click.Context, settings: "Config", as_json: bool) -> None:
    """Add a key that somebody gave you; print its id.

    The key is read from standard input or the terminal: skykey:...?name=...

    \b
    Example:
      skymount skykey add < holidays.skykey
    """
    from skymount.cli.session import client, run
    from skymount.wire.skykey import Skykey

    refuse_surplus(ctx, "no arguments")
    key = Skykey.parse(read_secret("Skykey").strip())
    with interruption(_UNSURE):
        run(client(settings, writes=True), lambda opened: opened.add_skykey(key.text))
    emit(_facts(key, False), as_json, [key.id])


@skykey.command(short_help="Print the id, type and name of a key.")
@click.argument("name", required=False)
@click.option("--id", "key_id", metavar="ID", help="Look for this id instead of a name.")
@_SHOW
@portal_options
@json_option
def get(
    name: str | None, key_id: str | None, show_key: bool, settings: "Config", as_json: bool
) -> None:
    """Print the id, type and name of a key; with --show-key the key itself, to give to somebody.

    \b
    Examples:
      skymount skykey get holidays
      skymount skykey get --show-key holidays > holidays.skykey
    """
    from skymount.cli.session import client, run

    _check_one(name, key_id)
    key = run(
        client(settings, writes=True),  # where `add` and `upload` go
        lambda opened: (
            opened.get_skykey_by_name(name) if name else opened.get_skykey_by_id(key_id or "")
        ),
    )
    emit(_facts(key, show_key), as_json, [key.text if show_key else _line(key, False)])


@skykey.command("list")
@_SHOW
@portal_options
@json_option
def list_(show_key: bool, settings: "Config", as_json: bool) -> None:
    """List the keys: id, type and name of each.

    \b
    Example:
      skymount skykey list
    """
    from skymount.cli.session import client, run

    keys = run(client(settings, writes=True), lambda opened: opened.get_skykeys())
    emit([_facts(key, show_key) for key in keys], as_json, [_line(key, show_key) for key in keys])


@skykey.command(short_help="Delete a key, and with it what it encrypts.")
@click.argument("name", required=False)
@click.option("--id", "key_id", metavar="ID", help="Delete the key of this id.")
@portal_options
@json_option
def delete(name: str | None, key_id: str | None, settings: "Config", as_json: bool) -> None:
    """Delete a key: content encrypted with it can no longer be read at that node.

    \b
    Example:
      skymount skykey delete holidays
    """
    from skymount.cli.session import client, run

    _check_one(name, key_id)
    with interruption(_UNSURE):
        run(
            client(settings, writes=True),
            lambda opened: opened.delete_skykey(name=name or "", id=key_id or ""),
        )
    emit({"name": name, "id": key_id, "deleted": True}, as_json, [])


def _check_one(name: str | None, key_id: str | None) -> None:
    if bool(name) == bool(key_id):
        raise click.UsageError("give either NAME or --id ID")
