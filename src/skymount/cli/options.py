"""Options that several commands share."""

import os
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from skymount.cli import completion
from skymount.errors import ConfigError

if TYPE_CHECKING:
    from skymount.config import Config

F = TypeVar("F", bound=Callable[..., Any])

_SILENT = "Seconds that a portal may stay silent."

_FLAGS = ("portals", "dialect", "timeout", "user_agent", "config_file", "verify")


def load_settings(
    *, name: str = "", config_file: str | None = None, portals: Sequence[str] = (), **flags: object
) -> "Config":
    """Read the configuration and override it with flags; `name` selects the table of a mount."""
    from skymount import config
    from skymount.cli.output import warn

    given = {"portals": list(filter(None, portals)) or None, **flags}
    return config.load(given, environ=os.environ, file=config_file or "", name=name, warn=warn)


def data_directory(given: Path | None) -> Path:
    """Return the directory of --data, by default the user's; UsageError without a home."""
    from skymount.default_portal import default_data

    try:
        return given or default_data()
    except ConfigError as error:
        raise click.UsageError(f"{error}, or name a directory with --data") from None


class PathType(click.Path):
    """A path that is not empty: an empty one would be the working directory, or ignored.

    It is looked at only if it must exist or be of one kind: it may be a mount whose daemon hangs.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value in ("", b""):
            self.fail("the path is empty", param, ctx)
        if not self.exists and self.file_okay and self.dir_okay:
            return self.coerce_path_result(value)
        return super().convert(value, param, ctx)


def removed_option(name: str, instead: str, **form: Any) -> Callable[[F], F]:
    """Let an option that is gone be answered by what there is instead."""

    def refuse(_: click.Context, __: click.Parameter, value: object) -> None:
        if value:
            raise click.UsageError(f"{name} was removed: {instead}")

    return click.option(name, hidden=True, expose_value=False, callback=refuse, **form)


data_option = click.option(
    "--data",
    type=PathType(path_type=Path, file_okay=False),
    show_default="the user's data directory",
    help="Directory that holds all that a portal keeps; created when absent.",
)

wait_option = click.option(
    "--wait",
    type=click.FloatRange(min=0, min_open=True, max=300),
    metavar="SECONDS",
    default=5,
    show_default=True,
    help="How long the portal may look for the entry, at most 300 s.",
)


def portal_options(command: F) -> F:
    """Add the options that name portals; the command gets the configuration as `settings`."""
    return _portal_options(_with_settings(command), _SILENT)


def reading_options(command: F) -> F:
    """Add `portal_options` and ``--verify``."""
    return portal_options(_verify_option(command))


def copying_options(command: F) -> F:
    """Add ``--from``, ``--to``, ``--verify`` and the options of both portals; the command gets the
    configurations `source` and `target`.
    """

    @wraps(command)
    def with_both(sources: Sequence[str], to: str | None, **parameters: Any) -> Any:
        from skymount import config

        given = {name: parameters.pop(name) for name in _FLAGS if name in parameters}
        target = load_settings(portals=[to] if to else [], **given)
        file = given.pop("config_file") or ""  # of which the line above has warned, if need be
        named = config.for_named_portals(os.environ)  # the rest is for the target
        source = config.load({"portals": sources, **given}, environ=named, file=file)
        return command(source=source, target=_with_default_portal(target, "--to"), **parameters)

    sources = click.option(
        "--from",
        "sources",
        multiple=True,
        required=True,
        metavar="URL",
        help="Portal that has it; repeat it to name further ones to fall back on.",
    )
    target = click.option(
        "--to",
        metavar="URL",
        help="Portal that is to have it. Default: the first one that uploads go to.",
    )
    made = _portal_options(_verify_option(with_both), _SILENT, ())
    return cast("F", sources(target(made)))


def mount_options(command: F) -> F:
    """Add the options of a mount; the command gets each as a parameter, for `load_settings`."""
    return _portal_options(_verify_option(command), "Limit of any one file operation.")


def _with_settings(command: F) -> F:
    @wraps(command)
    def with_settings(**parameters: Any) -> Any:
        given = {name: parameters.pop(name) for name in _FLAGS if name in parameters}
        return command(settings=_with_default_portal(load_settings(**given)), **parameters)

    return cast("F", with_settings)


def _with_default_portal(settings: "Config", flag: str = "--portal") -> "Config":
    """Return the configuration with this user's own portal, if another user has the default one.

    `flag` is the option that names a portal.
    """
    from dataclasses import replace

    from skymount import default_portal

    if settings.portals:
        return settings
    found = default_portal.find()
    if not found.url:
        url = settings.default_portal
        raise click.ClickException(
            f"{url}: another user (uid {found.foreign_uid}) listens there, who would see what you "
            f"send, so it is not used by default; name a portal with {flag} URL (that one with "
            f"{flag} {url}), or `skymount mount` starts one of your own"
        )
    return replace(settings, default_portal=found.url)


_verify_option = click.option(
    "--verify",
    type=click.Choice(["require", "available", "off"]),
    help="What to do with content that cannot be checked against its skylink.",
)


_portal_option = click.option(
    "--portal",
    "portals",
    multiple=True,
    metavar="URL",
    help="Portal address; repeat it to name further ones to fall back on.",
)


def _portal_options(
    command: F, timeout_help: str, named: Sequence[Callable[[Any], Any]] = (_portal_option,)
) -> F:
    options = (
        *named,
        click.option("--dialect", metavar="NAME", help="Names it uses: svc or skynet."),
        click.option("--timeout", metavar="SECONDS", help=timeout_help),
        click.option("--user-agent", metavar="TEXT", help="What to send as User-Agent."),
        click.option(
            "--config",
            "config_file",
            type=PathType(),
            metavar="FILE",
            shell_complete=completion.files,
            help="Configuration file.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command
