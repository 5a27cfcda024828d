"""What commands use: a client, content, or what changes entries. `run` opens one and calls with it.

Errors leave `run` bare, in no group.
"""

import logging
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import trio

from skymount.cli import ENDING_SIGNALS
from skymount.cli.key_argument import open_ledger
from skymount.cli.output import interruption, warn
from skymount.content.opening import Content, ContentSettings, DiskSettings, open_content
from skymount.errors import PortalError
from skymount.portal.client.base import PortalReader
from skymount.portal.client.registry import GET_TIMEOUT
from skymount.portal.http.retry import RetryPolicy
from skymount.settings import Config

if TYPE_CHECKING:
    from skymount.portal.client.client import PortalClient
    from skymount.portal.ledger.entries import EntryId
    from skymount.portal.ledger.ledger import Ledger
    from skymount.portal.ledger.outbox import Pending
    from skymount.wire.registry_entry import SignedEntry

S = TypeVar("S", bound=Content | PortalReader)
T = TypeVar("T")

_PATIENCE = 2.0  # seconds without a byte until it is told who is waited for
_LOOK = 0.5  # seconds between two looks
_MIN_MEMORY_CACHE = 1 << 20  # bytes; without any, each part of a unit would fetch all of it


def client(
    settings: Config, *, writes: bool = False
) -> "AbstractAsyncContextManager[PortalClient]":
    """Open a client of the first portal, or the first one that is not read-only."""
    from skymount.portal.client.client import PortalClient

    url = settings.writing_url if writes else settings.portal_urls[0]
    made = PortalClient.of(replace(settings.portal_options[url], idle_timeout=settings.timeout))
    made.http.retry = made.node.retry = RetryPolicy(after_silence=False)
    return _telling(made)


def content(
    settings: Config,
    *,
    wait: float = GET_TIMEOUT,
    cached: bool = True,
    gave_up: "Callable[[Pending], None] | None" = None,
) -> AbstractAsyncContextManager[Content]:
    """Open all portals, and what reads content and entries.

    `wait` is seconds that a portal may look for an entry. If `cached`, content that mounts keep on
    disk is read from there. `gave_up` is told of writes that were superseded.
    """
    return _telling(
        open_content(
            ContentSettings(
                portals=settings.portal_options,
                silence=settings.timeout,
                after_silence=False,
                recalls=True,
                verify=settings.verify,
                memory=max(settings.memory_cache, _MIN_MEMORY_CACHE),
                disk=DiskSettings(0) if cached and settings.disk_cache else None,
                look=wait,
                writes=settings.registry_writes,
                gave_up=gave_up,
                warn=warn,
            )
        )
    )


def run(opened: AbstractAsyncContextManager[S], function: Callable[[S], Awaitable[T]]) -> T:
    """Call a function with what `client` or `content` opens; return its result.

    A signal cancels it, so that it removes its temporary files.
    """

    async def main() -> T:
        async with opened as found:
            return await function(found)

    logging.getLogger("skymount").addHandler(logging.NullHandler())  # failures are raised too
    try:
        # An interrupt between two steps that belong together would leave a file behind.
        return trio.run(_until_signal, main, restrict_keyboard_interrupt_to_checkpoints=True)
    except BaseExceptionGroup as group:
        leaves = list(_leaves(group))
        interrupts = [leaf for leaf in leaves if isinstance(leaf, KeyboardInterrupt)]
        cause = (interrupts or leaves)[0]
        raise cause from cause.__cause__


@asynccontextmanager
async def _telling(opened: AbstractAsyncContextManager[S]) -> AsyncIterator[S]:
    async with opened as found, trio.open_nursery() as beside:
        if os.isatty(2):
            clients = found.portals.clients if isinstance(found, Content) else [found]
            beside.start_soon(_tell_of_silence, clients)
        yield found
        beside.cancel_scope.cancel()


async def _tell_of_silence(clients: Iterable[PortalReader]) -> None:
    """Tell whoever looks on which portals are waited for, once of each."""
    told = set[str]()
    while True:
        await trio.sleep(_LOOK)
        now = trio.current_time()
        for http in (http for client in clients for http in (client.http, client.node)):
            since, until = min(http.waits, default=(now, now))
            if now >= since + _PATIENCE and http.url not in told:
                told.add(http.url)
                left = f"{until - now:.0f} s more at most (see --timeout)"
                warn(f"waiting for {http.url}, which sends nothing, for {left}")


def change(
    settings: Config,
    function: Callable[[Content], Awaitable[T]],
    entry: "EntryId | None" = None,
    interrupted: str = "nothing was changed",
) -> T:
    """`run` what changes an entry, and say what became of that if it fails, or a signal ends it;
    without an entry that is `interrupted`. StorageError when the ledger cannot be used.
    """
    from skymount.cli.pending_entries import warn_of_dropped

    begun: list[_KnownEntry] = []

    async def main(opened: Content) -> T:
        ledger = opened.ledger
        ledger.prepare()
        if entry is None:
            return await function(opened)
        begun.append(_known(ledger, entry))
        try:
            return await function(opened)
        except PortalError as error:
            if _known(ledger, entry).pending <= begun[0].pending:
                raise
            kept = "; it is kept, see `skymount registry pending`"
            raise error.explained(after=kept) from error

    def outcome() -> str:
        if entry is None or not begun:
            return interrupted
        with open_ledger() as ledger:
            found = _known(ledger, entry)
        if not found.pending <= begun[0].pending:
            return "the change is kept, see `skymount registry pending`"
        if found.newest != begun[0].newest:
            return "the entry was changed, but not all portals have answered"
        return "the entry is as it was"

    with interruption(outcome):
        return run(content(settings, cached=False, gave_up=warn_of_dropped), main)


class _KnownEntry(NamedTuple):
    """What the ledger knows of an entry."""

    newest: "SignedEntry | None"
    pending: frozenset[int]
    """The numbers of its changes that are not posted."""


def _known(ledger: "Ledger", entry: "EntryId") -> _KnownEntry:
    key = entry.public_key, entry.tweak
    found = ledger.pending()
    pending = frozenset(each.id for each in found if (each.public_key, each.tweak) == key)
    return _KnownEntry(ledger.newest_entry(*key), pending)


async def _until_signal(main: Callable[[], Awaitable[T]]) -> T:
    """Run it; SystemExit if a signal ended it, once its clean-up is done."""
    numbers = [
        number
        for number in ENDING_SIGNALS
        if signal.getsignal(number) is not signal.SIG_IGN  # nohup ignores SIGHUP
    ]
    result: list[T] = []
    stopped = 0
    with trio.open_signal_receiver(*numbers) as signals:
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                nonlocal stopped
                async for number in signals:
                    stopped = number
                    nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            result.append(await main())
            nursery.cancel_scope.cancel()
    if not result:
        raise SystemExit(128 + stopped)
    return result[0]


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error
