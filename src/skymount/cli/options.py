"""Owns the options that several commands share."""

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

if TYPE_CHECKING:
    from skymount.config import Config

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class PortalFlags:
    """What a command line says of portals, as it was written; None where it says nothing."""

    portals: tuple[str, ...] = ()
    dialect: str | None = None
    timeout: str | None = None
    user_agent: str | None = None
    config_file: str | None = None
    verify: str | None = None

    def load(self, name: str = "", **more: object) -> "Config":
        """Read the configuration, with these flags and more over it.

        `name` selects a mount's table. ConfigError says what is wrong.
        """
        from skymount import config
        from skymount.cli.output import warn

        given = {
            "portals": self.portals or None,
            "dialect": self.dialect,
            "timeout": self.timeout,
            "user_agent": self.user_agent,
            "verify": self.verify,
            **more,
        }
        return config.load(
            given, environ=os.environ, file=self.config_file or "", name=name, warn=warn
        )


_FLAGS = tuple(item.name for item in fields(PortalFlags))


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


def wait_option(command: F) -> F:
    """Add the option that says how long the registry may look for an entry."""
    return click.option(
        "--wait",
        type=click.FloatRange(min=0, min_open=True, max=300),
        metavar="SECONDS",
        default=5,
        show_default=True,
        help="How long the portal may look for the entry, at most 300 s.",
    )(command)


def portal_options(command: F) -> F:
    """Add the options that say which portal, and how to talk to it, as the parameter `flags`."""
    return _flags(command, "Seconds that a portal may stay silent.")


def reading_options(command: F) -> F:
    """Add the options of commands that check content: `portal_options` and ``--verify``."""
    return portal_options(_verify_option(command))


def mount_options(command: F) -> F:
    """Add the options of a mount: as `reading_options`, with another meaning of ``--timeout``."""
    return _flags(_verify_option(command), "Limit of any one file operation.")


def _verify_option(command: F) -> F:
    return click.option(
        "--verify",
        type=click.Choice(["require", "available", "off"]),
        help="What to do with content that cannot be checked against its skylink.",
    )(command)


def _flags(command: F, timeout_help: str) -> F:
    @wraps(command)
    def with_flags(**parameters: Any) -> Any:
        given = {name: parameters.pop(name) for name in _FLAGS if name in parameters}
        return command(flags=PortalFlags(**given), **parameters)

    options = (
        click.option(
            "--portal",
            "portals",
            multiple=True,
            metavar="URL",
            help="Portal address; repeat it to name further ones to fall back on.",
        ),
        click.option("--dialect", metavar="NAME", help="Names it uses: svc or skynet."),
        click.option("--timeout", metavar="SECONDS", help=timeout_help),
        click.option("--user-agent", metavar="TEXT", help="What to send as User-Agent."),
        click.option("--config", "config_file", metavar="FILE", help="Configuration file."),
    )
    for option in reversed(options):
        with_flags = option(with_flags)
    return cast(F, with_flags)
