"""Runs a mount as a daemon, which forks and reports to the starting process."""

import contextlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from skymount.daemon.mount_service import run
from skymount.daemon.readiness import Report
from skymount.errors import MountError, MountRefusedError
from skymount.fs.mountpoint import mounted_at
from skymount.settings import Config

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Started:
    """What a daemon said until its mount was ready."""

    portals: str
    warnings: list[str]


def run_in_background(
    config: Config, log_to: Callable[[], None], reread: Callable[[], Config] | None = None
) -> Started:
    """Fork a daemon that runs the mount; return what it said once the mount is ready.

    MountError if the daemon fails. `reread` is as in `run`. No thread may have been started before.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _close_inherited(writing)
        _become_daemon(config, log_to, writing, reread)
    os.close(writing)
    warnings: list[str] = []
    with os.fdopen(reading, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            kind, text = line[0], line[1:].rstrip("\n")
            if kind == "R":
                return Started(text, warnings)
            if kind in "EN":
                os.waitpid(pid, 0)
                raise (MountRefusedError if kind == "N" else MountError)(text)
            warnings.append(text)
    raise MountError(f"{config.mountpoint}: the daemon ended before the tree answered; see its log")


def _close_inherited(kept: int) -> None:
    """Close all descriptors but 0 to 2 and `kept`: a lock or a pipe of the caller would be held
    until the mount ends.
    """
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != kept:
            with contextlib.suppress(OSError):  # the listing's own is closed already
                os.close(int(name))


def _become_daemon(
    config: Config,
    log_to: Callable[[], None],
    pipe: int,
    reread: Callable[[], Config] | None,
) -> None:
    """Run the mount. A line in the pipe is R with the portals, or W, E or N with a message:
    N if nothing can be mounted here.
    """
    mounted = mounted_at(config.mountpoint)
    is_automount = mounted is not None and mounted.is_automount
    is_open = True

    def tell(kind: str, text: str) -> None:
        message = f"{kind}{' '.join(text.split())}\n"
        if is_open:  # once closed the number may be another file's
            with contextlib.suppress(BrokenPipeError):  # the starting process was interrupted
                os.write(pipe, message.encode("utf-8", "backslashreplace"))

    def ready(portals: str) -> None:
        nonlocal is_open
        if is_automount:
            os.setsid()
        tell("R", portals)
        is_open = False
        os.close(pipe)

    status = 1
    try:
        if not is_automount:  # the process group of systemd may enter it, others wait for the mount
            os.setsid()
        os.chdir("/")
        log_to()
        run(config, Report(ready=ready, warning=partial(tell, "W")), reread)
        status = 0
    except MountError as error:
        log.error("%s", error)
        tell("N" if isinstance(error, MountRefusedError) else "E", str(error))
    except BaseException as error:
        log.exception("the daemon failed")
        tell("E", f"{config.mountpoint}: {error!r}")
    finally:
        logging.shutdown()
        os._exit(status)
