"""``skymount ls``, ``cat`` and ``metadata``: content without a mount, verified as by one."""

import json
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click

from skymount.cli import completion
from skymount.cli.options import reading_options
from skymount.cli.output import emit, json_option, open_stream
from skymount.storage.atomic_file import write_all
from skymount.wording import readable_size, visible

if TYPE_CHECKING:
    from skymount.cli.link_target import LinkTarget, ParsedLink
    from skymount.content.opening import Content
    from skymount.fs.skylinks.tree import TreeNode
    from skymount.portal.client.base import PortalReader
    from skymount.portal.client.metadata import MetadataResult
    from skymount.settings import Config


@click.command(context_settings={"help_option_names": ["--help"]})
@click.argument("link", shell_complete=completion.files)
@click.option("-l", "is_long", is_flag=True, help="Show mode, size and content type as well.")
@click.option("-h", "is_readable", is_flag=True, help="With -l: show sizes like 1.5 MiB.")
@click.option("-R", "--recursive", is_flag=True, help="List everything below, by its path.")
@reading_options
@json_option
def ls(
    link: str,
    is_long: bool,
    is_readable: bool,
    recursive: bool,
    as_json: bool,
    settings: "Config",
) -> None:
    """List the files and directories at LINK, one a line.

    LINK is a skylink in any form or a domain (hns://NAME), with an optional path in which special
    characters are percent-encoded. A directory's name ends with a slash. Paths that no file system
    can show are named on stderr. Content that mounts keep on disk needs no portal.

    \b
    Examples:
      skymount ls SKYLINK
      skymount ls -l SKYLINK/a/directory
      skymount ls -R --json hns://example
    """
    from skymount.cli.link_target import ParsedLink, open_target, warn_of_unverified
    from skymount.cli.session import content, run
    from skymount.policies import Verified

    parsed = ParsedLink.parse(link)
    target = run(content(settings), lambda opened: open_target(opened, parsed))
    if target.verified is Verified.NO:  # else what is listed is verified
        warn_of_unverified(target.link.text, target.verified, settings.verify)
    target.warn_of_hidden()
    nodes = target.walk() if recursive else target.children()
    found = list(nodes) or [(target.name.encode(), target.node)][: bool(target.path)]
    emit(_listing(target, found) if as_json else None, as_json, _lines(found, is_long, is_readable))


def _listing(target: "LinkTarget", found: Sequence[tuple[bytes, "TreeNode"]]) -> dict[str, object]:
    skyfile = target.tree.skyfile
    return {
        "skylink": str(skyfile.skylink),
        "path": target.path.decode(),
        "verified": target.verified.value,
        "entries": [_entry(path, node) for path, node in found],
        "hidden": [{"path": path, "reason": reason} for path, reason in target.hidden()],
    }


def _entry(path: bytes, node: "TreeNode") -> dict[str, object]:
    from skymount.fs.skylinks.tree import TreeFile

    common = {"path": path.decode(), "mode": stat.S_IMODE(node.mode)}
    if not isinstance(node, TreeFile):
        return {**common, "type": "directory"}
    return {**common, "type": "file", "size": node.size, "content_type": node.content_type}


def _lines(
    found: Sequence[tuple[bytes, "TreeNode"]], is_long: bool, is_readable: bool
) -> Iterator[str]:
    from skymount.fs.skylinks.tree import TreeFile

    rows = [
        (readable_size(node.size) if is_readable else str(node.size), node.content_type or "-")
        if isinstance(node, TreeFile)
        else ("-", "-")
        for _, node in found
    ]
    sizes = max((len(size) for size, _ in rows), default=0)
    types = max((len(visible(kind)) for _, kind in rows), default=0)
    for (path, node), (size, kind) in zip(found, rows, strict=True):
        name = path.decode() + ("" if isinstance(node, TreeFile) else "/")
        if not is_long:
            yield name
        else:
            yield f"{stat.filemode(node.mode)} {size:>{sizes}} {visible(kind):<{types}} {name}"


@click.command()
@click.argument(
    "links", metavar="LINK...", nargs=-1, required=True, shell_complete=completion.files
)
@click.option("--force", is_flag=True, help="Write binary data to a terminal, too.")
@reading_options
def cat(links: tuple[str, ...], force: bool, settings: "Config") -> None:
    """Write the content of each LINK to stdout.

    LINK names a file, or a directory with a single file in it. Content that mounts keep on disk is
    read without a portal.

    \b
    Examples:
      skymount cat SKYLINK
      skymount cat SKYLINK/a/film.mkv | mpv -
    """
    from skymount.cli.link_target import ParsedLink
    from skymount.cli.session import content, run

    parsed = [ParsedLink.parse(link) for link in links]
    run(content(settings), lambda opened: _cat(opened, parsed, force))


async def _cat(content: "Content", links: Sequence["ParsedLink"], force: bool) -> None:
    from skymount.cli.link_target import open_target

    for link in links:
        await write_out(content, await open_target(content, link), force=force)


async def write_out(
    content: "Content", target: "LinkTarget", destination: str = "-", *, force: bool = False
) -> int:
    """Write the file that a target is to a stream, stdout by default; return its size in bytes."""
    import trio

    from skymount.cli.link_target import warn_of_unverified
    from skymount.cli.staging import pieces

    skyfile, file = target.tree.skyfile, target.single_file()
    if file is None:
        files = [found for _, found in target.files()]
        if len(files) != 1 or target.hidden():
            raise click.ClickException(
                f"{visible(target.link.text)}: it is a directory; name a file in it"
            )
        file = files[0]
    warn_of_unverified(target.link.text, target.verified, content.settings.verify)
    async with open_stream(destination) as out:
        for at, length in pieces(skyfile, file.offset, file.size):
            data = await content.reader.read(skyfile, at, length)
            is_first = at == file.offset
            if is_first and not force and os.isatty(out) and _is_binary(bytes(data[:8192])):
                raise click.ClickException(
                    f"{visible(target.link.text)}: it is binary, and would garble the terminal; "
                    "send it to a file or a program, or add --force"
                )
            # abandoned on cancel: a pipe that nobody reads must not keep the command from ending
            await trio.to_thread.run_sync(write_all, out, data, abandon_on_cancel=True)
    return file.size


def _is_binary(data: bytes) -> bool:
    return b"\0" in data or b"\x1b" in data


@click.command()
@click.argument("link", shell_complete=completion.files)
@reading_options
@click.option("--pretty", is_flag=True, help="Print over several lines.")
@json_option
def metadata(link: str, pretty: bool, as_json: bool, settings: "Config") -> None:
    """Print the metadata of LINK, as stored: a JSON object.

    --json prints an object with metadata, content_type, skylink and verified ("yes" or "no"). The
    content type is always what a portal says.

    \b
    Examples:
      skymount metadata SKYLINK
      skymount metadata SKYLINK | jq -r '.subfiles | keys[]'
    """
    from skymount.cli.link_target import ParsedLink, warn_of_unverified
    from skymount.cli.session import content, run

    parsed = ParsedLink.parse(link)
    result = run(content(settings), lambda opened: _metadata(opened, parsed))
    warn_of_unverified(parsed.text, result.verified, settings.verify)
    value = asdict(result) if as_json else result.metadata
    indent, separators = (2, None) if pretty else (None, (",", ":"))
    click.echo(json.dumps(value, indent=indent, separators=separators))


async def _metadata(content: "Content", link: "ParsedLink") -> "MetadataResult":
    from skymount.cli.link_target import check_verifiable, naming_absent_content, resolve_link
    from skymount.policies import Verified, VerifyPolicy
    from skymount.portal.client.metadata import get_metadata
    from skymount.portal.client.verification import ContentProofs
    from skymount.portal.ledger.revision_marks import RevisionMarks

    check_verifiable(content, link)
    found = await resolve_link(content, link)
    inner = found.path.decode("utf-8", "surrogateescape")
    is_verifiable = found.verified and not link.is_domain

    async def ask(client: "PortalReader") -> "MetadataResult":
        target, proof, _ = await ContentProofs(client.http, RevisionMarks()).find(
            found.skylink, client.options
        )
        result = await get_metadata(client.http, target, inner, client.options, proof)
        return result if is_verifiable else replace(result, verified=Verified.NO)

    with naming_absent_content(link.text):
        if content.settings.verify is VerifyPolicy.OFF or not is_verifiable:
            return await content.portals.first(ask)
        result, _ = await content.portals.best(ask, lambda each: each.verified is Verified.YES)
        return result
