"""Owns how commands print: results on stdout, warnings and progress on stderr."""

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

Progress = Callable[[int, int | None], None]
"""Called with (bytes done, bytes in all or None when that is not known)."""

# What moves the cursor, hides text or turns its direction, and bytes that were no UTF-8.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def json_option(command: F) -> F:
    """Add ``--json``, as the parameter `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")(
        command
    )


def escape(text: str) -> str:
    """Make text from outside fit for a terminal, as one line: ``\\n``, ``\\x1b``, ``\\xe9``."""
    return _UNSAFE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a name that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return match[0].encode("unicode_escape").decode()


def emit(value: object, as_json: bool, lines: Iterable[str]) -> None:
    """Print a result: the value as one line of JSON, or the lines for people."""
    if as_json:
        click.echo(json.dumps(value, separators=(",", ":")))
        return
    text = "".join(f"{escape(line)}\n" for line in lines)
    charset = getattr(sys.stdout, "encoding", None) or "utf-8"  # which may lack some characters
    click.echo(text.encode(charset, "backslashreplace").decode(charset), nl=False)


def warn(text: str) -> None:
    """Say something that does not stop a command."""
    click.echo(f"skymount: warning: {escape(text)}", err=True)


@contextmanager
def progress() -> Iterator[Progress | None]:
    """Show a progress bar on stderr; None, and nothing is shown, where that is no terminal."""
    if not os.isatty(2):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    with Bar(
        BarColumn(), DownloadColumn(), TransferSpeedColumn(), console=Console(stderr=True)
    ) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
