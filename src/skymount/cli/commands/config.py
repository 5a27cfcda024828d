"""``skymount config``: writes, checks and shows the configuration."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skymount.cli.options import PathType
from skymount.cli.output import emit, json_option, warn
from skymount.errors import ConfigError

if TYPE_CHECKING:
    from skymount.config import Config, LoadedConfig

_MASK = "********"

_TEMPLATE = """\
# Configuration of skymount. `skymount config show` lists all keys with their values,
# `skymount config check` reads this file. A key that is not set here has its default.

# Addresses in the order of preference.
{portals}
{dialect}
# api_key = "..."          # the portal's, if it asks for one; this file is yours alone
# verify = "require"       # refuse what cannot be checked against its skylink
# disk_cache = "{disk_cache}"     # disk space for content, or "off"
# memory_cache = "{memory_cache}"

# skymount mount --name home
# [mounts.home]
# mountpoint = "~/sky"
"""

_config_option = click.option(
    "--config", "file", type=PathType(), metavar="FILE", help="Configuration file."
)
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
@click.option(
    "--portal",
    "portals",
    multiple=True,
    metavar="URL",
    help="Portal address; repeat it to name further ones to fall back on.",
)
@click.option("--dialect", metavar="NAME", help="Names it uses: svc or skynet.")
@click.option("--force", is_flag=True, help="Replace the file if there is one.")
@_config_option
def init(portals: tuple[str, ...], dialect: str | None, force: bool, file: str | None) -> None:
    """Write a configuration file; print its path.

    All commands then use the portals that it names, in that order. The file is readable only by
    you, and says what else can be set. One that exists is left alone without --force.

    \b
    Examples:
      skymount config init --portal https://portal.example
      skymount config init --portal https://a.example --portal https://b.example
    """
    from skymount import file_permissions
    from skymount.config_file import default_path
    from skymount.storage import atomic_file

    path = Path(os.path.abspath(os.path.expanduser(file))) if file else default_path()
    content = _new_file(portals, dialect).encode()
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


def _new_file(portals: tuple[str, ...], dialect: str | None) -> str:
    """Return the text of a new file; ConfigError for what it may not hold."""
    from skymount.config import Config, load
    from skymount.config_values import format_size

    given = {"portals": portals or None, "dialect": dialect}
    checked, usual = load(given, environ={}, file=os.devnull), Config()
    named = checked.portals or ("https://portal.example",)
    return _TEMPLATE.format(
        portals=("" if checked.portals else "# ") + f"portals = {_toml(named)}",
        dialect=("" if dialect else "# ") + f"dialect = {_toml(checked.dialect)}",
        disk_cache=format_size(usual.disk_cache),
        memory_cache=format_size(usual.memory_cache),
    )


@config.command()
@_config_option
@_name_option
@json_option
def show(file: str | None, name: str, as_json: bool) -> None:
    """Print each value, and where it was set.

    That is a line of the file, a variable of the environment, or nowhere: then it is the default.
    Keys and headers that are secrets are masked.

    \b
    Examples:
      skymount config show
      skymount config show --name home --json | jq .values.verify
    """
    found = _load(file, name)
    values = {key: (value, _origin(found, key)) for key, value in _values(found).items()}
    tables = [*_tables(found)]
    result = {
        "path": str(found.path) if found.path else None,
        "values": {key: {"value": v, "origin": origin} for key, (v, origin) in values.items()},
        "portals": [
            {key: {"value": v, "origin": origin} for key, (v, origin) in table.items()}
            for table in tables
        ],
    }
    emit(result, as_json, _lines(values, tables))


@config.command(short_help="Say whether the configuration is right.")
@_config_option
@_name_option
def check(file: str | None, name: str) -> None:
    """Read the configuration, and say whether every key and value in it is right.

    What is wrong is named by file, line and key, with exit code 2. The environment is checked too.
    No portal is asked.

    \b
    Example:
      skymount config check
    """
    found = _load(file, name)
    _check_certificates(found.config)
    if found.path is None:
        click.echo("no home directory, so no file; all values are defaults")
    elif not found.path.exists():
        click.echo(f"{found.path}: there is none, and none is needed; all values are defaults")
    else:
        click.echo(f"{found.path}: no mistakes")


@config.command(short_help="Print the path of the configuration file.")
def path() -> None:
    """Print the path of the configuration file, whether there is one or not.

    \b
    Example:
      $EDITOR "$(skymount config path)"
    """
    from skymount.config_file import default_path

    click.echo(str(default_path()))


def _load(file: str | None, name: str) -> "LoadedConfig":
    from skymount.config import load_with_origins

    return load_with_origins({}, environ=os.environ, file=file or "", name=name, warn=warn)


def _check_certificates(config: "Config") -> None:
    """ConfigError when the certificates of a portal cannot be read."""
    given = (str(options.get("ca_file") or "") for options in config.portal_options.values())
    for path in filter(None, dict.fromkeys(given)):
        from skymount.portal.http.stream import new_tls_context

        try:
            new_tls_context(path)
        except OSError as error:
            raise ConfigError(f"ca_file: {error}; it is to be a file in PEM format") from None


def _values(found: "LoadedConfig") -> dict[str, object]:
    from skymount.config import KEYS

    return {key: _value(key, getattr(found.config, key)) for key in KEYS}


def _value(key: str, value: Any) -> object:
    """Return a value as it is written in the file, secrets masked."""
    from skymount.config_values import format_size

    if key == "api_key":
        return _MASK if value else ""
    if key == "headers":
        return dict.fromkeys(dict(value), _MASK)
    if key in ("disk_cache", "metrics_listen") and not value:
        return "off"
    if key in ("memory_cache", "tree_cache", "disk_cache"):
        return format_size(value)
    return list(value) if isinstance(value, tuple) else getattr(value, "value", value)


def _origin(found: "LoadedConfig", key: str) -> str:
    origin = found.origin(key)
    if key in found.unused:
        return f"default; that of {origin} belongs to another portal"
    return origin or "default"


def _tables(found: "LoadedConfig") -> Iterator[dict[str, tuple[object, str]]]:
    """Yield (value, origin) of the keys of each portal, if one has a table of its own."""
    from skymount.portal.options import portal_identity

    tables = {portal_identity(table.url): table for table in found.config.portal_tables}
    for url in found.config.portals if tables else ():
        rows: dict[str, tuple[object, str]] = {"url": (url, _origin(found, "portals"))}
        if table := tables.get(portal_identity(url)):
            if rows["url"][1].startswith(f"{found.path}: "):  # not the environment
                rows["url"] = url, table.place("url")
            for key, value in table.options.items():
                rows[key] = (_value(key, value), table.place(key))
        yield rows


def _lines(
    values: Mapping[str, tuple[object, str]], tables: list[dict[str, tuple[object, str]]]
) -> Iterator[str]:
    """Yield the values in the syntax of the file; tables have to be the last."""
    yield from _rows({k: row for k, row in values.items() if k != "portals" or not tables})
    for table in tables:
        yield from ("", "[[portals]]", *_rows(table))


def _rows(rows: Mapping[str, tuple[object, str]]) -> Iterator[str]:
    from skymount.config_values import PATHS

    settings = {
        # A path that is not set; the file may not have an empty one.
        key: f"{'# ' if key in PATHS and not value else ''}{key} = {_toml(value)}"
        for key, (value, _) in rows.items()
    }
    width = min(max(map(len, settings.values())), 40)
    for key, (_, origin) in rows.items():
        yield f"{settings[key]:<{width}}  # {origin}"


def _toml(value: object) -> str:
    """Return a value in TOML: strings, numbers and lists are written as in JSON."""
    import json

    if isinstance(value, Mapping):
        items = ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items())
        return f"{{ {items} }}" if items else "{}"
    if isinstance(value, tuple):
        value = list(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
