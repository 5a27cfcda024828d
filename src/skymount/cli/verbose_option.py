"""The option --verbose, which all commands have."""

from collections.abc import Callable
from typing import Any

import click


def verbose_option(text: str) -> Callable[[Any], Any]:
    """Add ``--verbose`` to a command, with this help."""
    return click.option(
        *("-v", "--verbose"), is_flag=True, expose_value=False, callback=_begin_log, help=text
    )


def with_verbose(command: click.Command) -> click.Command:
    """Add ``--verbose`` to a command, or to all of a group, unless it has one of its own."""
    if isinstance(command, click.Group):
        for each in command.commands.values():
            with_verbose(each)
    elif not any("-v" in option.opts for option in command.params):
        verbose_option("Log to standard error, also each request to a portal.")(command)
    return command


def _begin_log(context: click.Context, parameter: click.Parameter, is_verbose: bool) -> None:
    if is_verbose:
        from skymount.daemon import log

        log.log_to_stderr("debug")
