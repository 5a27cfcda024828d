"""The signals of a mount: what ends it, and what it reads again."""

import logging
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import trio

from skymount.process_hardening import has_terminal

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SignalActions:
    """What signals do."""

    unmount: Callable[[], None]
    """Takes no more requests; those under way go on."""
    reload: Callable[[], Awaitable[None]]


@contextmanager
def receiving() -> Iterator[AsyncIterator[int]]:
    """Receive signals until the end of the block."""
    numbers = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1]
    if not _is_ignored():
        numbers.append(signal.SIGHUP)
    with trio.open_signal_receiver(*numbers) as signals:
        yield signals


async def handle(
    signals: AsyncIterator[int], actions: SignalActions, scope: trio.CancelScope, grace: float
) -> None:
    """Handle signals. The first one that ends the mount leaves `grace` seconds to what is under
    way; the second one cancels it.
    """
    ending = {signal.SIGTERM, signal.SIGINT}
    if has_terminal():
        ending.add(signal.SIGHUP)  # the terminal was closed
    async for number in signals:
        if number in ending:
            log.info("%s: unmounting", signal.Signals(number).name)
            if scope.deadline < float("inf"):
                scope.cancel()
            actions.unmount()
            scope.deadline = trio.current_time() + grace
        elif number == signal.SIGHUP:
            await actions.reload()
        else:  # it told this itself once, and must not end a mount now
            log.warning("SIGUSR1: `py-spy dump --pid %d` shows what the mount does", os.getpid())


def _is_ignored() -> bool:
    """Whether SIGHUP is to be ignored: under nohup, at a terminal."""
    return signal.getsignal(signal.SIGHUP) is signal.SIG_IGN and has_terminal()
