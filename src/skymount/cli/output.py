"""How commands print: results on stdout, warnings and progress on stderr."""

import json
import os
import stat
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import click

from skymount.cli.standard_streams import standard_output
from skymount.wording import readable_size, visible

Progress = Callable[[int, int | None], None]  # (bytes done, bytes in all or None if not known)


json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


def emit(value: object, as_json: bool, lines: Iterable[str]) -> None:
    """Print a result: the value as one line of JSON, or the lines."""
    if as_json:
        click.echo(json.dumps(value, separators=(",", ":")))
        return
    text = "".join(f"{visible(line)}\n" for line in lines)
    charset = getattr(sys.stdout, "encoding", None) or "utf-8"  # which may lack some characters
    click.echo(text.encode(charset, "backslashreplace").decode(charset), nl=False)


def warn(text: str) -> None:
    """Print a warning."""
    click.echo(f"skymount: warning: {visible(text)}", err=True)


def is_stream(destination: str | None) -> bool:
    """Whether it is written to as it is: standard output, a device, a pipe, or a descriptor of this
    process by its name, such as ``/dev/stdout``, whatever that leads to.
    """
    if destination == "-" or own_descriptor(destination or "") is not None:
        return True
    try:
        mode = os.stat(destination or "").st_mode
    except OSError:
        return False
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode) or stat.S_ISBLK(mode)


_LINKS = 40  # one behind the other, as the kernel follows them


def own_descriptor(path: str) -> int | None:
    """Return N of ``/dev/fd/N`` and what leads there; None for any other path."""
    for _ in range(_LINKS):
        parent, name = os.path.split(path)
        if name.isdecimal() and os.path.realpath(parent) == f"/proc/{os.getpid()}/fd":
            return int(name)
        try:
            path = os.path.join(parent, os.readlink(path))
        except OSError:
            return None
    return None


@asynccontextmanager
async def open_stream(destination: str) -> AsyncIterator[int]:
    """Open a stream for writing, a pipe once somebody reads it; yield its descriptor."""
    import trio

    if destination == "-":
        yield standard_output().fileno()
        return
    descriptor = own_descriptor(destination)
    if descriptor is not None:  # opened anew it would begin at its start
        yield descriptor
        return
    flags = os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY
    found = await trio.to_thread.run_sync(os.open, destination, flags, abandon_on_cancel=True)
    try:
        yield found
    except OSError as error:
        error.filename = error.filename or destination
        raise
    finally:
        os.close(found)


class _InterruptedError(click.ClickException):
    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # click has it on the class


@contextmanager
def interruption(outcome: str | Callable[[], str]) -> Iterator[None]:
    """Say what was done and what was not if a signal ends the command meanwhile."""
    from skymount.cli import ENDING_SIGNALS, EXIT_INTERRUPTED

    try:
        yield
    except (KeyboardInterrupt, SystemExit) as error:
        code = error.code if isinstance(error, SystemExit) else EXIT_INTERRUPTED
        if code not in (EXIT_INTERRUPTED, *(128 + each for each in ENDING_SIGNALS)):
            raise
        with suppress(OSError):
            if os.isatty(2):
                click.echo(err=True)  # behind ^C
        said = outcome if isinstance(outcome, str) else outcome()
        raise _InterruptedError(f"interrupted: {said}", code) from None


@contextmanager
def progress() -> Iterator[Progress | None]:
    """Show a progress bar on stderr; None where that is not a terminal."""
    if not os.isatty(2):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, ProgressColumn, Task
    from rich.progress import Progress as Bar
    from rich.text import Text

    class Sizes(ProgressColumn):
        """Bytes, and bytes a second once that is known, in the same units as all else."""

        def render(self, task: Task) -> Text:
            size = readable_size(int(task.completed))
            total = "" if task.total is None else f" of {readable_size(int(task.total))}"
            speed = task.finished_speed or task.speed
            return Text(size + total + (f", {readable_size(int(speed))}/s" if speed else ""))

    with Bar(BarColumn(), Sizes(), console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
