"""The options of commands that upload a directory, and what they say of what is left out."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from skymount.cli.output import escape, warn
from skymount.upload_selection import UploadSelection

F = TypeVar("F", bound=Callable[..., Any])


def report(path: Path, selection: UploadSelection) -> None:
    """Say in one line what was left out though no pattern of the user's asked for it; warn of empty
    directories, which are not uploaded.
    """
    from skymount.portal.client.upload_source import empty_directories

    if text := selection.report():
        click.echo(f"skymount: left out: {escape(text)}; --all takes them along", err=True)
    for empty in empty_directories(path, selection.skips):
        warn(f"{empty}: empty, and not part of the upload")


def selection_options(command: F) -> F:
    """Add ``--exclude`` and ``--all``; the command gets `selection`."""
    from functools import wraps

    @wraps(command)
    def with_selection(excludes: tuple[str, ...], take_all: bool, **parameters: Any) -> Any:
        return command(selection=UploadSelection(take_all, excludes), **parameters)

    options = (
        click.option(
            "--exclude",
            "excludes",
            multiple=True,
            metavar="GLOB",
            help="Leave out what this pattern matches, as in .gitignore. Repeatable.",
        ),
        click.option(
            "--all",
            "take_all",
            is_flag=True,
            help="Take along .git, .env, .ssh, private keys and the like, too.",
        ),
    )
    found: Any = with_selection
    for option in reversed(options):
        found = option(found)
    return cast("F", found)
