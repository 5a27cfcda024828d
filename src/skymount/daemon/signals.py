"""The signals of a mount: what ends it, and what it reads again."""

import logging
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager

import trio

from skymount.process_hardening import has_terminal

log = logging.getLogger(__name__)


@contextmanager
def receiving() -> Iterator[AsyncIterator[int]]:
    """Receive signals until the end of the block."""
    numbers = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1]
    if not _is_ignored():
        numbers.append(signal.SIGHUP)
    with trio.open_signal_receiver(*numbers) as signals:
        yield signals


async def handle(
    signals: AsyncIterator[int],
    unmount: Callable[[], None],
    reload: Callable[[], Awaitable[None]],
    scope: trio.CancelScope,
    grace: float,
) -> None:
    """Handle signals. The first one that ends the mount lets it take no more requests, and leaves
    `grace` seconds to those under way; the second one cancels them.
    """
    ending = {signal.SIGTERM, signal.SIGINT}
    if has_terminal():
        ending.add(signal.SIGHUP)  # the terminal was closed
    async for number in signals:
        if number in ending:
            log.info("%s: unmounting", signal.Signals(number).name)
            if scope.deadline < float("inf"):
                scope.cancel()
            unmount()
            scope.deadline = trio.current_time() + grace
        elif number == signal.SIGHUP:
            await reload()
        else:  # it told this itself once, and must not end a mount now
            log.warning("SIGUSR1: `py-spy dump --pid %d` shows what the mount does", os.getpid())


def _is_ignored() -> bool:
    """Whether SIGHUP is to be ignored: under nohup, at a terminal."""
    return signal.getsignal(signal.SIGHUP) is signal.SIG_IGN and has_terminal()
