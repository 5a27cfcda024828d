"""Options that several commands share; those of settings come from their declarations."""

import os
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from skymount.cli import completion
from skymount.errors import ConfigError
from skymount.settings import SETTINGS, Config, Setting

F = TypeVar("F", bound=Callable[..., Any])

_PORTAL = ("portals", "dialect", "timeout", "user_agent")


def load_settings(
    *,
    name: str = "",
    config_file: str | None = None,
    portals: Sequence[str] | None = (),
    **flags: object,
) -> Config:
    """Read the configuration and override it with flags; `name` selects the table of a mount."""
    from skymount import config
    from skymount.cli.output import warn

    given = {"portals": list(filter(None, portals or ())) or None, **flags}
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

config_option = click.option(
    "--config",
    "config_file",
    type=PathType(),
    metavar="FILE",
    shell_complete=completion.files,
    help="Configuration file.",
)


def _option(name: str, setting: Setting) -> Callable[[F], F]:
    form: dict[str, Any] = {"help": setting.sentence}
    last = setting.flag.split()[-1]
    if last not in setting.options:
        form["metavar"] = last
    kind = type(setting.default)
    if kind is bool:
        form |= {"flag_value": not setting.default, "type": bool, "default": None}
        if setting.default:
            form["help"] = f"Do not {setting.sentence[0].lower()}{setting.sentence[1:]}"
    elif kind is tuple:
        form["multiple"] = True
        form["help"] += " Can be repeated."
        form["callback"] = lambda _, __, given: setting.kind.read(" ".join(given)) or None
    elif setting.is_path:
        form |= {"type": PathType(), "shell_complete": completion.files}
    elif issubclass(kind, StrEnum):
        form["type"] = click.Choice(list(kind), case_sensitive=False)
    return click.option(*setting.options, name, **form)


def setting_options(*names: str) -> Callable[[F], F]:
    """Add the options of settings, and ``--config``; the command gets each as a parameter."""

    def add(command: F) -> F:
        command = config_option(command)
        for name in reversed(names):
            command = _option(name, SETTINGS[name])(command)
        return command

    return add


def _settings(*names: str) -> Callable[[F], F]:
    """Add the options of settings; the command gets the configuration as `settings`."""

    def add(command: F) -> F:
        @wraps(command)
        def with_settings(**parameters: Any) -> Any:
            given = {name: parameters.pop(name) for name in (*names, "config_file")}
            return command(settings=_with_default(load_settings(**given)), **parameters)

        return setting_options(*names)(cast("F", with_settings))

    return add


portal_options = _settings(*_PORTAL)
reading_options = _settings(*_PORTAL, "verify")


def _with_default(settings: Config, flag: str = "--portal") -> Config:
    from skymount.default_portal import with_default_portal

    own = f"{flag} URL (that one with {flag} {settings.default_portal}), or `skymount mount` starts"
    return with_default_portal(settings, f"{own} one of your own")


def copying_options(command: F) -> F:
    """Add ``--from``, ``--to``, ``--verify`` and the options of both portals; the command gets the
    configurations `source` and `target`.
    """
    names = (*_PORTAL[1:], "verify")

    @wraps(command)
    def with_both(sources: Sequence[str], to: str | None, **parameters: Any) -> Any:
        from skymount import config

        given = {name: parameters.pop(name) for name in (*names, "config_file")}
        target = load_settings(portals=[to] if to else [], **given)
        file = given.pop("config_file") or ""  # of which the line above has warned, if need be
        given["portals"] = sources
        source = config.load(given, environ=os.environ, file=file, others=True)
        return command(source=source, target=_with_default(target, "--to"), **parameters)

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
    return cast("F", sources(target(setting_options(*names)(with_both))))
