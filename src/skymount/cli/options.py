"""Owns the options that several commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def _default_data() -> Path:
    import platformdirs

    return platformdirs.user_data_path("skymount") / "portal"


def data_option(command: F) -> F:
    """Add the option that says where a portal of this machine keeps its data."""
    return click.option(
        "--data",
        type=click.Path(path_type=Path, file_okay=False),
        default=_default_data,
        show_default="the user's data directory",
        help="Directory that holds all that a portal keeps; created when absent.",
    )(command)


def hashed_option(command: F) -> F:
    """Add the option that says that a data key is hashed already."""
    return click.option("--hashed", is_flag=True, help="DATAKEY is hashed already: 64 hex digits.")(
        command
    )


def portal_options(command: F) -> F:
    """Add the options that say which portal, and how to talk to it."""
    for option in reversed(
        [
            click.option(
                "--portal",
                "portals",
                multiple=True,
                metavar="URL",
                help="Portal address; repeat it to name further ones to fall back on.",
            ),
            click.option("--dialect", metavar="NAME", help="Names it uses: svc or skynet."),
            click.option("--config", "config_file", metavar="FILE", help="Configuration file."),
        ]
    ):
        command = option(command)
    return command


def reading_options(command: F) -> F:
    """Add the options of commands that check content: `portal_options` and ``--verify``."""
    return portal_options(
        click.option(
            "--verify",
            type=click.Choice(["require", "available", "off"]),
            help="What to do with content that cannot be checked against its skylink.",
        )(command)
    )
