"""A portal as a process of its own: signals, standard streams, interpreter settings."""

import logging
import math
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import nullcontext, suppress
from functools import partial

import trio

from skymount import process_hardening
from skymount.errors import SkymountError
from skymount.large_buffers import give_own_pages, limit_addresses
from skymount.server.config import PortalConfig
from skymount.server.http_server import listen, serve
from skymount.server.monitoring import shared_counts
from skymount.server.storage.cluster.choice import open_storage
from skymount.server.storage.cluster.migrations import Tables
from skymount.server.workers import Workers

_log = logging.getLogger(__name__)

_ABORT_TIME = 7.0  # seconds after that of running requests; shared storage loses nothing then
_SWITCH_INTERVAL = 0.0005  # seconds that hashing threads may keep the event loop waiting


def run(
    config: PortalConfig,
    *,
    on_listening: Callable[[str], None],
    until_eof: int | None = None,
    listener: socket.socket | None = None,
    stop_signals: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGINT),
) -> None:
    """Serve until one of `stop_signals`, or also until the file of a descriptor ends. A second
    signal that is SIGINT ends running requests at once.

    `listener` is a socket to accept connections from, in place of one at the address of `config`.
    """
    process_hardening.harden_service()
    limit_addresses()
    give_own_pages()
    _raise_file_limit()
    if config.has_log_file:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until that is open
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    sys.setswitchinterval(_SWITCH_INTERVAL)
    served = partial(serve, config, on_listening=on_listening, listener=listener)
    abort_time = config.graceful_timeout + _ABORT_TIME if config.cluster else math.inf
    trio.run(_run, served, until_eof, abort_time, stop_signals)


def _raise_file_limit() -> None:
    """Let this process have as many files open as it may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def run_workers(
    config: PortalConfig,
    count: int,
    *,
    on_listening: Callable[[str], None],
    listener: socket.socket | None = None,
) -> int:
    """Serve by several processes, as `run` does by this one; return the exit code."""
    process_hardening.harden_service()
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)

    def work(listening: socket.socket, tell: Callable[[str], None], life: int) -> int:
        try:
            run(
                config,
                on_listening=tell,
                until_eof=life,
                listener=listening,
                stop_signals=(signal.SIGTERM,),
            )
        except SkymountError as error:
            sys.stderr.write(f"skymount: {error}\n")
            return 1
        return 0

    open_storage(config, Tables.UPDATE)  # imports what all processes need, which they then share
    with listen(config, listener) as listening:
        workers = Workers(count, listening, work, on_listening, config.graceful_timeout)
        if config.has_log_file:
            workers.pass_on_hangups()
        with shared_counts() if config.metrics else nullcontext():
            return workers.run()


async def _run(
    served: Callable[..., Awaitable[None]],
    until_eof: int | None,
    abort_time: float,
    stop_signals: tuple[signal.Signals, ...],
) -> None:
    shutdown = trio.Event()
    failure: SkymountError | None = None
    with trio.open_signal_receiver(*stop_signals) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_stop_on_signal, signals, shutdown, nursery.cancel_scope)
            if until_eof is not None:
                nursery.start_soon(_set_on_eof, until_eof, shutdown)
            if abort_time < math.inf:
                nursery.start_soon(_abort_when_late, shutdown, abort_time)
            try:
                await served(shutdown=shutdown)
            except SkymountError as error:  # raised below: the nursery would wrap it in a group
                failure = error
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _abort_when_late(shutdown: trio.Event, abort_time: float) -> None:
    """End this process so many seconds after `shutdown`, whatever its threads wait for."""
    await shutdown.wait()
    late = threading.Timer(abort_time, _abort)
    late.daemon = True
    late.start()


def _abort() -> None:
    _log.warning("ended without an answer of the object store or the database")
    os._exit(0)


async def _stop_on_signal(
    signals: AsyncIterator[int], shutdown: trio.Event, serving: trio.CancelScope
) -> None:
    async for number in signals:
        if shutdown.is_set() and number == signal.SIGINT:
            serving.cancel()
        shutdown.set()


async def _set_on_eof(descriptor: int, shutdown: trio.Event) -> None:
    """Read and drop a file until it ends."""
    while await trio.to_thread.run_sync(os.read, descriptor, 4096, abandon_on_cancel=True):
        pass
    shutdown.set()
