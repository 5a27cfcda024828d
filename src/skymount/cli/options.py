"""Owns the options that several commands share."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


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
