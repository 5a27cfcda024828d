"""Opens portals, caches and the ledger for a command. Errors leave it bare, in no group."""

import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    closing,
    contextmanager,
    suppress,
)
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import trio

from skymount.cli import ENDING_SIGNALS
from skymount.cli.key_argument import open_ledger
from skymount.cli.output import interruption, warn
from skymount.errors import (
    CacheError,
    PortalError,
)
from skymount.policies import VerifyPolicy, WritePolicy
from skymount.portal.client.client import PortalClient
from skymount.settings import Config
from skymount.wire.dialect import Dialect
from skymount.wire.skylink import Skylink

if TYPE_CHECKING:
    from skymount.content.cache.disk_cache import DiskCache
    from skymount.content.fetch.reader import ContentReader
    from skymount.portal.client.upload import UploadBody
    from skymount.portal.failover.portals import Portals
    from skymount.portal.ledger.ledger import Ledger
    from skymount.portal.ledger.revision_marks import EntryId
    from skymount.portal.registry.entry_state import EntryState
    from skymount.portal.registry.lazy_registry import LazyRegistry
    from skymount.portal.registry.verified_registry import VerifiedRegistry
    from skymount.wire.key_pair import SigningKeyPair
    from skymount.wire.registry_entry import SignedEntry

T = TypeVar("T")

_MIN_MEMORY_CACHE = 1 << 20  # bytes; without any, each part of a unit would fetch all of it


@dataclass(frozen=True, slots=True)
class ContentSession:
    """What a command reads content with: all portals, and a reader that verifies."""

    portals: "Portals"
    reader: "ContentReader"
    policy: VerifyPolicy
    registry: "LazyRegistry"


@dataclass(frozen=True, slots=True)
class WriteSession:
    """What a command changes entries with: all portals, the registry and the ledger."""

    portals: "Portals"
    registry: "VerifiedRegistry"
    ledger: "Ledger"
    policy: WritePolicy
    """How many portals must have what is written."""
    before: "dict[EntryId, SignedEntry | None]" = field(default_factory=dict)
    """The newest known revision of each entry as its change began."""

    def outcome(self) -> str:
        """Say what became of the changes, if something else than an error ended them."""
        pending = {(each.public_key, each.tweak) for each in self.ledger.pending()}
        for entry, before in self.before.items():
            if (entry.public_key, entry.tweak) in pending:
                return "the change is kept, see `skymount registry pending`"
            if self.ledger.newest_entry(entry.public_key, entry.tweak) != before:
                return "the entry was changed, but not all portals have answered"
        return "the entry is as it was"

    @property
    def dialect(self) -> Dialect:
        return self.portals.clients[0].dialect

    async def publish(
        self, entry: "EntryId", pair: "SigningKeyPair", body: "UploadBody"
    ) -> tuple[Skylink, "EntryState"]:
        """Upload content to all portals, then set an entry to it; an error as of `set`."""
        from skymount.cli.uploads import upload_everywhere, write_uploaded

        skylink, lacking = await upload_everywhere(self.portals, body, self.policy)

        async def write(lacking: Collection[str]) -> "EntryState":
            data = bytes(skylink)
            return await self.registry.write(entry, pair, data, None, lacking=lacking)

        with self._explaining_spool(entry):
            return skylink, await write_uploaded(write, self.portals, body, skylink, lacking)

    async def set(self, entry: "EntryId", pair: "SigningKeyPair", data: bytes) -> "EntryState":
        """Set an entry, whatever it holds; an error says if the spool keeps the change."""
        with self._explaining_spool(entry):
            return await self.registry.write(entry, pair, data, None)

    async def delete(self, entry: "EntryId", pair: "SigningKeyPair") -> "EntryState":
        with self._explaining_spool(entry):
            return await self.registry.delete(entry, pair)

    @contextmanager
    def _explaining_spool(self, entry: "EntryId") -> Iterator[None]:
        self.before[entry] = self.ledger.newest_entry(entry.public_key, entry.tweak)
        try:
            yield
        except PortalError as error:
            pending = {(each.public_key, each.tweak) for each in self.ledger.pending()}
            if (entry.public_key, entry.tweak) not in pending:
                raise
            kept = "; it is kept, see `skymount registry pending`"
            raise error.explained(after=kept) from error


def run_with_client(
    settings: Config,
    function: Callable[[PortalClient], Awaitable[T]],
    ledger: "Ledger | None" = None,
    *,
    writes: bool = False,
) -> T:
    """Run a function with a client of one portal; return its result.

    It is the first portal, or what the user wants to write to: the first that is not read-only.
    """
    url = settings.writing_url if writes else settings.portal_urls[0]
    options = replace(settings.portal_options[url], idle_timeout=settings.timeout)

    async def main() -> T:
        async with PortalClient.of(options, ledger) as client:
            return await function(client)

    return _run(main)


def run_with_portals(settings: Config, function: Callable[["Portals"], Awaitable[T]]) -> T:
    """Run a function with all portals; return its result."""

    async def main() -> T:
        async with _open_portals(settings) as portals:
            return await function(portals)

    return _run(main)


def run_with_content(
    settings: Config,
    function: Callable[[ContentSession], Awaitable[T]],
    registry_timeout: float | None = None,
) -> T:
    """Run a function that reads content. `registry_timeout` limits the search for an entry."""
    from skymount.content.cache.memory_cache import MemoryCache
    from skymount.content.fetch.reader import open_reader
    from skymount.content.fetch.skyfile_loader import SkyfileLoader

    async def main() -> T:
        async with _open_portals(settings) as portals, _open_disk_cache(settings) as disk_cache:
            cache = MemoryCache(max(settings.memory_cache, _MIN_MEMORY_CACHE))
            loader = SkyfileLoader(portals, settings.verify)
            async with open_reader(portals, loader, cache, disk_cache) as reader:
                with closing(_registry(portals, settings, registry_timeout)) as registry:
                    return await function(
                        ContentSession(portals, reader, settings.verify, registry)
                    )

    return _run(main)


def run_with_registry(
    settings: Config, function: Callable[["VerifiedRegistry"], Awaitable[T]], timeout: float
) -> T:
    """Run a function that reads entries, as `LazyRegistry` does; return its result."""

    async def main() -> T:
        async with _open_portals(settings) as portals:
            with closing(_registry(portals, settings, timeout)) as registry:
                return await function(await registry.open())

    return _run(main)


def run_with_writes(
    settings: Config,
    function: Callable[[WriteSession], Awaitable[T]],
    interrupted: str = "",
) -> T:
    """Run a function that changes entries; StorageError when the ledger cannot be used.

    `interrupted` is what to say if a signal ends it, in place of what became of the entry.
    """
    from skymount.cli.pending_entries import warn_of_dropped
    from skymount.portal.registry.verified_registry import VerifiedRegistry

    begun: list[WriteSession] = []

    def outcome() -> str:
        return interrupted or (begun[0].outcome() if begun else "nothing was changed")

    with open_ledger() as ledger, interruption(outcome):

        async def main() -> T:
            async with _open_portals(settings) as portals:
                policy = settings.registry_writes
                registry = VerifiedRegistry(portals, ledger, gave_up=warn_of_dropped, policy=policy)
                begun.append(WriteSession(portals, registry, ledger, policy))
                return await function(begun[0])

        return _run(main)


def _registry(portals: "Portals", settings: Config, timeout: float | None) -> "LazyRegistry":
    from skymount.portal.registry.lazy_registry import LazyRegistry

    return LazyRegistry(portals, settings.verify, warn, timeout)


def _open_portals(settings: Config) -> "AbstractAsyncContextManager[Portals]":
    from skymount.portal.failover.portals import open_portals

    return open_portals(settings.portal_options, settings.timeout)


@asynccontextmanager
async def _open_disk_cache(settings: Config) -> "AsyncIterator[DiskCache | None]":
    """Open what mounts keep on disk, for reading only; None when it cannot be used."""
    from skymount.content.cache.block_store import BlockStore, default_path
    from skymount.content.cache.disk_cache import DiskCache
    from skymount.content.cache.write_behind import open_write_behind

    store = None
    if settings.disk_cache:
        with suppress(CacheError):
            store = BlockStore.existing(default_path(), 0)
    if store is None:
        yield None
        return
    async with open_write_behind(store) as queue:
        yield DiskCache(queue, settings.portal_urls, settings.verify)


def _run(main: Callable[[], Awaitable[T]]) -> T:
    """Run it to its end; a signal cancels it, so that it removes its temporary files."""
    logging.getLogger("skymount").addHandler(logging.NullHandler())  # failures are raised too
    try:
        # An interrupt between two steps that belong together would leave a file behind.
        return trio.run(_until_signal, main, restrict_keyboard_interrupt_to_checkpoints=True)
    except BaseExceptionGroup as group:
        leaves = list(_leaves(group))
        interrupts = [leaf for leaf in leaves if isinstance(leaf, KeyboardInterrupt)]
        cause = (interrupts or leaves)[0]
        raise cause from cause.__cause__


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
