"""``skymount upload``."""

import json
import os
import select
import stat
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

import click

from skymount.cli.options import PathType, portal_options, removed_option
from skymount.cli.output import emit, interruption, json_option, progress
from skymount.cli.standard_streams import standard_input
from skymount.cli.upload_options import PageOptions, page_options, prepared, selection_options

if TYPE_CHECKING:
    from skymount.content.opening import Content
    from skymount.portal.client.upload import UploadBody
    from skymount.settings import Config
    from skymount.upload_selection.selection import SelectionRules
    from skymount.wire.http.responses import UploadResult

_STDIN = "-"
_POLL_INTERVAL = 0.2  # seconds after which a wait for standard input looks for a cancellation


@click.command()
@click.argument(
    "paths",
    metavar="PATH...",
    nargs=-1,
    required=True,
    type=PathType(exists=True, path_type=Path, allow_dash=True),
)
@click.option("--name", metavar="NAME", help="Name of the file or directory in the skylink.")
@page_options
@click.option("--skykey-name", metavar="NAME", help="Let the portal encrypt it with this skykey.")
@click.option("--skykey-id", metavar="ID", help="The same, by the skykey's id.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Store nothing, only print the skylink. The portal works it out, and is sent all of it.",
)
@click.option(
    "--replicas",
    type=click.IntRange(min=1),
    metavar="N",
    default=1,
    help="Upload to that many portals; fail unless all of them have it.",
)
@removed_option("--spool", "a pipe is sent to one portal, and --replicas brings it to others")
@selection_options
@portal_options
@json_option
def upload(
    paths: tuple[Path, ...],
    name: str | None,
    pages: PageOptions,
    skykey_name: str | None,
    skykey_id: str | None,
    dry_run: bool,
    replicas: int,
    rules: "SelectionRules",
    settings: "Config",
    as_json: bool,
) -> None:
    """Upload the file or directory PATH; print its skylink.

    Several PATHs are uploaded one after another, and get a skylink each. With - as PATH the file is
    read from standard input, and --name is required. Symbolic links are followed.

    What is uploaded cannot be recalled, so some things in a directory are left out, with a line on
    stderr for each: what belongs to version control, .env, .ssh, private keys and other secrets,
    editors' swap files, and skymount's own state (--all takes them along), and what links lead to
    outside of the directory (--follow-outside). A PATH that is itself secret is refused without
    --all. A file .skymountignore in the directory, or below,
    names what else to leave out, in the syntax of .gitignore; so does --exclude. If something
    cannot be uploaded, such as a FIFO, nothing is: all of it is named (--skip-special).

    The first portal that takes it gets it, in the order in which they are configured. If one fails,
    or gives it a wrong skylink, a warning says why, and which one has it in the end. With
    --replicas the same goes for N portals; if fewer have it, the command fails and says which. A
    pipe is sent to one portal, and brought from there to the others. What a portal encrypts is sent
    to the first portal only.

    \b
    Examples:
      skymount upload notes.pdf
      skymount upload site/ --portal https://portal.example
      pg_dump shop | skymount upload - --name shop.sql
      skymount upload --json site/ | jq -r .merkleroot
    """
    from skymount.portal.client.upload import upload_query

    if len(paths) > 1 and (name or Path(_STDIN) in paths):
        raise click.UsageError("--name and standard input go with a single PATH")
    if replicas > 1 and (dry_run or skykey_name or skykey_id):
        raise click.UsageError("--replicas goes with neither --dry-run nor a skykey")
    query = upload_query(
        skykey_name=skykey_name or "",
        skykey_id=skykey_id or "",
        dry_run=dry_run,
        **pages,
    )
    done = 0

    def outcome() -> str:
        before = f"{done} of {len(paths)} were uploaded; " if len(paths) > 1 else ""
        return f"{before}no portal has confirmed {paths[done]}: upload it again"

    with interruption(outcome):
        if paths == (Path(_STDIN),):
            bodies = [_standard_input(name or "", query)]
        else:
            bodies = prepared(paths, rules, name=name or "", query=query)
        for body in bodies:
            result = _send(settings, body, replicas)
            emit(json.loads(result.encode()), as_json, [str(result.skylink)])
            done = min(done + 1, len(paths) - 1)


def _send(settings: "Config", body: "UploadBody", replicas: int) -> "UploadResult":
    from skymount.cli.session import content, run
    from skymount.cli.uploads import upload_pipe_replicas, upload_replicas
    from skymount.policies import VerifyPolicy

    with progress() as bar:
        sent = body.with_progress(bar)

        async def send(opened: "Content") -> "UploadResult":
            if replicas > 1 and body.size is None:
                return await upload_pipe_replicas(opened, sent, replicas)
            return await upload_replicas(opened.portals, sent, replicas)

        return run(content(replace(settings, verify=VerifyPolicy.AVAILABLE), cached=False), send)


def _standard_input(name: str, query: list[tuple[str, str]]) -> "UploadBody":
    from skymount.portal.client.upload import UploadBody
    from skymount.portal.client.upload_source import UploadSource

    if not name:
        raise click.UsageError("standard input has no name: add --name NAME")
    stdin = standard_input()
    if stat.S_ISREG(os.fstat(0).st_mode):
        source = UploadSource.of_file_object(stdin, name)
    else:
        source = UploadSource.of_pipe(cast(BinaryIO, _Pipe()), name)
    return UploadBody([source], query=query)


class _Pipe:
    """Standard input whose reads end when the command is cancelled."""

    def read(self, size: int, /) -> bytes:
        import trio

        while not select.select([0], [], [], _POLL_INTERVAL)[0]:
            trio.from_thread.check_cancelled()
        return os.read(0, size)
