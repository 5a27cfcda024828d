"""``skymount status``: how the mounts of this user are doing."""

import errno
import os
import sys
from typing import TYPE_CHECKING

import click

from skymount.cli import completion
from skymount.cli.options import PathType, removed_option
from skymount.cli.output import emit, json_option
from skymount.errors import MountError

if TYPE_CHECKING:
    from skymount.fs.mountpoint import MountInfo


@click.command()
@click.argument("path", required=False, type=PathType(), shell_complete=completion.mounted_paths)
@json_option
@removed_option("--watch", "`watch skymount status` shows it again and again", is_flag=True)
def status(path: str | None, as_json: bool) -> None:
    """Show how your mounts are doing, or the one at PATH, or what is known of a file in one.

    For each mount: its portals and their health, caches, files in use, requests under way,
    registry entries that portals have not got yet, and the last errors. A mount that does not
    answer within 2 s is shown as such. Exit code 1 if a mount does not work.

    With --json the result is a list; `status` is the mount's .skymount/status.json.

    For a file or directory in a mount: its extended attributes, such as where it came from,
    whether it is verified, and its last error. With --json they are the object `attributes`.

    \b
    Examples:
      skymount status
      watch skymount status ~/sky
      skymount status ~/sky/registry/home/profile
      skymount status --json | jq '.[].status.portal_health'
    """
    from skymount.cli.mount_probe import MountProber, MountState
    from skymount.cli.status_report import checked, facts, report

    prober = MountProber()
    inside = None if path is None else _inside(path)
    if inside is not None and all(
        each.state is MountState.RUNNING for each in prober.ask(dict([inside]))
    ):
        _print_attributes(os.path.abspath(os.path.expanduser(path or "")), as_json)
        return
    mounts = _mounts(path) if inside is None else dict([inside])
    answers = [checked(each) for each in prober.ask(mounts)]
    emit([facts(each) for each in answers] if as_json else None, as_json, report(answers))
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
