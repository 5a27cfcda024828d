"""What systemd and a service say to each other: sd_notify(3), sd_watchdog_enabled(3) and
sd_listen_fds(3).
"""

import errno
import logging
import os
import socket
from collections.abc import Mapping

from skymount.errors import ConfigError

log = logging.getLogger(__name__)

_FIRST_DESCRIPTOR = 3


def notify(state: str) -> None:
    """Send systemd a state, if it asked for it."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.sendto(state.encode(), address)
    except OSError as error:
        log.warning("NOTIFY_SOCKET: %s", error.strerror or errno.errorcode.get(error.errno or 0))


def watchdog_timeout(environ: Mapping[str, str]) -> float | None:
    """Return the seconds after which systemd ends this process if it gives no sign of life."""
    pid, microseconds = environ.get("WATCHDOG_PID", ""), environ.get("WATCHDOG_USEC", "")
    if pid not in ("", str(os.getpid())) or not _is_number(microseconds):
        return None
    return int(microseconds) / 1e6 or None


def passed_listener(environ: Mapping[str, str]) -> socket.socket | None:
    """Return the listening socket that systemd passed to this process; None if it passed none.

    ConfigError when it is not one TCP or Unix socket.
    """
    count = environ.get("LISTEN_FDS", "")
    if environ.get("LISTEN_PID") != str(os.getpid()) or not _is_number(count) or not int(count):
        return None
    if int(count) > 1:
        raise ConfigError(f"LISTEN_FDS: {int(count)} sockets were passed; one is needed")
    try:
        found = socket.socket(fileno=_FIRST_DESCRIPTOR)
    except OSError as error:
        reason = error.strerror or errno.errorcode.get(error.errno or 0)
        raise ConfigError(f"LISTEN_FDS: descriptor {_FIRST_DESCRIPTOR}: {reason}") from None
    found.set_inheritable(False)
    is_known = found.family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX)
    is_stream = is_known and found.type == socket.SOCK_STREAM
    if not is_stream or not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        found.close()
        raise ConfigError("LISTEN_FDS: what was passed is not a listening TCP or Unix socket")
    return found


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 18
