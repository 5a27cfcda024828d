"""``skymount portal list``, ``show``, ``remove``, ``pin``, ``unpin``, ``gc`` and ``verify``."""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from skymount.cli.commands.portal_data.storage_options import with_storage
from skymount.cli.output import emit, interruption, json_option, progress, warn
from skymount.errors import MalformedError, NotFoundError
from skymount.wording import counted, readable_size

if TYPE_CHECKING:
    from skymount.server.config import PortalConfig
    from skymount.server.control import Outcome
    from skymount.server.storage.catalogue_rows import CatalogueRow
    from skymount.server.storage.retention.pin_store import Pin
    from skymount.wire.skylink import Skylink

_links = click.argument("skylinks", metavar="SKYLINK...", nargs=-1, required=True)


def duration(context: click.Context, parameter: click.Parameter, value: str | None) -> float:
    """Parse an option; 0 without it."""
    from skymount.values import parse_duration

    try:
        return parse_duration(value) if value is not None else 0
    except MalformedError as error:
        raise click.BadParameter(str(error)) from None


def size(context: click.Context, parameter: click.Parameter, value: str | None) -> int:
    """Parse an option; 0 without it."""
    from skymount.values import parse_size

    try:
        found = parse_size(value) if value is not None else 0
    except MalformedError as error:
        raise click.BadParameter(str(error)) from None
    if value is not None and not found:
        raise click.BadParameter("it must be more than 0")
    return found


@click.command("list")
@with_storage
@click.option("--search", default="", metavar="TEXT", help="Only what has this in its name.")
@click.option(
    "--limit",
    type=click.IntRange(1, 1_000_000),
    default=1000,
    show_default=True,
    help="Print at most so many, the newest.",
)
@click.option(
    "--start",
    type=click.IntRange(min=0),
    default=0,
    metavar="NUMBER",
    help="Leave out so many, the newest.",
)
@json_option
def list_(config: "PortalConfig", search: str, limit: int, start: int, as_json: bool) -> None:
    """List what a portal stores, newest first.

    It may run meanwhile.

    \b
    Examples:
      skymount portal list
      skymount portal list --search report --json | jq -r '.[].skylink'
    """
    from skymount.server.storage.cluster.choice import open_reader

    with open_reader(config) as reader:
        rows, total = reader.page(search, start, limit)
        pins = reader.pins([row.skylink for row in rows])
    emit(
        [_described(row, pins.get(row.skylink)) for row in rows],
        as_json,
        (_line(row, pins.get(row.skylink)) for row in rows),
    )
    if left := max(0, total - start - len(rows)):
        warn(f"{left:,} more are not listed: see --limit and --start")


def _line(row: "CatalogueRow", pin: "Pin | None") -> str:
    name = row.name or ("(encrypted)" if row.is_encrypted else "(no name)")
    marked = "pinned" if pin else "-"
    return f"{row.skylink}  {readable_size(row.size):>10}  {_time(row.stored)}  {marked:6}  {name}"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def _described(row: "CatalogueRow", pin: "Pin | None") -> dict[str, Any]:
    return {
        "skylink": str(row.skylink),
        "name": row.name,
        "size": row.size,
        "disk": row.disk,
        "files": row.files,
        "encrypted": row.is_encrypted,
        "stored": row.stored,
        "pinned": pin.pinned if pin else None,
        "reason": pin.reason if pin else None,
    }


@click.command()
@click.argument("skylink", metavar="SKYLINK")
@with_storage
@json_option
def show(skylink: str, config: "PortalConfig", as_json: bool) -> None:
    """Show what a portal stores of one skylink.

    It may run meanwhile.

    \b
    Example:
      skymount portal show SKYLINK
    """
    from skymount.server.storage.cluster.choice import open_reader

    (parsed,) = _skylinks([skylink])
    with open_reader(config) as reader:
        row = reader.row(parsed)
        if row is None:
            raise NotFoundError(f"{parsed} is not stored")
        pin = reader.pins([parsed]).get(parsed)
    shown = _described(row, pin)
    lines = [
        f"skylink: {parsed}",
        f"name: {row.name or '(not known)'}",
        f"content: {readable_size(row.size)}"
        + (f", {counted(row.files, 'file')}" if row.files else ""),
        f"on disk: {readable_size(row.disk)}" + (", encrypted" if row.is_encrypted else ""),
        f"stored: {_time(row.stored)} UTC",
        "pinned: " + (f"{_time(pin.pinned)} UTC {pin.reason}".rstrip() if pin else "no"),
    ]
    emit(shown, as_json, lines)


def _skylinks(links: Sequence[str]) -> "list[Skylink]":
    from skymount.wire.skylink import parse_skylink

    found = [parse_skylink(link) for link in links]
    for skylink in found:
        if skylink.version != 1:
            raise MalformedError(f"{skylink} names a registry entry; content has a v1 skylink")
    return found


def _send(
    config: "PortalConfig", action: str, links: Sequence[str] = (), **given: Any
) -> "Outcome":
    from skymount.server import control

    names = [str(skylink) for skylink in _skylinks(links)]
    return control.send(config, control.Command(action, names, **given))  # type: ignore[arg-type]


def _report(outcome: "Outcome", wanted: str, as_json: bool) -> None:
    """Print what became of each skylink; exit 1 unless all are as `wanted`."""
    rows = [{"skylink": link, "result": said} for link, said in outcome.skylinks.items()]
    emit(rows, as_json, (f"{row['skylink']} {row['result']}" for row in rows))
    if set(outcome.skylinks.values()) != {wanted}:
        sys.exit(1)


@click.command()
@_links
@with_storage
@click.option("--even-pinned", is_flag=True, help="Remove what is pinned, with its pin.")
@json_option
def remove(
    skylinks: tuple[str, ...], config: "PortalConfig", even_pinned: bool, as_json: bool
) -> None:
    """Remove content from a portal.

    What is pinned stays. A portal that runs on --data does it itself. Other portals and caches may
    have the content still.

    \b
    Examples:
      skymount portal remove SKYLINK
      skymount portal remove --even-pinned SKYLINK
    """
    outcome = _send(config, "remove", skylinks, even_pinned=even_pinned)
    if "pinned" in outcome.skylinks.values():
        warn("what is pinned was kept; --even-pinned removes it, too")
    _report(outcome, "removed", as_json)


@click.command()
@_links
@with_storage
@click.option("--reason", default="", metavar="TEXT", help="Why it is kept.")
@json_option
def pin(skylinks: tuple[str, ...], config: "PortalConfig", reason: str, as_json: bool) -> None:
    """Keep content, whatever --keep says.

    \b
    Example:
      skymount portal pin SKYLINK --reason "release 1.2"
    """
    _report(_send(config, "pin", skylinks, reason=reason), "pinned", as_json)


@click.command()
@_links
@with_storage
@json_option
def unpin(skylinks: tuple[str, ...], config: "PortalConfig", as_json: bool) -> None:
    """Let content go when it is old.

    It is not removed now.

    \b
    Example:
      skymount portal unpin SKYLINK
    """
    _report(_send(config, "unpin", skylinks), "unpinned", as_json)


@click.command()
@with_storage
@click.option(
    "--keep",
    required=True,
    callback=duration,
    metavar="DURATION",
    help="Remove what was stored longer ago, like 30d or 12h, and is not pinned.",
)
@json_option
def gc(config: "PortalConfig", keep: float, as_json: bool) -> None:
    """Remove old content that is not pinned.

    A portal that runs on --data does it itself.

    \b
    Example:
      skymount portal gc --keep 30d
    """
    import time

    outcome = _send(config, "sweep", before=time.time() - keep)
    line = f"{counted(outcome.skyfiles, 'skyfile')} removed, {readable_size(outcome.bytes)}"
    emit({"skyfiles": outcome.skyfiles, "bytes": outcome.bytes}, as_json, [line])


@click.command()
@click.argument("skylinks", metavar="[SKYLINK]...", nargs=-1)
@with_storage
@json_option
def verify(skylinks: tuple[str, ...], config: "PortalConfig", as_json: bool) -> None:
    """Compare what a portal stores with its skylinks.

    All of it is read, or what is named. A portal may run meanwhile. If something is damaged, it is
    printed, all else is read, and the exit code is 1.

    \b
    Examples:
      skymount portal verify
      skymount portal verify SKYLINK
    """
    from skymount.server.storage.cluster.choice import open_reader
    from skymount.server.storage.retention import verification

    asked = _skylinks(skylinks) if skylinks else None
    damaged: list[dict[str, str]] = []
    skyfiles = read = 0
    seen = set[str]()

    def outcome() -> str:
        return f"{counted(skyfiles, 'skyfile')} checked, {len(damaged):,} damaged: not all were"

    with interruption(outcome), open_reader(config) as reader, progress() as show_progress:
        for found in verification.verify(reader, asked):
            skyfiles, read = skyfiles + 1, read + found.size
            seen.update([str(found.skylink)] if asked else [])
            if found.problem:
                damaged.append({"skylink": str(found.skylink), "problem": found.problem})
            if show_progress:
                show_progress(read, None)
    absent = [str(link) for link in asked or () if str(link) not in seen]
    damaged += [{"skylink": link, "problem": "it is not stored"} for link in absent]
    lines = [f"{one['skylink']}: {one['problem']}" for one in damaged]
    lines.append(f"{counted(skyfiles, 'skyfile')}, {readable_size(read)}: {len(damaged):,} damaged")
    report = {"skyfiles": skyfiles, "bytes": read, "damaged": damaged}
    emit(report, as_json, lines)
    if damaged:
        sys.exit(1)


COMMANDS = (list_, show, remove, pin, unpin, gc, verify)
