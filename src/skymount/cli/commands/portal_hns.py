"""``skymount portal hns``: the domains of a portal on this machine."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from skymount.cli.commands.portal_data.storage_options import database_option
from skymount.cli.options import data_directory, data_option, load_settings
from skymount.cli.output import emit, json_option, warn
from skymount.errors import MalformedError, NotFoundError

if TYPE_CHECKING:
    from skymount.server.storage.zone_file import Zone


def _change(data: Path | None, database: str, edit: "Callable[[Zone], Zone]") -> None:
    from skymount.server.storage import zone_file
    from skymount.server.storage.cluster.choice import open_names
    from skymount.server.storage.cluster.migrations import Tables

    if not database:
        zone_file.change(data_directory(data), edit)
        return
    with open_names(database, os.environ, Tables.MAKE) as names:
        names.change(edit)


def _load(data: Path | None, database: str) -> "Zone":
    from skymount.server.storage import zone_file
    from skymount.server.storage.cluster.choice import open_names
    from skymount.server.storage.cluster.migrations import Tables

    if not database:
        return zone_file.load(data_directory(data))
    with open_names(database, os.environ, Tables.KEEP) as names:
        return names.current()


def _place(data: Path | None, database: str) -> str:
    from skymount.server.storage import zone_file

    return "the database" if database else str(data_directory(data) / zone_file.ZONE_FILE)


@click.group()
def hns() -> None:
    """Set what domains lead to.

    They are stored in the file hns.zone in the portal's data directory, which you can also edit by
    hand. A running portal sees changes at once.

    \b
    Examples:
      skymount portal hns set example SKYLINK
      skymount portal hns list
    """


@hns.command("set")
@click.argument("domain")
@click.argument("value")
@data_option
@database_option
@click.option("--dialect", metavar="NAME", help="Names for links without any: svc or skynet.")
def set_(domain: str, value: str, data: Path | None, database: str, dialect: str | None) -> None:
    """Make DOMAIN lead to VALUE, and to nothing else.

    VALUE is a skylink, with or without a scheme, or a URL, with an optional path. A registry entry
    whose data is a skylink can be given by its link, or as PUBLICKEY/DATAKEY in 64 hex digits each,
    where the data key is hashed.

    \b
    Examples:
      skymount portal hns set example SKYLINK
      skymount portal hns set docs.example SKYLINK/manual/index.html
      skymount portal hns set blog.example "$(skymount registry link home blog)"
    """
    from skymount.server.storage import zone_file
    from skymount.wire.hns import parse_domain

    name = parse_domain(domain)
    try:
        text = zone_file.parse_value(value, load_settings(dialect=dialect).dialect)
    except MalformedError as error:
        if "/" not in value or "://" in value:
            raise
        raise MalformedError(
            f"{error}; in PUBLICKEY/DATAKEY both are 64 hex digits, the data key is hashed: "
            'easier is "$(skymount registry link KEY DATAKEY)"'
        ) from None
    _change(data, database, lambda found: found.with_record(name, text))


@hns.command()
@click.argument("domain")
@data_option
@database_option
def remove(domain: str, data: Path | None, database: str) -> None:
    """Remove DOMAIN.

    \b
    Example:
      skymount portal hns remove example
    """
    from skymount.server.storage import zone_file
    from skymount.wire.hns import parse_domain

    name = parse_domain(domain)

    where = _place(data, database)

    def edit(found: zone_file.Zone) -> zone_file.Zone:
        if name not in found.domains:
            raise NotFoundError(f"{where}: no record of {name}")
        return found.without(name)

    _change(data, database, edit)


@hns.command("list")
@data_option
@database_option
@json_option
def list_(data: Path | None, database: str, as_json: bool) -> None:
    """List all domains with what they lead to.

    \b
    Examples:
      skymount portal hns list
      skymount portal hns list --json | jq -r '.[].domain'
    """
    found = _load(data, database)
    rows = []
    for domain in found.domains:
        value = found.value(domain)
        try:
            record = found.find(domain)
        except MalformedError:
            record = None
        skylink = None if record is None else str(record.skylink)
        rows.append({"domain": domain, "value": value, "skylink": skylink})
    for problem in found.problems():
        warn(f"{_place(data, database)} {problem}")
    emit(rows, as_json, (f"{row['domain']} {row['value']}" for row in rows if row["skylink"]))
