"""What commands use: a client, content, or what changes entries. `run` opens one and calls with it.

Errors leave `run` bare, in no group.
"""

import logging
import signal
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import trio

from skymount.cli import ENDING_SIGNALS
from skymount.cli.key_argument import open_ledger
from skymount.cli.output import interruption, warn
from skymount.content.opening import Content, ContentSettings, DiskSettings, open_content
from skymount.errors import PortalError
from skymount.portal.client.registry import GET_TIMEOUT
from skymount.settings import Config

if TYPE_CHECKING:
    from skymount.portal.client.client import PortalClient
    from skymount.portal.client.upload import UploadBody
    from skymount.portal.ledger.ledger import Ledger
    from skymount.portal.ledger.pending_write import PendingWrite
    from skymount.portal.ledger.revision_marks import EntryId
    from skymount.portal.registry.entry_state import EntryState
    from skymount.wire.key_pair import SigningKeyPair
    from skymount.wire.registry_entry import SignedEntry
    from skymount.wire.skylink import Skylink

S = TypeVar("S")
T = TypeVar("T")

_MIN_MEMORY_CACHE = 1 << 20  # bytes; without any, each part of a unit would fetch all of it


def client(
    settings: Config, *, writes: bool = False
) -> "AbstractAsyncContextManager[PortalClient]":
    """Open a client of the first portal, or the first one that is not read-only."""
    from skymount.portal.client.client import PortalClient

    url = settings.writing_url if writes else settings.portal_urls[0]
    return PortalClient.of(replace(settings.portal_options[url], idle_timeout=settings.timeout))


def content(
    settings: Config,
    *,
    wait: float = GET_TIMEOUT,
    cached: bool = True,
    gave_up: "Callable[[PendingWrite], None] | None" = None,
) -> AbstractAsyncContextManager[Content]:
    """Open all portals, and what reads content and entries.

    `wait` is seconds that a portal may look for an entry. If `cached`, content that mounts keep on
    disk is read from there. `gave_up` is told of writes that were superseded.
    """
    return open_content(
        ContentSettings(
            portals=settings.portal_options,
            silence=settings.timeout,
            verify=settings.verify,
            memory=max(settings.memory_cache, _MIN_MEMORY_CACHE),
            disk=DiskSettings(0) if cached and settings.disk_cache else None,
            look=wait,
            writes=settings.registry_writes,
            gave_up=gave_up,
            warn=warn,
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


@dataclass(frozen=True, slots=True)
class WriteSession:
    """What a command changes entries with."""

    content: Content
    before: "dict[EntryId, SignedEntry | None]" = field(default_factory=dict)
    """The newest known revision of each entry as its change began."""

    def outcome(self, ledger: "Ledger") -> str:
        """Say what became of the changes, if something else than an error ended them."""
        for entry, before in self.before.items():
            if _is_pending(ledger, entry):
                return "the change is kept, see `skymount registry pending`"
            if ledger.newest_entry(entry.public_key, entry.tweak) != before:
                return "the entry was changed, but not all portals have answered"
        return "the entry is as it was"

    async def publish(
        self, entry: "EntryId", pair: "SigningKeyPair", body: "UploadBody"
    ) -> "tuple[Skylink, EntryState]":
        """Upload content to all portals, then set an entry to it; an error as of `set`."""
        from skymount.cli.uploads import upload_everywhere, write_uploaded

        portals = self.content.portals
        skylink, lacking = await upload_everywhere(portals, body, self.content.settings.writes)

        async def write(lacking: Collection[str]) -> "EntryState":
            registry, data = self.content.registry, bytes(skylink)
            return await registry.write(entry, pair, data, None, lacking=lacking)

        with self._explaining_spool(entry):
            return skylink, await write_uploaded(write, portals, body, skylink, lacking)

    async def set(self, entry: "EntryId", pair: "SigningKeyPair", data: bytes) -> "EntryState":
        """Set an entry, whatever it holds; an error says if the spool keeps the change."""
        with self._explaining_spool(entry):
            return await self.content.registry.write(entry, pair, data, None)

    async def delete(self, entry: "EntryId", pair: "SigningKeyPair") -> "EntryState":
        with self._explaining_spool(entry):
            return await self.content.registry.delete(entry, pair)

    @contextmanager
    def _explaining_spool(self, entry: "EntryId") -> Iterator[None]:
        ledger = self.content.ledger
        self.before[entry] = ledger.newest_entry(entry.public_key, entry.tweak)
        try:
            yield
        except PortalError as error:
            if not _is_pending(ledger, entry):
                raise
            kept = "; it is kept, see `skymount registry pending`"
            raise error.explained(after=kept) from error


def change(
    settings: Config,
    function: Callable[[WriteSession], Awaitable[T]],
    interrupted: str = "",
) -> T:
    """`run` what changes entries; StorageError when the ledger cannot be used.

    `interrupted` is what to say if a signal ends it, in place of what became of the entry.
    """
    from skymount.cli.pending_entries import warn_of_dropped

    begun: list[WriteSession] = []

    async def main(opened: Content) -> T:
        opened.ledger.prepare()
        begun.append(WriteSession(opened))
        return await function(begun[0])

    def outcome() -> str:
        if interrupted or not begun:
            return interrupted or "nothing was changed"
        with open_ledger() as ledger:
            return begun[0].outcome(ledger)

    with interruption(outcome):
        return run(content(settings, cached=False, gave_up=warn_of_dropped), main)


def _is_pending(ledger: "Ledger", entry: "EntryId") -> bool:
    found = ledger.pending()
    return any((each.public_key, each.tweak) == (entry.public_key, entry.tweak) for each in found)


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
