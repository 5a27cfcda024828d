"""The options of commands that upload a directory, and what they say of what is left out."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, cast

import click

from skymount.cli.output import warn
from skymount.errors import MalformedError
from skymount.upload_selection.selection import (
    NamedSecretError,
    SelectionRules,
    UnusableFilesError,
    options,
)
from skymount.wording import visible

if TYPE_CHECKING:
    from skymount.portal.client.upload import UploadBody

F = TypeVar("F", bound=Callable[..., Any])

_ADVICE = {
    "take_all": "--all takes along secrets and the like",
    "follow_outside": "--follow-outside takes along what links lead to outside",
}


def prepared(
    paths: Iterable[Path],
    rules: SelectionRules,
    *,
    name: str = "",
    query: Iterable[tuple[str, str]] = (),
) -> "list[UploadBody]":
    """Prepare the upload of files and directories, a body for each.

    A line on stderr names each thing that is left out, or that cannot be uploaded.
    """
    from skymount.portal.client.upload import UploadBody

    bodies, unusable = [], []
    for path in paths:
        try:
            bodies.append(UploadBody.of_path(path, name=name, query=tuple(query), rules=rules))
        except NamedSecretError as error:
            raise MalformedError(f"{error}; it is uploaded with --all only") from None
        except UnusableFilesError as error:
            unusable += error.files
    if len(unusable) == 1:
        raise MalformedError(
            f"nothing is uploaded: {unusable[0]}; --skip-special goes on without it"
        )
    if unusable:
        for each in unusable:
            _say(f"{each.path}: {each.reason}")
        raise MalformedError(
            f"nothing is uploaded, as {len(unusable)} files or directories cannot be; "
            "--skip-special goes on without them"
        )
    left_out = [each for body in bodies for each in body.selection.left_out]
    for each in left_out:
        _say(f"left out: {each.path}: {each.reason}")
    if advice := [_ADVICE[option] for option in options(left_out)]:
        _say("; ".join(advice))
    for empty in (each for body in bodies for each in body.selection.empty):
        warn(f"{empty}: empty, and not part of the upload")
    return bodies


def _say(text: str) -> None:
    click.echo(f"skymount: {visible(text)}", err=True)


def selection_options(command: F) -> F:
    """Add the options that say what of a directory is taken; the command gets `rules`."""
    from functools import wraps

    @wraps(command)
    def with_rules(
        excludes: tuple[str, ...],
        take_all: bool,
        follow_outside: bool,
        skip_special: bool,
        **parameters: Any,
    ) -> Any:
        rules = SelectionRules(take_all, excludes, follow_outside, skip_special)
        return command(rules=rules, **parameters)

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
        click.option(
            "--follow-outside",
            is_flag=True,
            help="Take along what links lead to outside of the directory.",
        ),
        click.option(
            "--skip-special",
            is_flag=True,
            help="Go on without FIFOs, sockets, links to nothing, and what cannot be read.",
        ),
    )
    found: Any = with_rules
    for option in reversed(options):
        found = option(found)
    return cast("F", found)


class PageOptions(TypedDict):
    """What a browser is shown of a directory, as `upload_query` takes it."""

    default_path: str
    disable_default_path: bool
    try_files: tuple[str, ...] | None
    error_pages: dict[str, str]


def page_options(command: F) -> F:
    """Add the options that say what a browser is shown; the command gets them as `pages`."""
    from functools import wraps

    @wraps(command)
    def with_pages(
        default_path: str | None,
        no_default_path: bool,
        try_files: tuple[str, ...],
        error_pages: tuple[str, ...],
        **parameters: Any,
    ) -> Any:
        pages = PageOptions(
            default_path=default_path or "",
            disable_default_path=no_default_path,
            try_files=try_files or None,
            error_pages=_error_pages(error_pages),
        )
        return command(pages=pages, **parameters)

    options = (
        click.option("--default-path", metavar="PATH", help="File that a browser is shown first."),
        click.option("--no-default-path", is_flag=True, help="Show a browser no file first."),
        click.option(
            "--try-file",
            "try_files",
            multiple=True,
            metavar="PATH",
            help="File that a browser is shown for a missing path. A relative one, such as "
            "index.html, is looked for in that path's directory, an absolute one is the same for "
            "all. Repeatable.",
        ),
        click.option(
            "--error-page",
            "error_pages",
            multiple=True,
            metavar="STATUS=PATH",
            help="File that a browser is shown with that HTTP status, as 404=/404.html. "
            "Repeatable.",
        ),
    )
    found: Any = with_pages
    for option in reversed(options):
        found = option(found)
    return cast("F", found)


def _error_pages(texts: tuple[str, ...]) -> dict[str, str]:
    pages = {status: path for status, _, path in (text.partition("=") for text in texts)}
    if not all(status.isdecimal() and path for status, path in pages.items()):
        raise click.UsageError("--error-page looks like 404=/404.html")
    if len(pages) < len(texts):
        raise click.UsageError("--error-page: there is more than one for a status")
    return pages
