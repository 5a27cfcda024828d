"""``skymount mount`` and ``skymount umount``."""

import contextlib
import os
import select
import signal
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skymount import file_permissions
from skymount.cli import completion
from skymount.cli.options import PathType, load_settings, setting_options
from skymount.cli.output import own_descriptor, warn
from skymount.errors import ConfigError, MountError, StorageError
from skymount.settings import SETTINGS, Config
from skymount.wording import visible

if TYPE_CHECKING:
    from skymount.fs.mountpoint import MountInfo

_SETTINGS = [name for name, each in SETTINGS.items() if each.options]

_EXIT_GRACE = 5.0  # seconds that a daemon may take to exit after the unmount
_TERM_TIMEOUT = 25.0  # seconds that it may take after SIGTERM
_PID_TIMEOUT = 2.0  # seconds for a mount to answer with its process id


@click.command()
@click.argument("mountpoint", required=False, shell_complete=completion.directories)
@setting_options(*_SETTINGS)
@click.option(
    "--name",
    metavar="NAME",
    shell_complete=completion.mount_names,
    help="Use the table [mounts.NAME] of the configuration.",
)
@click.option("-f", "--foreground", is_flag=True, help="Stay in the foreground, and log to stderr.")
@click.option("-v", "--verbose", "log_level", flag_value="debug", help="As --log-level debug.")
def mount(mountpoint: str | None, name: str | None, foreground: bool, **flags: Any) -> None:
    """Mount a portal at the directory MOUNTPOINT.

    Goes to the background once the mount is ready. If no portal is named anywhere, the one at the
    default address is used; if none is there, an embedded portal runs as long as the mount.

    \b
    Examples:
      skymount mount ~/sky
      skymount mount ~/sky --portal https://portal.example
      skymount mount --name home --foreground
    """
    from skymount import config
    from skymount.daemon import log
    from skymount.daemon.daemonize import run_in_background
    from skymount.daemon.mount_service import run
    from skymount.daemon.readiness import Report
    from skymount.fs import mountpoint as place
    from skymount.fs import obstacles
    from skymount.portal.ledger import ledger

    if name == "":
        raise click.UsageError("--name: it is empty; write the NAME of a table [mounts.NAME]")
    if flags["config_file"]:
        flags["config_file"] = os.path.abspath(flags["config_file"])  # it may be read again
    settings = load_settings(name=name or "", mountpoint=mountpoint, **flags)
    if not settings.mountpoint:
        raise ConfigError(
            "no mount point: name a directory, or set mountpoint in the configuration"
        )
    ledger.default_path()  # StorageError without a home, which every mount needs
    path = place.resolve(settings.mountpoint)
    settings = replace(settings, mountpoint=path)

    def reread() -> Config:
        return load_settings(name=name or "", mountpoint=path, **flags)

    if foreground:
        log.log_to_stderr(settings.log_level)
        run(settings, Report(ready=lambda portals: None, warning=lambda text: None), reread)
        return
    obstacles.check(allow_other=settings.allow_other)
    place.check(settings.mountpoint, clear=False)
    log_file = settings.log_file or config.default_log_file(settings.mountpoint)
    descriptor = own_descriptor(log_file)
    if descriptor in (1, 2):  # all others are closed in the background
        begin_log = partial(log.log_to_descriptor, descriptor, settings.log_level)
    else:
        log_file = _writable(log_file, is_default=not settings.log_file)
        begin_log = partial(log.log_to, log_file, settings.log_level)
    started = run_in_background(settings, begin_log, reread)
    for warning in started.warnings:
        warn(warning)
    if os.isatty(2):
        said = f"mounted at {settings.mountpoint}; portal: {started.portals}; log: {log_file}"
        click.echo(visible(said), err=True)


def _writable(path: str, *, is_default: bool) -> str:
    """Create the log file, and its directory if that is the default; return the absolute path.

    It is that of no file, with a warning, if the default cannot be written.
    """
    path = os.path.abspath(os.path.expanduser(path))
    if not is_default:  # the user may choose a link, but nobody else where the default leads
        path = os.path.realpath(path)
    try:
        if is_default:
            for each in (Path(path).parents[1], Path(path).parent):
                file_permissions.make_directory(each)
                file_permissions.restrict_directory(each)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        return path
    except OSError as error:
        if is_default:
            warn(f"{path}: {error.strerror}; nothing is logged, but for --log-file FILE elsewhere")
            return os.devnull
        raise MountError(
            f"{path}: the log cannot be written there: {error.strerror}; choose another --log-file"
        ) from None


@click.command()
@click.argument(
    "mountpoints",
    metavar="[MOUNTPOINT]...",
    nargs=-1,
    type=PathType(),
    shell_complete=completion.mounted_paths,
)
@click.option(
    "--name",
    metavar="NAME",
    shell_complete=completion.mount_names,
    help="Unmount what the table [mounts.NAME] of the configuration names.",
)
@click.option(
    "-z", "--lazy", is_flag=True, help="Detach now; the daemon ends when the mount is unused."
)
@click.option(
    "--kill", is_flag=True, help="End the daemon also if other mount namespaces use the mount."
)
def umount(mountpoints: tuple[str, ...], name: str | None, lazy: bool, kill: bool) -> None:
    """Unmount each MOUNTPOINT and wait until its daemon has ended.

    If it is mounted elsewhere too, as in a container, the daemon goes on, and a warning says so.
    Another one says how many changes of registry entries are still to be posted.

    \b
    Example:
      skymount umount ~/sky
      skymount umount --name home
    """
    if name:
        named = load_settings(name=name).mountpoint
        if not named:
            raise ConfigError(f"[mounts.{name}] has no mountpoint")
        mountpoints = (*mountpoints, named)
    if not mountpoints:
        raise click.UsageError("name a mount point, or a table of the configuration with --name")
    for each in mountpoints:
        _unmount(each, lazy=lazy, kill=kill)
    _warn_of_pending()


def _unmount(mountpoint: str, *, lazy: bool, kill: bool) -> None:
    from skymount.fs import mountpoint as place

    path = place.resolve(mountpoint)
    mounted = place.mounted_at(path)
    if mounted is None and kill:
        _terminate(_daemon_left_by(path), path)
        return
    if mounted is None:
        raise MountError(f"{path}: nothing is mounted there")
    if not mounted.is_ours:
        raise MountError(f"{path}: {mounted.kind} is mounted there, not skymount")
    mounted.check_owner(path)
    try:
        daemon = _daemon_of(path, mounted)
    except TimeoutError:  # who asks uses the mount as long as nobody answers
        if not lazy:
            from skymount.cli.mount_probe import no_answer

            said = no_answer(path, mounted, _PID_TIMEOUT).reason
            raise MountError(f"{path}: {said}") from None
        daemon = None
    before = place.all_mounts_of(mounted)
    place.unmount(path, lazy=lazy)
    others = before & place.all_mounts_of(mounted)
    is_used = bool(others) or place.is_connected(mounted)
    if kill:
        _terminate(_only_daemon_of(path, mounted) if daemon is None else daemon, path)
    elif daemon is not None and not lazy and not _has_ended(daemon, _EXIT_GRACE):
        others &= place.all_mounts_of(mounted)
        if not is_used or (not others and not place.is_connected(mounted)):
            _terminate(daemon, path)  # it waits for an operation
            return
        where = min(map(str, others), default="elsewhere")
        warn(
            f"{path}: unmounted here, but also mounted {where}; its daemon goes on; "
            f"`skymount umount --kill {path}` ends it"
        )


def _daemon_left_by(path: str) -> int:
    """Return a descriptor of the daemon that an earlier `umount` left to other mount namespaces: it
    runs in ours. MountError if there is none.
    """
    from skymount.fs import mountpoint as place

    for found, mounted in place.all_mounts():
        if found.pid and found.path == path:
            pid = _pid_named_by(f"/proc/{found.pid}/root{path}")
            if pid and place.is_in_our_namespace(pid) and place.is_served_by(mounted, pid):
                mounted.check_owner(path)
                return os.pidfd_open(pid)
    raise MountError(f"{path}: nothing is mounted there")


def _only_daemon_of(path: str, mounted: "MountInfo") -> int:
    """Return a descriptor of the process that serves a mount; MountError if it cannot be told."""
    from skymount.fs import mountpoint as place

    found = place.daemons_of(mounted)
    if len(found) != 1:
        raise MountError(f"{path}: unmounted, but its daemon cannot be told")
    return os.pidfd_open(found[0])


def _terminate(daemon: int, path: str) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(daemon, signal.SIGTERM)
    if not _has_ended(daemon, _TERM_TIMEOUT):
        raise MountError(f"{path}: unmounted, but its daemon is still running")


def _warn_of_pending() -> None:
    """Warn of pending registry entries, which only a mount would post by itself."""
    from skymount.portal.ledger.ledger import Ledger
    from skymount.portal.ledger.outbox import owed_summary, summary

    with contextlib.closing(Ledger.of_user()) as ledger:
        if not ledger.path.exists():
            return
        try:
            texts = [summary(ledger.count_unsent()), owed_summary(ledger.totals())]
        except StorageError as error:
            texts = [str(error)]
    for text in filter(None, texts):
        warn(text)


def _has_ended(process: int, limit: float) -> bool:
    return bool(select.select([process], [], [], limit)[0])


def _daemon_of(path: str, mounted: "MountInfo") -> int | None:
    """Return a descriptor of the daemon's process, if it can be told; TimeoutError."""
    from skymount.fs.mountpoint import is_served_by

    pid = _pid_named_by(path)
    if pid is None:
        return None
    try:
        process = os.pidfd_open(pid)  # before the check: the number may be reused
    except (OSError, OverflowError):
        return None
    if is_served_by(mounted, pid) or _has_ended(process, 0):
        return process
    os.close(process)
    warn(
        f"{path}: it names process {pid}, which does not serve this mount for its owner; "
        "its daemon is not waited for"
    )
    return None


def _pid_named_by(path: str) -> int | None:
    answer: list[int] = []

    def ask() -> None:
        with contextlib.suppress(OSError, ValueError):
            answer.append(int(os.getxattr(path, "user.skymount.pid")))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_PID_TIMEOUT)
    if asking.is_alive():
        raise TimeoutError
    return answer[0] if answer else None
