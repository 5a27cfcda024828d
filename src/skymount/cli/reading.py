"""``skymount ls``, ``cat``, ``download`` and ``metadata``: content without a mount.

The first three check content as a mount does, and see the same tree under the same names.
"""

import json
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skymount.cli.options import portal_options, reading_options
from skymount.cli.output import Progress, emit, escape, json_option, progress

if TYPE_CHECKING:
    from skymount.cli.session import Reading
    from skymount.cli.target import Link, Target
    from skymount.fs.tree import Node
    from skymount.portal.client import PortalClient

_ARCHIVES = {"zip": ".zip", "tar": ".tar", "targz": ".tar.gz"}
"""Values of the ``format`` parameter (wire notes 4.2), and how their files are named."""

_STDOUT = 1


@click.command()
@click.argument("link")
@click.option("-l", "is_long", is_flag=True, help="Show mode, size and content type as well.")
@click.option("-R", "--recursive", is_flag=True, help="List all that is below, by its path.")
@reading_options
@json_option
def ls(link: str, is_long: bool, recursive: bool, as_json: bool, **flags: Any) -> None:
    """List the files and directories at LINK, one a line.

    LINK is a skylink or a name (hns://NAME) in any form, with a path if wanted, in which special
    characters are percent-encoded. A directory's name ends with a slash. What no file system can
    show is named on stderr.

    \b
    Examples:
      skymount ls SKYLINK
      skymount ls -l SKYLINK/a/directory
      skymount ls -R --json hns://example
    """
    from skymount.cli.session import load, run_with_reader
    from skymount.cli.target import Link, open_target

    settings, parsed = load(**flags), Link.parse(link)
    target = run_with_reader(settings, lambda reading: open_target(reading, parsed))
    target.warn_of_hidden()
    nodes = target.walk() if recursive else target.children()
    found = list(nodes) or [(target.name.encode(), target.node)][: bool(target.path)]
    emit(_listing(target, found) if as_json else None, as_json, _lines(found, is_long))


def _listing(target: "Target", found: Sequence[tuple[bytes, "Node"]]) -> dict[str, object]:
    skyfile = target.tree.skyfile
    return {
        "skylink": str(skyfile.skylink),
        "path": target.path.decode(),
        "verified": skyfile.verified.value,
        "entries": [_entry(path, node) for path, node in found],
        "hidden": [{"path": path, "reason": reason} for path, reason in target.hidden()],
    }


def _entry(path: bytes, node: "Node") -> dict[str, object]:
    from skymount.fs.tree import File

    common = {"path": path.decode(), "mode": stat.S_IMODE(node.mode)}
    if not isinstance(node, File):
        return {**common, "type": "directory"}
    return {**common, "type": "file", "size": node.size, "content_type": node.content_type}


def _lines(found: Sequence[tuple[bytes, "Node"]], is_long: bool) -> Iterator[str]:
    from skymount.fs.tree import File

    rows = [
        (str(node.size), node.content_type or "-") if isinstance(node, File) else ("-", "-")
        for _, node in found
    ]
    sizes = max((len(size) for size, _ in rows), default=0)
    types = max((len(escape(kind)) for _, kind in rows), default=0)
    for (path, node), (size, kind) in zip(found, rows, strict=True):
        name = path.decode() + ("" if isinstance(node, File) else "/")
        if not is_long:
            yield name
        else:
            yield f"{stat.filemode(node.mode)} {size:>{sizes}} {escape(kind):<{types}} {name}"


@click.command()
@click.argument("links", metavar="LINK...", nargs=-1, required=True)
@reading_options
def cat(links: tuple[str, ...], **flags: Any) -> None:
    """Write the content of each LINK to stdout.

    LINK leads to a file, or to a directory with a single file in it.

    \b
    Examples:
      skymount cat SKYLINK
      skymount cat SKYLINK/a/film.mkv | mpv -
    """
    from skymount.cli.session import load, run_with_reader
    from skymount.cli.target import Link

    settings, parsed = load(**flags), [Link.parse(link) for link in links]
    run_with_reader(settings, lambda reading: _cat(reading, parsed))


async def _cat(reading: "Reading", links: Sequence["Link"]) -> None:
    from skymount.cli.target import open_target

    for link in links:
        await _write_out(reading, await open_target(reading, link))


async def _write_out(reading: "Reading", target: "Target") -> int:
    """Write the file that a target is to stdout; return its size in bytes."""
    import trio

    from skymount.cli.saving import spans, write_all

    skyfile, file = target.tree.skyfile, target.single_file()
    if file is None:
        files = [found for _, found in target.files()]
        if len(files) != 1 or target.hidden():
            raise click.ClickException(
                f"{escape(target.link.text)}: it is a directory; name a file in it"
            )
        file = files[0]
    for at, length in spans(skyfile, file.offset, file.size):
        data = await reading.reader.read(skyfile, at, length)
        # whoever reads this pipe may have stopped doing so, which must not keep us from ending
        await trio.to_thread.run_sync(write_all, _STDOUT, data, abandon_on_cancel=True)
    return file.size


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
    **flags: Any,
) -> None:
    """Save the file or directory at LINK as DEST.

    A file goes to DEST, or into DEST if that is a directory, or to stdout if it is '-'. A directory
    becomes DEST, or is added to it if it exists. Without DEST the name in the skylink counts, in
    the working directory; the skylink itself where that begins with a dot. Files appear when all
    of them are complete and verified.

    \b
    Examples:
      skymount download SKYLINK
      skymount download SKYLINK/a/directory ./copy
      skymount download --archive tar SKYLINK site.tar
    """
    from skymount.cli.session import load, run_with_reader
    from skymount.cli.target import Link

    if destination == "":
        raise click.UsageError("DEST is empty")
    if destination == "-" and as_json:
        raise click.UsageError("--json and the content cannot both go to stdout")
    settings, parsed = load(**flags), Link.parse(link)
    fetch = partial(_archive, kind=archive) if archive else _save
    with progress() as report:
        saved, left_out = run_with_reader(
            settings,
            lambda reading: fetch(reading, parsed, destination, force=force, report=report),
        )
    if as_json:
        emit([{"path": path, "size": size} for path, size in saved], as_json, [])
    elif os.isatty(2) and destination != "-":
        total = sum(size for _, size in saved)
        what = escape(saved[0][0]) if len(saved) == 1 else f"{len(saved)} files"
        click.echo(f"{what}, {total} bytes", err=True)
    if left_out:
        raise click.ClickException(f"{left_out} files cannot be saved, see above")


Saved = tuple[list[tuple[str, int]], int]
"""(path, size in bytes) of each file, and the number of files that could not be saved."""


async def _save(
    reading: "Reading",
    link: "Link",
    destination: str | None,
    *,
    force: bool,
    report: Progress | None,
) -> Saved:
    """Save what a link leads to, checked."""
    from skymount.cli.saving import Item, Stage
    from skymount.cli.target import open_target

    target = await open_target(reading, link)
    skyfile, file = target.tree.skyfile, target.single_file()
    if destination == "-":
        return [("-", await _write_out(reading, target))], 0
    if file is None:
        return await _save_tree(reading, target, destination, force=force, report=report)
    parent, name = _place(destination, target.name, force=force)
    item = Item(b"file", file.offset, file.size, target.mode_of(target.path))
    with Stage(parent) as stage:
        await stage.fill(reading.reader, skyfile, [item], report)
        stage.place_file(name, force=force)
    return [(os.path.join(parent, name), file.size)], 0


def _place(destination: str | None, own: str, *, force: bool) -> tuple[str, str]:
    """Return (directory, name) for a file; ClickException when it cannot go there."""
    from skymount.cli.saving import check_free

    if destination is None:
        parent, name = "", own
    elif os.path.isdir(destination):
        parent, name = destination, own
    else:
        parent, name = os.path.split(destination)
        if not name:
            raise click.ClickException(f"{escape(destination)}: no such directory")
    check_free(os.path.join(parent, name), os.fsencode(os.path.join(parent, name)), force=force)
    return parent or ".", name


async def _save_tree(
    reading: "Reading",
    target: "Target",
    destination: str | None,
    *,
    force: bool,
    report: Progress | None,
) -> Saved:
    from skymount.cli.saving import Item, Stage
    from skymount.fs.tree import Directory

    skyfile = target.tree.skyfile
    above = target.path + b"/" if target.path else b""
    items = [
        Item(path, file.offset, file.size, target.mode_of(above + path))
        for path, file in target.files()
    ]
    if sum(item.size for item in items) > skyfile.size:
        raise click.ClickException(
            f"{escape(target.link.text)}: its files overlap, and would take more room on disk "
            "than the content has; mount it, or download single files"
        )
    place = (target.name if destination is None else destination).rstrip("/") or "/"
    is_there = os.path.isdir(place)
    if not is_there and os.path.lexists(place):
        raise click.ClickException(f"{escape(place)}: it exists, and is not a directory")
    parent, name = (place, "") if is_there else os.path.split(place)
    with Stage(parent or ".") as stage:
        if is_there:
            stage.check_merge(items, force=force)
        stage.make_directories(path for path, node in target.walk() if isinstance(node, Directory))
        await stage.fill(reading.reader, skyfile, items, report)
        if is_there:
            stage.merge(items, force=force)
        else:
            stage.place_directory(name)
    saved = [(os.path.join(place, os.fsdecode(item.path)), item.size) for item in items]
    return saved, target.warn_of_hidden()


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
    from skymount.content.skyfile import Policy
    from skymount.errors import BadContentError
    from skymount.portal.download import to_file
    from skymount.wire import messages

    if reading.policy is Policy.REQUIRE:
        raise BadContentError("an archive cannot be verified; download the directory instead")
    skylink, path = await reading.portals.first(link.resolve)
    inner = path.decode("utf-8", "surrogateescape")
    request = messages.download(skylink, inner, archive=kind, with_metadata=False)
    if destination == "-":
        return [("-", await _archive_out(reading.portals.ranked()[0], request))], 0
    own = (inner.rpartition("/")[2] or str(skylink)).replace("\0", "") + _ARCHIVES[kind]
    parent, name = _place(destination, own, force=force)
    place = os.path.join(parent, name)

    async def ask(client: "PortalClient") -> int:
        return await to_file(client.transport, request, Path(place), client.options, report)

    return [(place, await reading.portals.first(ask))], 0


async def _archive_out(client: "PortalClient", request: "Any") -> int:
    import trio

    from skymount.cli.saving import write_all

    size = 0
    async with (
        client.transport.open(request, client.options) as answer,
        aclosing(client.transport.pieces(answer)) as pieces,
    ):
        async for piece in pieces:
            await trio.to_thread.run_sync(write_all, _STDOUT, piece, abandon_on_cancel=True)
            size += len(piece)
    return size


@click.command()
@click.argument("link")
@portal_options
@click.option("--pretty", is_flag=True, help="Print it on many lines.")
@json_option
def metadata(link: str, pretty: bool, as_json: bool, **flags: Any) -> None:
    """Print the metadata of LINK, as the portal has it: a JSON object.

    With --json the result has the members metadata, content_type and skylink.

    \b
    Examples:
      skymount metadata SKYLINK
      skymount metadata SKYLINK | jq -r '.subfiles | keys[]'
    """
    from skymount.cli.session import load, run_with_client
    from skymount.cli.target import Link

    settings, parsed = load(**flags), Link.parse(link)

    async def ask(client: "PortalClient") -> dict[str, Any]:
        skylink, path = await parsed.resolve(client)
        found = await client.get_metadata(str(skylink), path.decode("utf-8", "surrogateescape"))
        return {
            "metadata": found.metadata,
            "content_type": found.content_type,
            "skylink": found.skylink,
        }

    result = run_with_client(settings, ask)
    value = result if as_json else result["metadata"]
    indent, separators = (2, None) if pretty else (None, (",", ":"))
    click.echo(json.dumps(value, indent=indent, separators=separators))
