"""Owns what a mount tells of itself: to the one who started it, and to systemd."""

import errno
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import trio

from skymount.config import Config
from skymount.daemon.embedded_portal import PROBE, EmbeddedPortal, answers
from skymount.fs import kernel_settings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Report:
    """How the daemon tells its starter what happens; called from the event loop."""

    ready: Callable[[], None]
    warning: Callable[[str], None]


async def announce(config: Config, report: Report, own: EmbeddedPortal) -> None:
    """Say that the tree answers, once a stat through the kernel does."""
    warning = await _portal_warning(config, own)
    if warning:
        log.warning(warning)
        report.warning(warning)
    tune = partial(kernel_settings.tune, config.mountpoint, read_ahead=config.read_ahead)
    await trio.to_thread.run_sync(tune, abandon_on_cancel=True)
    log.info("%s: mounted, portals: %s", config.mountpoint, " ".join(config.portal_urls))
    notify(f"READY=1\nSTATUS=mounted at {config.mountpoint}")
    report.ready()
    if not config.portals:
        await own.keep()


async def _portal_warning(config: Config, own: EmbeddedPortal) -> str:
    """Return what is to be said of the portals that do not answer, if anything."""
    started = own.was_started
    if started and await own.is_listening():
        return ""
    silent = list(config.portal_urls)

    async def probe(url: str) -> None:
        if await trio.to_thread.run_sync(answers, url, abandon_on_cancel=True):
            silent.remove(url)

    # a limit of its own: finding the address of a host has none
    with trio.move_on_after(2 * PROBE):
        async with trio.open_nursery() as probes:
            for url in config.portal_urls:
                probes.start_soon(probe, url)
    if not silent:
        return ""
    failed = "our own portal did not start, see the log; " if started else ""
    return f"{failed}{' '.join(silent)} does not answer yet; the tree works once it does"


def notify(state: str) -> None:
    """Tell systemd, if it asked to be told (sdnotify(3))."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notify:
            notify.sendto(state.encode(), address)
    except OSError as error:
        log.warning("NOTIFY_SOCKET: %s", error.strerror or errno.errorcode.get(error.errno or 0))
