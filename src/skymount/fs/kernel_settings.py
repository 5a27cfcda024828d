"""Sets how large the kernel's requests are, and how many may be in flight at once."""

import logging
import os

log = logging.getLogger(__name__)

_READ_AHEAD = 1024
"""KiB for each read, the size of pyfuse3's buffers. With the kernel's default of 128, a file is
read at half the speed."""

_MAX_BACKGROUND = 64
"""Reads in flight. With the kernel's default of 12, sixteen readers do a quarter fewer random reads
at 50 ms each."""

_CONGESTION_THRESHOLD = 48  # reads in flight beyond which the kernel reads nothing ahead


def tune(mountpoint: str, *, read_ahead: bool) -> None:
    """Set what this process may set; only root may set `read_ahead`. Waits for a stat."""
    device = os.stat(mountpoint).st_dev
    connection = f"/sys/fs/fuse/connections/{device}"
    settings = {
        f"{connection}/max_background": _MAX_BACKGROUND,
        f"{connection}/congestion_threshold": _CONGESTION_THRESHOLD,
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
