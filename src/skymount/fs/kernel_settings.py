"""Owns what the kernel is told of a mount beyond the mount's own options: how large its requests
are to be, and how many may be under way.
"""

import logging
import os

log = logging.getLogger(__name__)

_READ_AHEAD = 1024
"""KiB that are asked for at a time; more would not fit pyfuse3's buffers. With the kernel's own 128
a file is read with eight times as many requests, at half the speed.
"""

_BACKGROUND = 64
"""Reads that are under way at once. With the kernel's own 12, sixteen readers wait for each other:
a quarter fewer random reads a second, at 50 ms each.
"""

_CONGESTED = 48  # reads, from which on none is made ahead: three quarters, as the kernel has it


def tune(mountpoint: str, *, read_ahead: bool) -> None:
    """Set what may be set: the read-ahead, if wanted, is root's, the rest also the mount's owner's.

    Returns once the tree answers a stat.
    """
    device = os.stat(mountpoint).st_dev
    connection = f"/sys/fs/fuse/connections/{device}"
    settings = {
        f"{connection}/max_background": _BACKGROUND,
        f"{connection}/congestion_threshold": _CONGESTED,
    }
    if read_ahead:
        name = f"{os.major(device)}:{os.minor(device)}"
        settings[f"/sys/class/bdi/{name}/read_ahead_kb"] = _READ_AHEAD
    for path, value in settings.items():
        try:
            with open(path, "w") as file:
                file.write(str(value))
        except OSError as error:
            log.debug("%s: %s", path, error.strerror)
