"""``skymount config``: writes, checks and shows the configuration."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from skymount.cli.options import config_option, setting_options
from skymount.cli.output import emit, json_option, warn
from skymount.errors import ConfigError
from skymount.settings import OF_ONE_PORTAL, SETTINGS, Config
from skymount.values import portal_identity

_HEAD = """\
# Configuration of skymount. `skymount config show` lists all keys with their values, and
# `skymount config check` reads this file. A key that is not set here has its default.
"""
_TAIL = """
# A portal with settings of its own has a table, in place of its address in the list above:
# [[portals]]
# url = "https://portal.example"
# api_key = "..."
# read_only = true

# skymount mount --name home, or the systemd unit skymount@home
# [mounts.home]
# mountpoint = "~/sky"
"""

_Row = dict[str, object]  # a value, and its origin

_name_option = click.option(
    "--name", metavar="NAME", default="", help="As a mount of the table [mounts.NAME] sees it."
)


@click.group()
def config() -> None:
    """Write, check and show the configuration that all commands use.

    \b
    Examples:
      skymount config init --portal https://portal.example
      skymount config show
      skymount config check
    """


@config.command()
@click.option("--force", is_flag=True, help="Replace the file if there is one.")
@setting_options("portals", "dialect")
def init(
    portals: tuple[str, ...], dialect: str | None, force: bool, config_file: str | None
) -> None:
    """Write a configuration file; print its path.

    All commands then use the portals that it names, in that order. The file is readable only by
    you, and says what else can be set. One that exists is left alone without --force.

    \b
    Examples:
      skymount config init --portal https://portal.example
      skymount config init --portal https://a.example --portal https://b.example
    """
    from skymount import file_permissions
    from skymount.config import default_path, load
    from skymount.storage import atomic_file

    path = default_path()
    if config_file:
        path = Path(os.path.abspath(os.path.expanduser(config_file)))
    given = {"portals": portals or None, "dialect": dialect}
    content = new_file(load(given, environ={}, file=os.devnull)).encode()
    if path.exists() and not path.is_file():
        raise click.ClickException(f"{path}: it is not a regular file, and is not replaced")
    if os.path.lexists(path) and not force:
        raise click.ClickException(
            f"{path}: it exists already; edit it, or replace it with --force"
        )
    path = Path(os.path.realpath(path))  # of a link, the file that it leads to
    file_permissions.make_directory(path.parent)
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    atomic_file.replace(path, content, temporary=aside, force=force)
    click.echo(str(path))


def new_file(chosen: Config) -> str:
    """Return the text of a file that says what can be set, and sets what is chosen."""
    text = _HEAD
    for key, setting in SETTINGS.items():
        value, mark = setting.written(getattr(chosen, key)), ""
        if key not in chosen.places:
            value, mark = setting.example or setting.written(setting.default), "# "
        text += f"\n# {setting.sentence}\n{mark}{key} = {_toml(value)}\n"
    return text + _TAIL


@config.command()
@config_option
@_name_option
@json_option
def show(config_file: str | None, name: str, as_json: bool) -> None:
    """Print each value, and where it was set.

    That is a line of the file, a variable of the environment, or nowhere: then it is the default.
    Keys and headers that are secrets are masked.

    \b
    Examples:
      skymount config show
      skymount config show --name home --json | jq .values.verify
    """
    path, found = _load(config_file, name)
    values = {
        key: _row(setting.written(getattr(found, key)), found.origin(key) or "default")
        for key, setting in SETTINGS.items()
    }
    tables = [*_tables(path, found)]
    result = {
        "path": str(path) if path else None,
        "values": values,
        "portals": tables,
    }
    emit(result, as_json, _lines(values, tables))


@config.command(short_help="Say whether the configuration is right.")
@config_option
@_name_option
def check(config_file: str | None, name: str) -> None:
    """Read the configuration, and say whether every key and value in it is right.

    What is wrong is named by file, line and key, with exit code 2. The environment is checked too.
    No portal is asked.

    \b
    Example:
      skymount config check
    """
    path, found = _load(config_file, name)
    _check_certificates(found)
    if path is None:
        click.echo("no home directory, so no file; all values are defaults")
    elif not path.exists():
        click.echo(f"{path}: there is none, and none is needed; all values are defaults")
    else:
        click.echo(f"{path}: no mistakes")


@config.command(short_help="Print the path of the configuration file.")
def path() -> None:
    """Print the path of the configuration file, whether there is one or not.

    \b
    Example:
      $EDITOR "$(skymount config path)"
    """
    from skymount.config import default_path

    click.echo(str(default_path()))


def _load(file: str | None, name: str) -> tuple[Path | None, Config]:
    """Return the file that was looked for, if there is a home directory, and what it says."""
    from skymount.config import load, path_to_read

    found = load({}, environ=os.environ, file=file or "", name=name, warn=warn)
    return path_to_read(file or ""), found


def _check_certificates(config: Config) -> None:
    """ConfigError when the certificates of a portal cannot be read."""
    given = (options.ca_file for options in config.portal_options.values())
    for path in filter(None, dict.fromkeys(given)):
        from skymount.portal.http.stream import new_tls_context

        try:
            new_tls_context(path)
        except OSError as error:
            raise ConfigError(f"ca_file: {error}; it is to be a file in PEM format") from None


def _row(value: object, origin: str) -> _Row:
    return {"value": value, "origin": origin}


def _tables(path: Path | None, found: Config) -> Iterator[dict[str, _Row]]:
    """Yield the keys of each portal, if one has a table of its own."""
    for url in found.portals if found.portal_tables else ():
        origin, identity = found.origin("portals"), portal_identity(url)
        rows = {"url": _row(url, origin)}
        is_named_elsewhere = not origin.startswith(f"{path}: ")
        for key, value in found.portal_tables.get(identity, {}).items():
            if key != "url" or not is_named_elsewhere:
                place = found.places[identity](key)
                rows[key] = _row(OF_ONE_PORTAL[key].written(value), place)
        yield rows


def _lines(values: Mapping[str, _Row], tables: list[dict[str, _Row]]) -> Iterator[str]:
    """Yield the values in the syntax of the file; tables have to be the last."""
    yield from _rows({k: row for k, row in values.items() if k != "portals" or not tables})
    for table in tables:
        yield from ("", "[[portals]]", *_rows(table))


def _rows(rows: Mapping[str, _Row]) -> Iterator[str]:
    shown = []
    for key, row in rows.items():
        # The file may not have an empty path.
        is_unset = key in SETTINGS and SETTINGS[key].is_path and not row["value"]
        shown.append((f"{'# ' * is_unset}{key} = {_toml(row['value'])}", row["origin"]))
    width = min(max(len(setting) for setting, _ in shown), 40)
    for setting, origin in shown:
        yield f"{setting:<{width}}  # {origin}"


def _toml(value: object) -> str:
    """Return a value in TOML: strings, numbers and lists are written as in JSON."""
    import json

    if isinstance(value, Mapping):
        items = ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items())
        return f"{{ {items} }}" if items else "{}"
    if isinstance(value, tuple):
        value = list(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
