"""``skymount portal export`` and ``import``: a portal as one tar archive."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from skymount.cli import completion
from skymount.cli.commands.portal_data.storage_options import with_storage
from skymount.cli.options import PathType
from skymount.cli.output import emit, interruption, json_option, progress, warn
from skymount.cli.standard_streams import standard_input, standard_output
from skymount.errors import MalformedError
from skymount.wording import counted, readable_size

if TYPE_CHECKING:
    from skymount.server.config import PortalConfig

_file = click.argument(
    "file", type=PathType(path_type=Path, allow_dash=True), shell_complete=completion.files
)


@contextmanager
def _new_file(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file that others cannot read; it gets its name once the block has succeeded."""
    if str(path) == "-":
        stdout = standard_output()
        yield stdout
        stdout.flush()
        return
    from skymount.cli.staging import StagingDirectory

    parent, name = os.path.split(os.fsencode(path))
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    with StagingDirectory(os.fsdecode(parent)) as staging:
        with open(staging.create(name, 0o600), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        staging.place_file(name)


@click.command("export")
@_file
@with_storage
@click.option(
    "--with-skykeys",
    is_flag=True,
    help="Add the skykeys. Whoever has the archive can then decrypt the content.",
)
@json_option
def export(file: Path, config: "PortalConfig", with_skykeys: bool, as_json: bool) -> None:
    """Write all that a portal keeps into a tar archive.

    FILE is a new file, or - for standard output. A portal may run meanwhile.

    \b
    Examples:
      skymount portal export portal.tar
      skymount portal export - | ssh backup 'cat > portal.tar'
    """
    from skymount.server.backup import exporting
    from skymount.server.storage.cluster.choice import open_reader

    if with_skykeys:
        warn("the archive has the skykeys: keep it as secret as they are")
    is_stdout = str(file) == "-"
    outcome = "the archive is not complete" if is_stdout else f"{file} was not made"
    with (
        interruption(outcome),
        open_reader(config) as reader,
        _new_file(file) as opened,
        progress() as bar,
    ):
        done = exporting.export(
            reader,
            opened,
            with_skykeys=with_skykeys,
            progress=lambda size: bar(size, None) if bar else None,
        )
    for problem in done.problems:
        warn(problem)
    if not is_stdout:
        report = {name: getattr(done, name) for name in done.__slots__}
        entries = counted(done.entries, "entry", "entries")
        line = f"{counted(done.skyfiles, 'skyfile')}, {readable_size(done.bytes)}; {entries}"
        emit(report, as_json, [line])
    if done.problems:
        sys.exit(1)


def _archive(path: Path) -> AbstractContextManager[IO[bytes]]:
    return nullcontext(standard_input()) if str(path) == "-" else path.open("rb")


@click.command("import")
@_file
@with_storage
@click.option("--with-skykeys", is_flag=True, help="Take the skykeys, too, if there are any.")
@json_option
def import_(file: Path, config: "PortalConfig", with_skykeys: bool, as_json: bool) -> None:
    """Bring what is in an archive to where a portal keeps it.

    FILE is an archive of `skymount portal export`, or - for standard input. No portal may run on
    --data meanwhile; portals on --store may. All of it is verified. What is there already stays,
    and so does a newer entry, so an import that was ended can be run again. If something is
    damaged, it is printed, and the exit code is 1.

    \b
    Example:
      skymount portal import portal.tar
    """
    from skymount.server.backup import importing

    outcome = "what was brought until now stays; import the archive again to go on"
    with interruption(outcome), _archive(file) as opened, progress() as bar:
        try:
            done = importing.import_archive(
                config,
                opened,
                with_skykeys=with_skykeys,
                progress=lambda size: bar(size, None) if bar else None,
            )
        except MalformedError as error:  # exit code 1: a damaged archive is not wrong use
            raise click.ClickException(str(error)) from None
    report = {name: getattr(done, name) for name in done.__slots__}
    entries = counted(done.entries, "entry", "entries")
    were_there = f"{done.present:,} {'was' if done.present == 1 else 'were'}"
    line = f"{counted(done.skyfiles, 'skyfile')}, {entries}; {were_there} there already"
    emit(report, as_json, [*done.problems, line])
    if done.problems:
        sys.exit(1)
