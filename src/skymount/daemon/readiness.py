"""Tells the process that started a mount, and systemd, when the mount is ready."""

import errno
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import trio

from skymount.config import Config
from skymount.daemon.embedded_portal import PROBE_TIMEOUT, EmbeddedPortal, is_reachable
from skymount.fs import kernel_settings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Report:
    """Callbacks that tell the starting process what happens; called from the event loop."""

    ready: Callable[[], None]
    warning: Callable[[str], None]


async def announce(config: Config, report: Report, embedded: EmbeddedPortal) -> None:
    """Report that the mount is ready, once a stat through the kernel succeeds.

    Then keep an embedded portal running, if the mount depends on one.
    """
    warning = await _portal_warning(config, embedded)
    if warning:
        log.warning(warning)
        report.warning(warning)
    tune = partial(kernel_settings.tune, config.mountpoint, read_ahead=config.read_ahead)
    await trio.to_thread.run_sync(tune, abandon_on_cancel=True)
    log.info("%s: mounted, portals: %s", config.mountpoint, " ".join(config.portal_urls))
    notify_systemd(f"READY=1\nSTATUS=mounted at {config.mountpoint}")
    report.ready()
    if not config.portals:
        await embedded.keep_running()


async def _portal_warning(config: Config, embedded: EmbeddedPortal) -> str:
    """Return a warning about portals that cannot be reached, empty if there are none."""
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


def notify_systemd(state: str) -> None:
    """Send systemd a state, if it asked for it (sd_notify(3))."""
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
