"""``skymount status``: how the mounts of this user are doing."""

import errno
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

import click

from skymount.cli import completion
from skymount.cli.options import PathType
from skymount.cli.output import emit, json_option
from skymount.errors import MountError
from skymount.wording import visible

if TYPE_CHECKING:
    from skymount.cli.mount_probe import MountAnswer
    from skymount.fs.mountpoint import MountInfo

_INTERVAL = 1.0  # seconds


@click.command()
@click.argument("path", required=False, type=PathType(), shell_complete=completion.mounted_paths)
@json_option
@click.option("--watch", is_flag=True, help="Show it again each second, until interrupted.")
def status(path: str | None, as_json: bool, watch: bool) -> None:
    """Show how your mounts are doing, or the one at PATH, or what is known of a file in one.

    For each mount: its portals and their health, caches, files in use, requests under way,
    registry entries that portals have not got yet, and the last errors. A mount that does not
    answer within 2 s is shown as such. Exit code 1 if a mount does not work.

    With --json the result is a list; `status` is the mount's .skymount/status.json. With --watch
    there is one such line each second.

    For a file or directory in a mount: its extended attributes, such as where it came from,
    whether it is verified, and its last error. With --json they are the object `attributes`.

    \b
    Examples:
      skymount status
      skymount status ~/sky --watch
      skymount status ~/sky/registry/home/profile
      skymount status --json | jq '.[].status.portal_health'
    """
    from skymount.cli.mount_probe import MountProber, MountState
    from skymount.cli.status_report import checked

    prober = MountProber()
    inside = None if path is None else _inside(path)
    if inside is not None and all(
        each.state is MountState.RUNNING for each in prober.ask(dict([inside]))
    ):
        _print_attributes(os.path.abspath(os.path.expanduser(path or "")), as_json)
        return
    mounts = None if inside is None else dict([inside])

    def ask() -> "list[MountAnswer]":
        return [checked(each) for each in prober.ask(mounts or _mounts(path))]

    if watch:
        _watch(ask, as_json)
        return
    answers = ask()
    _print(answers, as_json)
    if any(each.state is not MountState.RUNNING for each in answers):
        sys.exit(1)


def _inside(named: str) -> "tuple[str, MountInfo] | None":
    """Return the mount that a path leads into, below its root."""
    from skymount.fs.mountpoint import mount_around

    found = mount_around(os.path.abspath(os.path.expanduser(named)))
    if found is not None:
        found[1].check_owner(found[0])
    return found


def _print_attributes(path: str, as_json: bool) -> None:
    from skymount.fs.subtree import ATTRIBUTES

    found: dict[str, str] = {}
    failure: OSError | None = None
    for name in sorted(ATTRIBUTES):
        try:
            found[name] = os.getxattr(path, name).decode(errors="backslashreplace")
        except OSError as error:
            if error.errno not in (errno.ENODATA, errno.EOPNOTSUPP):
                failure = error
    width = max((len(name) for name in found), default=0)
    rows = [f"  {name:<{width}}  {value}" for name, value in found.items()]
    if found or failure is None:
        emit({"path": path, "attributes": found}, as_json, [path, *rows])
    if failure is not None:
        raise MountError(f"{path}: {failure.strerror}")


def _mounts(named: str | None) -> "dict[str, MountInfo]":
    from skymount.fs import mountpoint as place

    if named is None:
        return place.mounts_of(os.getuid())
    path = place.resolve(named)
    mounted = place.mounted_at(path)
    if mounted is None:
        raise MountError(f"{path}: nothing is mounted there")
    if not mounted.is_ours:
        raise MountError(f"{path}: {mounted.kind} is mounted there, not skymount")
    mounted.check_owner(path)
    return {path: mounted}


def _print(answers: "Sequence[MountAnswer]", as_json: bool) -> None:
    from skymount.cli.status_report import facts, report

    emit([facts(each) for each in answers] if as_json else None, as_json, report(answers))


def _watch(ask: "Callable[[], Sequence[MountAnswer]]", as_json: bool) -> None:
    """Show it each second until interrupted; a broken pipe is left to the caller."""
    with suppress(KeyboardInterrupt):
        if os.isatty(1) and not as_json:
            _redraw(ask)
        while True:
            _print(ask(), as_json)
            if not as_json:
                click.echo()
            sys.stdout.flush()
            time.sleep(_INTERVAL)


def _redraw(ask: "Callable[[], Sequence[MountAnswer]]") -> NoReturn:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from skymount.cli.status_report import report

    with Live(console=Console(highlight=False), screen=True, auto_refresh=False) as live:
        while True:
            shown = "\n".join(visible(line) for line in report(ask()))
            live.update(Text(shown, overflow="ellipsis", no_wrap=True), refresh=True)
            time.sleep(_INTERVAL)
