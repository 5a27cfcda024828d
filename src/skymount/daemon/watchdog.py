"""Gives systemd's watchdog signs of life while the mount answers."""

import logging
import os
from collections.abc import Callable
from functools import partial

import trio

from skymount import systemd

log = logging.getLogger(__name__)

_SIGNS_PER_TIMEOUT = 3


async def feed_watchdog(mountpoint: str) -> None:
    """Tell the watchdog that this mount lives, if systemd watches it, for as long as it does."""
    timeout = systemd.watchdog_timeout(os.environ)
    if timeout is not None:
        # statfs always reaches the daemon, through the kernel; stat may be answered from a cache.
        await give_signs_of_life(partial(os.statvfs, mountpoint), timeout)


async def give_signs_of_life(ask: Callable[[], object], timeout: float) -> None:
    """Send ``WATCHDOG=1`` several times in `timeout` seconds, each time after `ask` has returned.

    `ask` runs in a thread. If it fails or does not return, nothing is sent.
    """
    one_at_a_time = trio.CapacityLimiter(1)
    while True:
        try:
            await trio.to_thread.run_sync(ask, abandon_on_cancel=True, limiter=one_at_a_time)
        except OSError as error:
            log.warning("the mount does not answer: %s", error.strerror)
        else:
            systemd.notify("WATCHDOG=1")
        await trio.sleep(timeout / _SIGNS_PER_TIMEOUT)
