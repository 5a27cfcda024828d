"""``skymount download``: content without a mount, on disk. Checked as a mount does it, but for the
archives that a portal makes; what cannot be checked is said.
"""

import os
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from skymount.cli.options import PortalFlags, reading_options
from skymount.cli.output import Progress, emit, escape, json_option, progress

if TYPE_CHECKING:
    from skymount.cli.link_target import Link, LinkTarget
    from skymount.cli.session import Reading
    from skymount.portal.client.base import PortalReader
    from skymount.portal.client.download import DownloadResult
    from skymount.portal.verify_policy import Verified
    from skymount.wire.requests import Request

_ARCHIVES = {"zip": ".zip", "tar": ".tar", "targz": ".tar.gz"}
"""Values of the ``format`` parameter (wire notes 4.2), and how their files are named."""


@click.command()
@click.argument("link")
@click.argument("destination", metavar="[DEST]", required=False)
@click.option(
    "--archive",
    type=click.Choice(list(_ARCHIVES)),
    help="Get an archive that the portal makes, which is not verified.",
)
@click.option("--force", is_flag=True, help="Replace files that exist already.")
@reading_options
@json_option
def download(
    link: str,
    destination: str | None,
    archive: str | None,
    force: bool,
    as_json: bool,
    flags: PortalFlags,
) -> None:
    """Save the file or directory at LINK as DEST.

    A file goes to DEST, or into DEST if that is a directory, or to stdout if it is '-'. A directory
    becomes DEST, or is added to it if it exists. Files appear when all of them are complete, and
    none that fails verification. Of what cannot be verified a warning says so, and --json, where
    `verified` is "yes", "partly" or "no". What mounts keep on disk is read without a portal.

    Without DEST the last name in LINK counts, or else the name that the upload has, in the working
    directory; the skylink itself where that begins with a dash or, chosen by the upload, with a
    dot, or holds control or invisible characters. A directory that exists is not added to then.
    --force replaces no file that only the upload named.

    \b
    Examples:
      skymount download SKYLINK
      skymount download SKYLINK/a/directory ./copy
      skymount download --archive tar SKYLINK site.tar
    """
    from skymount.cli.link_target import Link
    from skymount.cli.session import run_with_reader

    if destination == "":
        raise click.UsageError("DEST is empty")
    if destination == "-" and as_json:
        raise click.UsageError("--json and the content cannot both go to stdout")
    settings, parsed = flags.load(), Link.parse(link)
    fetch = partial(_archive, kind=archive) if archive else _save
    with progress() as report:
        saved = run_with_reader(
            settings,
            lambda reading: fetch(reading, parsed, destination, force=force, report=report),
        )
    if as_json:
        common = {"verified": saved.verified.value}
        emit([{"path": path, "size": size} | common for path, size in saved.files], as_json, [])
    elif os.isatty(2) and destination != "-":
        total = sum(size for _, size in saved.files)
        what = escape(saved.files[0][0]) if len(saved.files) == 1 else f"{len(saved.files)} files"
        click.echo(f"{what}, {total} bytes", err=True)
    if saved.left_out:
        raise click.ClickException(f"{saved.left_out} files cannot be saved, see above")


@dataclass(frozen=True, slots=True)
class Saved:
    """What a download made."""

    files: list[tuple[str, int]]
    """(path, size in bytes) of each."""
    verified: "Verified"
    left_out: int = 0
    """Number of files that could not be saved."""


async def _save(
    reading: "Reading",
    link: "Link",
    destination: str | None,
    *,
    force: bool,
    report: Progress | None,
) -> Saved:
    """Save what a link leads to, checked."""
    from skymount.cli.commands.content import write_out
    from skymount.cli.link_target import open_target
    from skymount.cli.staging import StagedFile, StagingDirectory

    target = await open_target(reading, link)
    skyfile, file = target.tree.skyfile, target.single_file()
    if destination == "-":
        return Saved([("-", await write_out(reading, target))], target.verified)
    if file is None:
        return await _save_tree(reading, target, destination, force=force, report=report)
    chosen = bool(target.path) or _is_file_name(destination)
    parent, name = _place(destination, target.name, chosen=chosen, force=force)
    target.warn_of_doubt(reading.policy)
    staged = StagedFile(os.fsencode(name), file.offset, file.size, target.mode_of(target.path))
    with StagingDirectory(parent) as staging:
        await staging.fill(reading.reader, skyfile, [staged], report)
        staging.merge([staged], force=force and chosen)
    return Saved([(os.path.join(parent, name), file.size)], target.verified)


def _is_file_name(destination: str | None) -> bool:
    """Whether DEST names a file, not only the directory for it."""
    return destination is not None and not os.path.isdir(destination)


def _place(destination: str | None, own: str, *, chosen: bool, force: bool) -> tuple[str, str]:
    """Return (directory, name) for a file; ClickException when it cannot go there.

    What is there is replaced only if the user has `chosen` the name.
    """
    from skymount.cli.staging import DestinationError, check_free

    if destination is None:
        parent, name = "", own
    elif os.path.isdir(destination):
        parent, name = destination, own
    else:
        parent, name = os.path.split(destination)
        if not name:
            raise click.ClickException(f"{escape(destination)}: no such directory")
    place = os.path.join(parent, name)
    if not chosen and os.path.lexists(place):
        raise DestinationError(
            f"{escape(place)}: it exists already, and the upload chose that name; "
            "to replace it name it as DEST, with --force"
        )
    check_free(place, os.fsencode(place), force=force)
    return parent, name


async def _save_tree(
    reading: "Reading",
    target: "LinkTarget",
    destination: str | None,
    *,
    force: bool,
    report: Progress | None,
) -> Saved:
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
            f"{escape(target.link.text)}: its files overlap, and would take more room on disk "
            "than the content has; mount it, or download single files"
        )
    place = (target.name if destination is None else destination).rstrip("/") or "/"
    is_there = _is_directory(place, named=destination is not None)
    parent, name = (place, "") if is_there else os.path.split(place)
    with StagingDirectory(parent) as staging:
        if is_there:
            staging.check_merge(items, force=force)
        target.warn_of_doubt(reading.policy)
        staging.make_directories(
            path for path, node in target.walk() if isinstance(node, TreeDirectory)
        )
        await staging.fill(reading.reader, skyfile, items, report)
        if is_there:
            staging.merge(items, force=force)
        else:
            staging.place_directory(name)
    saved = [(os.path.join(place, os.fsdecode(item.path)), item.size) for item in items]
    return Saved(saved, target.verified, target.warn_of_hidden())


def _is_directory(place: str, *, named: bool) -> bool:
    """Whether there is a directory, or nothing; ClickException for what is in the way of one, which
    everything is unless the user `named` the place.
    """
    if not named and os.path.lexists(place):
        raise click.ClickException(
            f"{escape(place)}: it exists already; to add to it name it as DEST"
        )
    if os.path.isdir(place):
        return True
    if os.path.lexists(place):
        raise click.ClickException(f"{escape(place)}: it exists, and is not a directory")
    return False


async def _archive(
    reading: "Reading",
    link: "Link",
    destination: str | None,
    *,
    kind: str,
    force: bool,
    report: Progress | None,
) -> Saved:
    """Save the archive that a portal makes of a directory; its word is all that there is."""
    from skymount.cli.link_target import (
        find_place,
        naming_what_is_absent,
        plain_name,
        warn_of_doubt,
    )
    from skymount.errors import BadContentError
    from skymount.portal.client.download import to_file
    from skymount.portal.verify_policy import Verified, VerifyPolicy
    from skymount.wire import requests

    if reading.policy is VerifyPolicy.REQUIRE:
        raise BadContentError("an archive cannot be verified; download the directory instead")
    found = await find_place(reading, link)
    inner = found.path.decode("utf-8", "surrogateescape")
    request = requests.download(found.skylink, inner, archive=kind, with_metadata=False)
    if destination == "-":
        size = await copy_out(reading.portals.ranked()[0], request)
        warn_of_doubt(link.text, Verified.NO, reading.policy)
        return Saved([("-", size)], Verified.NO)
    skylink = str(found.skylink)
    own = plain_name(inner.rpartition("/")[2] or skylink, skylink) + _ARCHIVES[kind]
    parent, name = _place(destination, own, chosen=True, force=force)
    place = os.path.join(parent, name)

    async def ask(client: "PortalReader") -> "DownloadResult":
        return await to_file(client.transport, request, Path(place), client.options, report)

    with naming_what_is_absent(link.text):
        done = await reading.portals.first(ask)
    warn_of_doubt(link.text, done.verified, reading.policy)
    return Saved([(place, done.size)], done.verified)


async def copy_out(client: "PortalReader", request: "Request") -> int:
    """Write what a portal sends to stdout, unchecked; return its size in bytes."""
    import trio

    from skymount.cli.commands.content import STDOUT
    from skymount.storage.atomic_file import write_all

    size = 0
    async with (
        client.transport.open(request, client.options) as answer,
        aclosing(client.transport.pieces(answer)) as pieces,
    ):
        async for piece in pieces:
            await trio.to_thread.run_sync(write_all, STDOUT, piece, abandon_on_cancel=True)
            size += len(piece)
    return size
