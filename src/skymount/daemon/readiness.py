"""Sets the size and number of the kernel's requests, and reports when a mount is ready."""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import trio

from skymount import systemd
from skymount.config import Config
from skymount.daemon.embedded_portal import PROBE_TIMEOUT, EmbeddedPortal, is_reachable
from skymount.daemon.watchdog import feed_watchdog
from skymount.fs.skylinks.waiting_reads import KERNEL_LIMIT, WaitingReads

log = logging.getLogger(__name__)

# With the kernel's defaults (128 KiB, 12 requests) a file is read at half the speed, and sixteen
# readers do a quarter fewer random reads at 50 ms each. Reads that hang take up places too.
_READ_AHEAD = 1024  # KiB for each read, the size of pyfuse3's buffers
_MAX_BACKGROUND = 256  # reads in flight
_CONGESTION_THRESHOLD = 48  # reads in flight beyond which the kernel reads nothing ahead


@dataclass(frozen=True, slots=True)
class Report:
    """Callbacks that tell the starting process what happens; called from the event loop."""

    ready: Callable[[], None]
    warning: Callable[[str], None]


async def announce(
    config: Config, report: Report, embedded: EmbeddedPortal, reads: WaitingReads
) -> None:
    """Report that the mount is ready, once it answers; then keep an embedded portal running."""
    warning = await _portal_warning(config, embedded)
    if warning:
        log.warning(warning)
        report.warning(warning)
    tune = partial(_tune_kernel, config.mountpoint, read_ahead=config.read_ahead)
    reads.limit = await trio.to_thread.run_sync(tune, abandon_on_cancel=True)
    log.info("%s: mounted, portals: %s", config.mountpoint, " ".join(config.portal_urls))
    systemd.notify(f"READY=1\nSTATUS=mounted at {config.mountpoint}")
    report.ready()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed_watchdog, config.mountpoint)
        if not config.portals:
            nursery.start_soon(embedded.keep_running)


def _tune_kernel(mountpoint: str, *, read_ahead: bool) -> int:
    """Set what this process may set; only root may set `read_ahead`. Waits for a stat.

    Returns how many background requests the kernel sends at once.
    """
    limit = KERNEL_LIMIT
    device = os.stat(mountpoint).st_dev
    connection = f"/sys/fs/fuse/connections/{os.minor(device)}"
    try:
        _write(f"{connection}/max_background", _MAX_BACKGROUND)
        limit = _MAX_BACKGROUND
        _write(f"{connection}/congestion_threshold", _CONGESTION_THRESHOLD)
    except OSError as error:
        log.info(
            "the kernel's limit of background reads (%d by default) cannot be raised: %s: %s",
            KERNEL_LIMIT,
            error.filename,
            error.strerror,
        )
    if read_ahead:
        path = f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb"
        try:
            _write(path, _READ_AHEAD)
        except OSError as error:
            log.debug("%s: %s", path, error.strerror)
    return limit


def _write(path: str, value: int) -> None:
    with open(path, "w") as file:
        file.write(str(value))


async def _portal_warning(config: Config, embedded: EmbeddedPortal) -> str:
    started = embedded.was_started
    if started and await embedded.is_listening():
        return ""
    silent = list(config.portal_urls)

    async def probe(url: str) -> None:
        if await trio.to_thread.run_sync(is_reachable, url, abandon_on_cancel=True):
            silent.remove(url)

    # a limit of its own: looking up a host name has none
    with trio.move_on_after(2 * PROBE_TIMEOUT):
        async with trio.open_nursery() as probes:
            for url in config.portal_urls:
                probes.start_soon(probe, url)
    if not silent:
        return ""
    failed = "the embedded portal did not start, see the log; " if started else ""
    return f"{failed}{' '.join(silent)} does not answer yet; the tree works once it does"
