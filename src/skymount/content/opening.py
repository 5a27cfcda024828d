"""Opens what reads content: portals, caches, loader, reader, registry, names and documents.

Mounts, commands, file access and a portal's upstream all begin here. How they differ is in
`ContentSettings`. What only some of them need is imported and made when it is first used.
"""

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    ExitStack,
    asynccontextmanager,
    closing,
    nullcontext,
)
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from skymount.concurrency import in_thread
from skymount.content.cache.memory_cache import MemoryCache
from skymount.errors import CacheError
from skymount.policies import VerifyPolicy, WritePolicy
from skymount.portal.client.registry import GET_TIMEOUT
from skymount.portal.failover.portals import Portals, open_portals
from skymount.settings import DEFAULTS, PortalOptions
from skymount.storage.write_check import write_problem

if TYPE_CHECKING:
    from skymount.content.cache.block_store import BlockStore
    from skymount.content.cache.buffer_pool import BufferPool
    from skymount.content.cache.write_behind import WriteBehindConfig, WriteBehindQueue
    from skymount.content.fetch.readahead import ReadaheadConfig
    from skymount.content.fetch.reader import ContentReader
    from skymount.content.skydb.documents import Documents
    from skymount.portal.ledger.ledger import Ledger
    from skymount.portal.ledger.outbox import Pending
    from skymount.portal.registry.name_resolver import NameResolver
    from skymount.portal.registry.verified_registry import VerifiedRegistry

log = logging.getLogger(__name__)

SILENT_PORTALS = 3
"""How many an operation that has a time-out has the time to try one after another."""


@dataclass(frozen=True, slots=True)
class DiskSettings:
    """Which blocks on disk are used, and how."""

    size: int
    """Bytes that they may take; 0: what others have stored is read, and nothing is stored."""
    path: Path | None = None
    """The directory; None: that of the user. CacheError if a directory that is named cannot be
    used; without that of the user there is only a warning.
    """
    queue: "WriteBehindConfig | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentSettings:
    """How content is read. Bytes and seconds."""

    portals: Mapping[str, PortalOptions]
    """The options of each portal's client, by its address."""
    silence: float
    """For which a portal may be silent."""
    after_silence: bool = True
    """Whether it is asked again then."""
    wait: float = DEFAULTS.wait_for_portal
    """For which one that refuses connections is waited for."""
    verify: VerifyPolicy
    memory: int
    disk: DiskSettings | None = None
    readahead: "ReadaheadConfig | None" = None
    look: float = GET_TIMEOUT
    """For which a portal may look for an entry."""
    hns_ttl: float = DEFAULTS.hns_ttl
    writes: WritePolicy = DEFAULTS.registry_writes
    is_own: Callable[[bytes], bool] = lambda _: False
    """Whether the private key of a public key is here."""
    gave_up: "Callable[[Pending], None] | None" = None
    """Is told of writes that were superseded, in place of the log."""
    recalls: bool = False
    """Whether those who only read are given what was seen last, if no portal answers (G20)."""
    warn: Callable[[str], None] = log.warning


@dataclass(frozen=True)
class Content:
    """What reads content, made by `open_content`. It ends with the block that opened it."""

    settings: ContentSettings
    portals: Portals
    memory: MemoryCache
    queue: "WriteBehindQueue | None"
    """Of the disk cache, if there is one."""
    nursery: trio.Nursery
    _ends: ExitStack

    @cached_property
    def reader(self) -> "ContentReader":
        from skymount.content.cache.disk_cache import DiskCache
        from skymount.content.fetch.fetcher import Fetcher
        from skymount.content.fetch.readahead import ReadaheadConfig
        from skymount.content.fetch.reader import ContentReader
        from skymount.content.fetch.skyfile_loader import SkyfileLoader

        settings, disk = self.settings, None
        if self.queue is not None:
            disk = DiskCache(self.queue, tuple(settings.portals), settings.verify)
        loader = SkyfileLoader(self.portals, settings.verify)
        readahead = settings.readahead or ReadaheadConfig()
        parts = self.portals, loader, self.memory, disk, self.nursery, readahead
        return ContentReader(loader, Fetcher(*parts), self.nursery)

    @cached_property
    def registry(self) -> "VerifiedRegistry":
        """The registry; without a ledger, unless that was named or `entries` has opened it."""
        from skymount.portal.registry.verified_registry import VerifiedRegistry

        settings = self.settings
        return VerifiedRegistry(
            self.portals,
            None,
            look=settings.look,
            policy=settings.writes,
            is_own=settings.is_own,
            gave_up=settings.gave_up,
        )

    @cached_property
    def ledger(self) -> "Ledger":
        """The ledger of the user, which the registry uses from then on. Its first use opens it.
        StorageError without a home.
        """
        from skymount.portal.ledger.ledger import Ledger

        ledger = self._ends.enter_context(closing(Ledger.of_user()))
        self.registry.marks.ledger = ledger
        return ledger

    async def entries(self) -> "VerifiedRegistry":
        """Return the registry for one who only reads: a ledger that cannot be used is warned of,
        and so is what it could not store in the end (G4). StorageError if verification is required.
        """
        marks, warn = self.registry.marks, self.settings.warn
        is_required = self.settings.verify is VerifyPolicy.REQUIRE

        def say_what_is_lost() -> None:
            if marks.failure is not None:
                text = "what portals showed of the registry is not remembered"
                warn(f"{marks.failure}; {text}")

        if self.settings.recalls:
            self.registry.on_stale = lambda what, error: warn(
                f"{what}: no portal answers, so this is what was seen last: {error}"
            )
        if await marks.open(lambda: self.ledger, warn, is_required=is_required):
            self._ends.callback(say_what_is_lost)
        return self.registry

    @cached_property
    def names(self) -> "NameResolver":
        from skymount.portal.registry.name_resolver import NameResolver, NameResolverConfig

        config = NameResolverConfig(self.settings.hns_ttl, self.settings.verify)
        return NameResolver(self.portals, self.registry, config)

    @cached_property
    def documents(self) -> "Documents":
        from skymount.content.skydb.documents import Documents

        settings = self.settings
        return Documents(
            self.registry,
            self.reader,
            self.portals,
            settings.verify,
            cache=settings.memory // 2,
            writes=settings.writes,
        )


@asynccontextmanager
async def open_content(
    settings: ContentSettings, portals: Portals | None = None
) -> AsyncIterator[Content]:
    """Open what the settings say; `portals` that are open are used in place of theirs.

    An error of the settings comes out bare: nothing runs yet.
    """
    memory = MemoryCache(settings.memory)
    store = await in_thread(partial(_open_store, settings, memory.buffers))
    opening = (
        nullcontext(portals)
        if portals
        else open_portals(
            settings.portals,
            settings.silence,
            settings.wait,
            after_silence=settings.after_silence,
        )
    )
    with ExitStack() as ends:  # last: tasks that are cancelled note in the ledger what became of it
        async with (
            opening as opened,
            _writing(settings, store) as queue,
            trio.open_nursery() as tasks,
        ):
            yield Content(settings, opened, memory, queue, tasks, ends)
            tasks.cancel_scope.cancel()


def _open_store(settings: ContentSettings, buffers: "BufferPool") -> "BlockStore | None":
    """Open the files of the disk cache; None where there is none, with a warning if need be."""
    from skymount.content.cache.block_store import MIN_SIZE, BlockStore, default_path

    disk = settings.disk
    if disk is None:
        return None
    if disk.path:
        return BlockStore.open(disk.path, disk.size, buffers)
    store, warning = None, ""
    try:
        path = default_path()
        if not disk.size:
            return BlockStore.existing(path, 0)
        store = BlockStore.open(path, disk.size, buffers)
        if disk.size < MIN_SIZE:
            least = f"{MIN_SIZE >> 20} MiB"
            warning = f"disk_cache: hardly anything fits; give it {least} or more, or turn it off"
        elif problem := write_problem(path):
            warning = f"{problem}; nothing more is cached until that is mended"
    except CacheError as error:
        warning = f"{error}; nothing is kept on disk"
    if warning and disk.size:
        trio.from_thread.run_sync(settings.warn, warning)
    return store


def _writing(
    settings: ContentSettings, store: "BlockStore | None"
) -> "AbstractAsyncContextManager[WriteBehindQueue | None]":
    """Open the queue of what is to be written to the disk cache, if there is one."""
    if store is None or settings.disk is None:
        return nullcontext()
    from skymount.content.cache.write_behind import open_write_behind

    return open_write_behind(store, settings.disk.queue)
