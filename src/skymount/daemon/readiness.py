"""Sets the size and number of the kernel's requests, and reports when a mount is ready."""

import logging
import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

import trio

from skymount import systemd
from skymount.daemon.embedded_portal import EmbeddedPortal
from skymount.daemon.watchdog import feed_watchdog
from skymount.errors import StorageError
from skymount.fs.skylinks.waiting_reads import KERNEL_LIMIT, WaitingReads
from skymount.portal.http.client import HttpClient
from skymount.portal.http.portal_check import problem_with
from skymount.portal.ledger.ledger import Ledger, default_path
from skymount.settings import DEFAULT_SVC_PORTAL_URL, Config
from skymount.storage.write_check import write_problem

log = logging.getLogger(__name__)

CHECK_LIMIT = 2.0
"""Seconds that portals get to answer; only warnings depend on it."""

# With the kernel's defaults (128 KiB, 12 requests) a file is read at half the speed, and sixteen
# readers do a quarter fewer random reads at 50 ms each. Reads that hang take up places too.
_READ_AHEAD = 1024  # KiB for each read, the size of pyfuse3's buffers
_MAX_BACKGROUND = 256  # reads in flight
_CONGESTION_THRESHOLD = 48  # reads in flight beyond which the kernel reads nothing ahead


@dataclass(frozen=True, slots=True)
class Report:
    """Callbacks that tell the starting process what happens; called from the event loop."""

    ready: Callable[[str], None]
    """Takes what is said of the portals: their addresses."""
    warning: Callable[[str], None]


async def announce(
    config: Config, report: Report, embedded: EmbeddedPortal, reads: WaitingReads
) -> None:
    """Report that the mount is ready, once it answers; then keep an embedded portal running."""
    of_own = await _embedded_warnings(embedded)
    tune = partial(_tune_kernel, config.mountpoint, read_ahead=config.read_ahead)
    reads.limit = await trio.to_thread.run_sync(tune, abandon_on_cancel=True)
    log.info("%s: mounted, portals: %s", config.mountpoint, " ".join(config.portal_urls))
    systemd.notify(f"READY=1\nSTATUS=mounted at {config.mountpoint}")
    of_ledger = await trio.to_thread.run_sync(_ledger_warning, abandon_on_cancel=True)
    for warning in filter(None, [*of_own, *await _portal_warnings(config, embedded), of_ledger]):
        log.warning("%s", warning)
        report.warning(warning)
    report.ready(_portals(config, embedded))
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


def _portals(config: Config, embedded: EmbeddedPortal) -> str:
    """Return the addresses of the portals, and whose it is if this mount started one."""
    return " ".join(config.portal_urls) + ", which runs with this mount" * embedded.is_running


async def _embedded_warnings(embedded: EmbeddedPortal) -> list[str]:
    """Wait for the embedded portal if it was started; return what there is to say of it."""
    found = []
    if embedded.foreign_uid is not None:
        found.append(
            f"{DEFAULT_SVC_PORTAL_URL}: another user (uid {embedded.foreign_uid}) listens there, "
            f"and is not used by default; your own portal is at {embedded.url}"
        )
    if embedded.was_started and not await embedded.is_listening():
        reason = embedded.last_line.partition(" See `")[0].rstrip(".") or "it said nothing"
        found.append(f"the embedded portal did not start: {reason}; name one with --portal URL")
    return found


async def _portal_warnings(config: Config, embedded: EmbeddedPortal) -> list[str]:
    """Return what keeps portals from being used: each is sent one request."""
    if embedded.was_started:
        return []
    problems = dict.fromkeys(config.portal_urls, "")

    async def check(url: str) -> None:
        options = config.portal_options[url]
        once = replace(options, connect_timeout=CHECK_LIMIT, idle_timeout=CHECK_LIMIT, retries=0)
        http = HttpClient(url, once)
        try:
            problems[url] = await problem_with(http, CHECK_LIMIT)
        finally:
            await http.aclose()

    async with trio.open_nursery() as checks:
        for url in problems:
            checks.start_soon(check, url)
    return [each for each in problems.values() if each]


def _ledger_warning() -> str:
    """Return what keeps the mount from keeping what it knows of registry entries."""
    problem = write_problem(default_path().parent)
    if not problem and default_path().exists():
        with closing(Ledger.of_user()) as ledger:
            try:
                ledger.prepare()
            except StorageError as error:  # another version has it open, say
                problem = str(error)
    if not problem:
        return ""
    return (
        f"{problem}; until that is mended entries and documents cannot be written, and old entries "
        "that portals show go unnoticed"
    )
