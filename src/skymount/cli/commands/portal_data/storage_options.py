"""Options that say where a portal keeps its data: on this disk, or shared with other portals."""

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from skymount.cli.options import PathType, data_directory, data_option

if TYPE_CHECKING:
    from skymount.server.config import PortalConfig

F = TypeVar("F", bound=Callable[..., Any])

_UNUSED = Path(os.devnull)

database_option = click.option(
    "--database",
    default="",
    metavar="URL",
    help="The database that portals share, postgresql://USER@HOST/NAME, without a password. With "
    "--store it may be in SKYMOUNT_PORTAL_DATABASE instead.",
)

_OPTIONS = (
    data_option,
    click.option(
        "--store",
        metavar="URL",
        help="The object store of content, s3://BUCKET/PREFIX, which portals may share, in "
        "place of --data.",
    ),
    click.option(
        "--s3-endpoint",
        default="",
        metavar="URL",
        help="Where the object store is, http(s)://HOST[:PORT], unless it is that of AWS.",
    ),
    database_option,
    click.option(
        "--key-file",
        type=PathType(path_type=Path),
        metavar="FILE",
        help="Skykeys in the database are encrypted with the key in this file: 64 hex digits, the "
        "same for all portals.",
    ),
)


def storage_options(command: F) -> F:
    """Add the options; the command gets them as they are, for `parse_storage`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def with_storage(command: F) -> F:
    """Add the options; the command gets what they say as `config`."""

    @wraps(command)
    def parsed(
        *given: Any,
        data: Path | None,
        store: str | None,
        s3_endpoint: str,
        database: str,
        key_file: Path | None,
        **options: Any,
    ) -> Any:
        config = parse_storage(data, store, s3_endpoint, database, key_file)
        return command(*given, config=config, **options)

    return storage_options(cast(F, parsed))


def parse_storage(
    data: Path | None,
    store: str | None,
    s3_endpoint: str,
    database: str,
    key_file: Path | None,
    *,
    has_upstream: bool = False,
) -> "PortalConfig":
    """Return the configuration of a portal that has its data there; ConfigError.

    With a store, the directory is only for what is fetched from upstream.
    """
    from skymount.server.config import PortalConfig
    from skymount.server.storage.cluster.settings import parse_settings

    if store is None:
        if s3_endpoint or database or key_file:
            raise click.UsageError("--s3-endpoint, --database and --key-file need --store")
        return PortalConfig(data_directory(data))
    shared = parse_settings(store, s3_endpoint, database, key_file, os.environ)
    return PortalConfig(data_directory(data) if has_upstream else _UNUSED, cluster=shared)
