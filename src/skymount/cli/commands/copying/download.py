"""``skymount download``: saves files and directories."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from skymount.cli import completion
from skymount.cli.options import reading_options, removed_option
from skymount.cli.output import (
    Progress,
    emit,
    interruption,
    is_stream,
    json_option,
    progress,
)
from skymount.wording import counted, readable_size, visible

if TYPE_CHECKING:
    from skymount.cli.link_target import LinkTarget, ParsedLink
    from skymount.content.opening import Content
    from skymount.policies import Verified
    from skymount.settings import Config


@click.command()
@click.argument("link", shell_complete=completion.files)
@click.argument("destination", metavar="[DEST]", required=False, shell_complete=completion.files)
@removed_option("--archive", "save the directory, and pack it with tar or zip")
@click.option("--force", is_flag=True, help="Replace files that exist already.")
@reading_options
@json_option
def download(
    link: str,
    destination: str | None,
    force: bool,
    as_json: bool,
    settings: "Config",
) -> None:
    """Save the file or directory at LINK as DEST.

    A file is saved as DEST, or into DEST if that is a directory, or written to DEST if that is '-'
    (stdout), a device or a pipe. If DEST is a symbolic link, --force replaces the file that it
    leads to. A directory becomes DEST, or is added to DEST if that exists. Files appear once all
    of them are complete, and none appears that fails verification. A warning names what cannot be
    verified; --json has it as `verified`: "yes", "partly" or "no". Content that mounts keep on disk
    is read without a portal.

    Without DEST the name is the last one in LINK, or else the name that the upload chose, in the
    working directory. The skylink is the name instead if that one begins with a dash, holds control
    or invisible characters, or was chosen by the upload and begins with a dot. Without DEST a
    directory that exists is not added to. --force never replaces a file whose name only the upload
    chose.

    \b
    Examples:
      skymount download SKYLINK
      skymount download SKYLINK/a/directory ./copy
    """
    from skymount.cli.link_target import ParsedLink
    from skymount.cli.session import content, run

    _check_destination(destination, as_json, force=force)
    parsed = ParsedLink.parse(link)
    with interruption(_unsaved(destination)), progress() as report:
        saved = run(
            content(settings),
            lambda opened: _save(opened, parsed, destination, force=force, report=report),
        )
    if as_json:
        common = {"verified": saved.verified.value}
        emit([{"path": path, "size": size} | common for path, size in saved.files], as_json, [])
    elif os.isatty(2) and not is_stream(destination):
        total = sum(size for _, size in saved.files)
        what = counted(len(saved.files), "file")
        if len(saved.files) == 1:
            what = visible(saved.files[0][0])
        where = "" if destination else f" in {visible(os.getcwd())}"
        click.echo(f"saved {what}{where}, {readable_size(total)}", err=True)
    if saved.left_out:
        raise click.ClickException(f"{counted(saved.left_out, 'file')} cannot be saved, see above")


def _check_destination(destination: str | None, as_json: bool, *, force: bool) -> None:
    """Refuse an empty DEST, stdout for two things, and a disk without `force`."""
    if destination == "":
        raise click.UsageError("DEST is empty")
    if destination == "-" and as_json:
        raise click.UsageError("--json and the content cannot both go to stdout")
    if destination is not None and not force and Path(destination).is_block_device():
        raise click.ClickException(
            f"{visible(destination)}: it is a disk; use --force to write to it"
        )


def _unsaved(destination: str | None) -> str:
    """Say what an interrupted download leaves."""
    return "the output is not complete" if is_stream(destination) else "nothing was saved"


@dataclass(frozen=True, slots=True)
class DownloadSummary:
    """What a download saved."""

    files: list[tuple[str, int]]  # (path, size in bytes)
    verified: "Verified"
    left_out: int = 0  # files that could not be saved


async def _save(
    content: "Content",
    link: "ParsedLink",
    destination: str | None,
    *,
    force: bool,
    report: Progress | None,
) -> DownloadSummary:
    from skymount.cli.commands.content import write_out
    from skymount.cli.link_target import open_target, warn_of_unverified
    from skymount.cli.staging import StagedFile, StagingDirectory

    target = await open_target(content, link)
    skyfile, file = target.tree.skyfile, target.single_file()
    if destination is not None and is_stream(destination):
        size = await write_out(content, target, destination, force=force)
        return DownloadSummary([(destination, size)], target.verified)
    if file is None:
        return await _save_tree(content, target, destination, force=force, report=report)
    chosen = bool(target.path) or _is_file_name(destination)
    parent, name = _file_destination(destination, target.name, chosen=chosen, force=force)
    warn_of_unverified(target.link.text, target.verified, content.settings.verify)
    staged = StagedFile(os.fsencode(name), file.offset, file.size, target.mode_of(target.path))
    with StagingDirectory(parent) as staging:
        await staging.fill(content.reader, skyfile, [staged], report)
        staging.merge([staged], force=force and chosen)
    return DownloadSummary([(os.path.join(parent, name), file.size)], target.verified)


def _is_file_name(destination: str | None) -> bool:
    return destination is not None and not os.path.isdir(destination)


def _file_destination(
    destination: str | None, own: str, *, chosen: bool, force: bool
) -> tuple[str, str]:
    """Return (directory, name); a file is replaced only if the user has `chosen` its name."""
    from skymount.cli.staging import DestinationError, check_free

    if destination is None:
        parent, name = "", own
    elif os.path.isdir(destination):
        parent, name = destination, own
    else:
        parent, name = os.path.split(destination)
        if not name or (parent and not os.path.isdir(parent)):
            raise click.ClickException(f"{visible(parent)}: no such directory")
    path = os.path.join(parent, name)
    if not chosen and os.path.lexists(path):
        raise DestinationError(
            f"{visible(path)}: it exists already, and the upload chose that name; "
            "to replace it name it as DEST, with --force"
        )
    if chosen and force and os.path.islink(path):
        path = os.path.realpath(path)
        parent, name = os.path.split(path)
    check_free(path, os.fsencode(path), force=force)
    return parent, name


async def _save_tree(
    content: "Content",
    target: "LinkTarget",
    destination: str | None,
    *,
    force: bool,
    report: Progress | None,
) -> DownloadSummary:
    from skymount.cli.link_target import warn_of_unverified
    from skymount.cli.staging import StagedFile, StagingDirectory
    from skymount.fs.skylinks.tree import TreeDirectory

    skyfile = target.tree.skyfile
    above = target.path + b"/" if target.path else b""
    items = [
        StagedFile(path, file.offset, file.size, target.mode_of(above + path))
        for path, file in target.files()
    ]
    if sum(item.size for item in items) > skyfile.size:
        raise click.ClickException(
            f"{visible(target.link.text)}: its files overlap, and would take more room on disk "
            "than the content has; mount it, or download single files"
        )
    path = (target.name if destination is None else destination).rstrip("/") or "/"
    exists = _is_directory(path, chosen=destination is not None)
    parent, name = (path, "") if exists else os.path.split(path)
    with StagingDirectory(parent, path) as staging:
        if exists:
            staging.check_merge(items, force=force)
        warn_of_unverified(target.link.text, target.verified, content.settings.verify)
        staging.make_directories(
            path for path, node in target.walk() if isinstance(node, TreeDirectory)
        )
        await staging.fill(content.reader, skyfile, items, report)
        if exists:
            staging.merge(items, force=force)
        else:
            staging.place_directory(name)
    saved = [(os.path.join(path, os.fsdecode(item.path)), item.size) for item in items]
    return DownloadSummary(saved, target.verified, target.warn_of_hidden())


def _is_directory(path: str, *, chosen: bool) -> bool:
    """Whether a directory exists there; ClickException for anything that is in the way."""
    if not os.path.lexists(path):
        return False
    if not chosen:
        raise click.ClickException(
            f"{visible(path)}: it exists already; to add to it name it as DEST"
        )
    if not os.path.isdir(path):
        raise click.ClickException(f"{visible(path)}: it exists, and is not a directory")
    return True
