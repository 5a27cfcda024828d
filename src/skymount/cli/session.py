"""Owns the way from settings to an open client or reader, for commands that ask portals and end.

    settings = flags.load()
    result = run_with_client(settings, lambda client: client.resolve_hns(domain))

What goes wrong leaves both functions as it is, never in an exception group.
"""

import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeVar

import trio

from skymount.cli.output import warn
from skymount.config import Config
from skymount.errors import (
    AccessDeniedError,
    CacheError,
    FrozenEntryError,
    PortalError,
    RolledBackError,
    StorageError,
    UnavailableError,
)
from skymount.portal.client.client import PortalClient
from skymount.portal.options import PortalOptions

if TYPE_CHECKING:
    from skymount.content.cache.disk_cache import DiskCache
    from skymount.content.fetch.reader import ContentReader
    from skymount.content.model.skyfile import VerifyPolicy
    from skymount.portal.client.upload import UploadBody
    from skymount.portal.failover import Portals
    from skymount.portal.registry.entry_state import EntryState
    from skymount.portal.registry.ledger import Ledger
    from skymount.portal.registry.name_resolver import NameResolver
    from skymount.portal.registry.revision_marks import EntryId
    from skymount.portal.registry.verified_registry import VerifiedRegistry
    from skymount.wire.dialect import Dialect
    from skymount.wire.key_pair import KeyPair
    from skymount.wire.skylink import Skylink

T = TypeVar("T")

_LEAST_CACHE = 1 << 20  # bytes; with none at all, each part of a unit would fetch the whole of it

_ADDED = 0  # bytes of the cache on disk that a command may fill: mounts share it


@dataclass(frozen=True, slots=True)
class Reading:
    """What reads content: all portals, and a reader that checks what they send."""

    portals: "Portals"
    reader: "ContentReader"
    policy: "VerifyPolicy"
    known: "Known"


class Known:
    """What this machine knows of the registry, opened when a command first reads an entry."""

    def __init__(
        self, portals: "Portals", policy: "VerifyPolicy", look: float | None = None
    ) -> None:
        """`look` is seconds that a portal may look for an entry."""
        from skymount.portal.client.registry import GET_TIMEOUT
        from skymount.portal.registry.ledger import Ledger
        from skymount.portal.registry.verified_registry import VerifiedRegistry

        self._ledger = Ledger.of_user()
        self._policy = policy
        self._entries = VerifiedRegistry(portals, self._ledger, look=look or GET_TIMEOUT)
        self._is_open = self._is_without = False

    async def entries(self) -> "VerifiedRegistry":
        """Return what reads entries, and compares them with what was seen before.

        A ledger that cannot be used is warned of; StorageError where verification is required.
        """
        if not self._is_open:
            marks = self._entries.marks
            try:
                await marks.in_thread(self._ledger.prepare)
            except StorageError as error:
                await self._do_without(error)
            self._is_open = True
        return self._entries

    async def _do_without(self, error: StorageError) -> None:
        from skymount.content.model.skyfile import VerifyPolicy

        if self._policy is VerifyPolicy.REQUIRE:
            raise StorageError(f"{error}; with --verify require that must be mended first")
        warn(f"{error}; it may go unnoticed when a portal shows an old registry entry")
        self._is_without = True
        marks = self._entries.marks
        try:
            await marks.in_thread(self._ledger.public_keys)
        except StorageError:
            marks.ledger = None  # it cannot even be read

    async def names(self) -> "NameResolver":
        """Return what follows v2 skylinks."""
        from skymount.content.model.skyfile import VerifyPolicy
        from skymount.portal.registry.name_resolver import NameResolver, NameResolverConfig

        config = NameResolverConfig(
            check=self._policy is not VerifyPolicy.OFF, require=self._policy is VerifyPolicy.REQUIRE
        )
        entries = await self.entries()
        return NameResolver(entries.portals, entries, config)

    def close(self) -> None:
        """Close it; say so if it did not take something."""
        failure = self._entries.marks.failure
        if failure is not None and not self._is_without:
            warn(f"{failure}; what portals showed of the registry is not remembered")
        self._ledger.close()


@dataclass(frozen=True, slots=True)
class Writing:
    """What changes entries: all portals, and what this machine knows of the registry."""

    portals: "Portals"
    entries: "VerifiedRegistry"
    ledger: "Ledger"

    @property
    def dialect(self) -> "Dialect":
        """The names that the portals use."""
        return self.portals.clients[0].dialect

    async def upload(self, body: "UploadBody") -> "Skylink":
        """Send content to the first portal alone: who uploads says where to."""
        from skymount.portal.client.upload import send

        return (await send(self.portals.clients[0].transport, body)).skylink

    async def set(self, ref: "EntryId", pair: "KeyPair", data: bytes) -> "EntryState":
        """Give an entry new content, whatever it has; an error says if the spool keeps it."""
        with self._saying_what_is_kept(ref):
            return await self.entries.write(ref, pair, data, None)

    async def delete(self, ref: "EntryId", pair: "KeyPair") -> "EntryState":
        """Delete an entry; as `set`."""
        with self._saying_what_is_kept(ref):
            return await self.entries.delete(ref, pair)

    @contextmanager
    def _saying_what_is_kept(self, ref: "EntryId") -> Iterator[None]:
        try:
            yield
        except (PortalError, FrozenEntryError) as error:
            kept = {(each.public_key, each.tweak) for each in self.ledger.pending()}
            if (ref.public_key, ref.tweak) not in kept:
                raise
            text = "; it is kept, see `skymount registry pending`"
            if isinstance(error, FrozenEntryError):
                raise FrozenEntryError(f"{error}{text}") from None
            error.message = error.message.rstrip(".") + text
            raise


def run_with_client(
    settings: Config,
    function: Callable[[PortalClient], Awaitable[T]],
    ledger: "Ledger | None" = None,
) -> T:
    """Run a function with a client of the first portal; return its result."""

    async def main() -> T:
        async with PortalClient(
            settings.portal_urls[0],
            timeout=settings.timeout,
            node_url=settings.node_url,
            ledger=ledger,
            **settings.client_options,
        ) as client:
            return await function(client)

    return _run(settings, main)


def run_with_reader(
    settings: Config, function: Callable[[Reading], Awaitable[T]], look: float | None = None
) -> T:
    """Run a function with a reader that asks all portals, as a mount's does; return its result.

    `look` is seconds that a portal may look for a registry entry.
    """

    async def main() -> T:
        async with _open_reading(settings, look) as reading:
            return await function(reading)

    return _run(settings, main)


def run_with_known(
    settings: Config, function: Callable[["VerifiedRegistry"], Awaitable[T]], look: float
) -> T:
    """Run a function that reads entries, as `Known`; return its result."""

    async def main() -> T:
        async with _open_portals(settings) as portals:
            with closing(Known(portals, settings.verify, look)) as known:
                return await function(await known.entries())

    return _run(settings, main)


def run_with_entries(settings: Config, function: Callable[[Writing], Awaitable[T]]) -> T:
    """Run a function that changes entries as a mount does; return its result.

    StorageError when the ledger cannot be used.
    """
    from skymount.cli.commands.registry_spool import give_up
    from skymount.portal.registry.ledger import Ledger
    from skymount.portal.registry.verified_registry import VerifiedRegistry

    with closing(Ledger.of_user()) as ledger:
        ledger.prepare()

        async def main() -> T:
            async with _open_portals(settings) as portals:
                entries = VerifiedRegistry(portals, ledger, gave_up=give_up)
                return await function(Writing(portals, entries, ledger))

        return _run(settings, main)


@asynccontextmanager
async def _open_portals(settings: Config) -> "AsyncIterator[Portals]":
    from skymount.portal.client.base import PortalReader
    from skymount.portal.failover import Portals

    async with AsyncExitStack() as stack:
        yield Portals(
            [
                await stack.enter_async_context(
                    PortalReader.of(
                        # no repetitions: `Portals` asks the next portal instead, in rounds
                        PortalOptions.parse(
                            url, timeout=settings.timeout, retries=0, **settings.client_options
                        )
                    )
                )
                for url in settings.portal_urls
            ]
        )


@asynccontextmanager
async def _open_reading(settings: Config, look: float | None) -> AsyncIterator[Reading]:
    from skymount.content.cache.memory_cache import MemoryCache
    from skymount.content.fetch.reader import open_reader
    from skymount.content.fetch.skyfile_loader import SkyfileLoader

    async with _open_portals(settings) as portals, _open_shelf(settings) as shelf:
        cache = MemoryCache(max(settings.memory_cache, _LEAST_CACHE))
        loader = SkyfileLoader(portals, settings.verify)
        async with open_reader(portals, loader, cache, shelf) as reader:
            with closing(Known(portals, settings.verify, look)) as known:
                yield Reading(portals, reader, settings.verify, known)


@asynccontextmanager
async def _open_shelf(settings: Config) -> "AsyncIterator[DiskCache | None]":
    """Open what mounts keep on disk, to read it; a command adds nothing. None when there is none.

    One that cannot be used is not needed: `skymount cache info` says what is wrong with it.
    """
    from skymount.content.cache.block_store import BlockStore, default_path
    from skymount.content.cache.disk_cache import DiskCache
    from skymount.content.cache.write_behind import open_keeper

    store = None
    if settings.disk_cache:
        with suppress(CacheError):
            store = BlockStore.existing(default_path(), _ADDED)
    if store is None:
        yield None
        return
    async with open_keeper(store) as keeper:
        yield DiskCache(keeper, settings.portal_urls, settings.verify)


def _run(settings: Config, main: Callable[[], Awaitable[T]]) -> T:
    """Run it to its end, or to that of this process: what it made must be cleared away then."""
    logging.getLogger("skymount").addHandler(logging.NullHandler())  # what fails is raised as well
    try:
        # An interrupt between two steps that belong together would leave a file behind.
        return trio.run(_stoppable, main, restrict_keyboard_interrupt_to_checkpoints=True)
    except BaseExceptionGroup as group:
        leaves = list(_leaves(group))
        interrupts = [leaf for leaf in leaves if isinstance(leaf, KeyboardInterrupt)]
        cause = (interrupts or leaves)[0]
        raise _advised(settings, cause) from cause.__cause__
    except (UnavailableError, AccessDeniedError, RolledBackError) as error:
        raise _advised(settings, error) from error.__cause__


async def _stoppable(main: Callable[[], Awaitable[T]]) -> T:
    """Run it; SystemExit if a signal ends it, once it has cleared away what it made."""
    numbers = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN  # as nohup wants it
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


def _advised(settings: Config, error: BaseException) -> BaseException:
    """Return the error, with advice: on the password, on an entry that was rolled back, or on how
    to find a portal where nobody named one and none is there.
    """
    if isinstance(error, AccessDeniedError) and error.status == HTTPStatus.UNAUTHORIZED:
        advice = (
            "the api_key is wrong"
            if settings.api_key
            else "set api_key in the configuration, or SKYMOUNT_API_KEY, for this portal"
        )
        error.message = f"{error.message.rstrip('.')}; {advice}"
        return error
    if isinstance(error, RolledBackError):
        error.message += (
            "; the portal shows an old entry: name another one with --portal, or, if the old one "
            "is to be believed, `skymount registry forget --seen KEY DATAKEY`"
        )
        return error
    if settings.portals or not isinstance(error, UnavailableError):
        return error
    return UnavailableError(
        f"{error}; start a portal with `skymount portal serve` or `skymount mount`, "
        "or name one with --portal URL"
    )
