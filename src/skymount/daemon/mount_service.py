"""The life of a mount: builds every part, connects them, runs them, and stops on signals."""

import gc
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import replace
from functools import partial

import trio

from skymount import default_portal, keyring, large_buffers, process_hardening, systemd
from skymount.content.cache import block_store
from skymount.content.cache.block_store import BlockStore
from skymount.content.cache.buffer_pool import BufferPool
from skymount.content.cache.disk_cache import DiskCache
from skymount.content.cache.memory_cache import MemoryCache
from skymount.content.cache.write_behind import open_write_behind
from skymount.content.fetch.reader import ContentReader, open_reader
from skymount.content.fetch.skyfile_loader import SkyfileLoader
from skymount.content.replication.replicator import Replicator
from skymount.content.skydb.documents import Document, Documents
from skymount.daemon import signals
from skymount.daemon.embedded_portal import EmbeddedPortal, is_reachable
from skymount.daemon.readiness import Report, announce
from skymount.daemon.reload import Reloader
from skymount.daemon.signals import SignalActions
from skymount.daemon.status import MountStatus
from skymount.errors import CacheError, MountError
from skymount.fs import fuse, mountpoint, obstacles
from skymount.fs.dispatcher import FileSystem
from skymount.fs.inode_space import PATHS, InodeSpace
from skymount.fs.registry.directory import RegistryDirectory
from skymount.fs.registry.keyring_cache import KeyringCache
from skymount.fs.registry.lookup import RegistryDirectoryConfig
from skymount.fs.skylinks.directory import SkylinksDirectory
from skymount.fs.skylinks.name_freshness import NameFreshness
from skymount.fs.skylinks.name_loader import NameLoader
from skymount.fs.skylinks.name_parsing import parse_domain_name, parse_skylink_name
from skymount.fs.skylinks.name_table import NameTable
from skymount.fs.skylinks.name_times import NameSince, NameTimes
from skymount.fs.skylinks.tree_cache import TreeCache, TreeCacheConfig
from skymount.fs.skylinks.waiting_reads import WaitingReads
from skymount.fs.skylinks.xattrs import entry_attributes
from skymount.fs.static_tree import StaticTree
from skymount.fs.subtree import Subtree
from skymount.keyring import Keyring
from skymount.portal.failover.portals import Portals, open_portals
from skymount.portal.ledger.ledger import Ledger, default_path
from skymount.portal.registry.entry_state import EntryState
from skymount.portal.registry.name_resolver import NameResolver, NameResolverConfig, ResolvableName
from skymount.portal.registry.owed_sender import OwedSender
from skymount.portal.registry.read_repair import ReadRepair
from skymount.portal.registry.spool_retry import SpoolRetry
from skymount.portal.registry.verified_registry import VerifiedRegistry
from skymount.settings import Config
from skymount.storage.write_check import write_problem

log = logging.getLogger(__name__)

_CLEARED = "removed the mount of a skymount that no longer runs"

STOP_GRACE = 2.0  # seconds that operations may take to finish after a signal to stop

_SILENT_PORTALS = 3  # that one operation has the time to try one after another
_SWITCH_INTERVAL = 0.0005  # seconds after which a hashing thread yields to the event loop
_GC_THRESHOLDS = (2_000, 4, 25)  # collect often: 10,000 new objects stop the event loop for 2 ms


def run(
    config: Config,
    report: Report,
    reread: Callable[[], Config] | None = None,
    *,
    stop_grace: float = STOP_GRACE,
) -> None:
    """Mount and serve until unmounted or told to stop; MountError when that cannot be done.

    `reread` reads the configuration again.
    """
    obstacles.check(allow_other=config.allow_other)
    mountpoint.check(config.mountpoint, clear=False)
    process_hardening.harden_service()
    large_buffers.give_own_pages()
    sys.setswitchinterval(_SWITCH_INTERVAL)
    gc.freeze()  # objects that exist now are never garbage
    gc.set_threshold(*_GC_THRESHOLDS)
    found = default_portal.find()
    url = found.url or default_portal.free_url()
    embedded = EmbeddedPortal(url, None if config.portals else found.foreign_uid)
    config = replace(config, default_portal=url)
    try:
        with mountpoint.turn(config.mountpoint) as end_turn:
            if mountpoint.check(config.mountpoint):
                log.warning("%s: %s", config.mountpoint, _CLEARED)
            if not config.portals and not is_reachable(url):
                embedded.start()
            again = reread or (lambda: config)
            trio.run(partial(_serve, config, report, embedded, again, stop_grace, end_turn))
    except BaseExceptionGroup as group:
        if isinstance(cause := _single_cause(group), MountError):
            raise cause from None
        raise
    finally:
        embedded.stop()


def _single_cause(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


async def _serve(
    config: Config,
    report: Report,
    embedded: EmbeddedPortal,
    reread: Callable[[], Config],
    stop_grace: float,
    end_turn: Callable[[], None],
) -> None:
    status = MountStatus(config, embedded)
    async with AsyncExitStack() as stack:
        ledger = stack.enter_context(closing(Ledger(default_path())))
        portals = await stack.enter_async_context(
            open_portals(config.portal_options, config.timeout / _SILENT_PORTALS)
        )
        status.portals = portals
        loader = SkyfileLoader(portals, config.verify)
        reader = await _open_reader(stack, config, loader, portals, status, report)
        nursery = await stack.enter_async_context(trio.open_nursery())
        keys = KeyringCache(Keyring(keyring.default_path()))
        registry = VerifiedRegistry(
            portals,
            ledger,
            policy=config.registry_writes,
            is_own=lambda public_key: keys.pair(public_key) is not None,
        )
        if config.send_pending:
            registry.repair = _read_repair(registry, ledger, portals.probes or nursery)
        urls = [each.url for each in portals.clients]
        reads = WaitingReads(portals.may_answer, portals.ask_for_signs, urls)
        resolver = NameResolver(
            portals, registry, NameResolverConfig(config.hns_ttl, config.verify)
        )
        content_trees = _content_trees(
            config, reader, resolver, reads, nursery, status, registry.marks.name_since
        )
        documents = Documents(
            registry,
            reader,
            portals,
            config.verify,
            cache=config.memory_cache // 2,
            writes=config.registry_writes,
        )
        key_trees = _key_trees(config, keys, registry, documents, nursery)
        retry = SpoolRetry(registry, ledger, keys.latest, sends=config.send_pending)
        replicate = Replicator(portals, reader, loader).replicate
        owed = status.owed = OwedSender(
            registry, ledger, sends=config.send_pending, send_content=replicate
        )
        mount = fuse.FuseConfig(
            config.mountpoint, config.allow_other, config.timeout, config.mount_options
        )
        trees: Sequence[Subtree] = (*content_trees, *key_trees)
        file_system = FileSystem(
            StaticTree(status.to_json, status.to_metrics),
            dict(zip(InodeSpace, trees, strict=True)),
            status.usage,
        )
        adapter = fuse.FuseAdapter(file_system, mount, portals.waited_for)
        status.files, status.failures = file_system, adapter.failures
        status.operations, status.under_way = adapter.counts, adapter.under_way
        reloader = Reloader(config, reread, portals, resolver)
        actions = SignalActions(fuse.stop, reloader.reload)
        received = stack.enter_context(signals.receiving())
        fuse.attach(adapter, mount)
        end_turn()
        try:
            with trio.CancelScope() as scope:
                nursery.start_soon(signals.handle, received, actions, scope, stop_grace)
                nursery.start_soon(announce, config, report, embedded, reads)
                nursery.start_soon(reads.run)
                nursery.start_soon(retry.run)
                nursery.start_soon(owed.run)
                nursery.start_soon(adapter.failures.run)
                if config.metrics_listen:
                    nursery.start_soon(_serve_metrics, config, status, report)
                for client in portals.clients:
                    nursery.start_soon(client.connect)
                await fuse.run()
        finally:
            systemd.notify("STOPPING=1")
            fuse.detach()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + stop_grace):
                for tree in key_trees:
                    await tree.close()  # posts open files, or keeps them in the spool
            with trio.CancelScope(shield=True):
                await retry.say_what_is_pending()
                await owed.say_what_is_owed()
            nursery.cancel_scope.cancel()
    log.info("%s: unmounted", config.mountpoint)


async def _serve_metrics(config: Config, status: MountStatus, report: Report) -> None:
    from skymount.daemon.metrics import serve

    try:
        await serve(config.metrics_listen, status.metrics)
    except OSError as error:
        warning = f"metrics_listen: {config.metrics_listen}: {error.strerror or error}"
        log.warning(warning)
        report.warning(warning)


async def _open_reader(
    stack: AsyncExitStack,
    config: Config,
    loader: SkyfileLoader,
    portals: Portals,
    status: MountStatus,
    report: Report,
) -> ContentReader:
    cache = status.memory_cache = MemoryCache(config.memory_cache)
    disk_cache = None
    store = await trio.to_thread.run_sync(_open_store, config, cache.buffers, report)
    if store is not None:
        queue = status.write_behind = await stack.enter_async_context(open_write_behind(store))
        disk_cache = DiskCache(queue, config.portal_urls, config.verify)
    reader = await stack.enter_async_context(open_reader(portals, loader, cache, disk_cache))
    status.reader = reader
    return reader


def _open_store(config: Config, buffers: BufferPool, report: Report) -> BlockStore | None:
    """Open the files of the disk cache; None when it is off or cannot be used."""
    if not config.disk_cache:
        return None
    store = warning = None
    try:
        store = BlockStore.open(block_store.default_path(), config.disk_cache, buffers)
        if config.disk_cache < block_store.MIN_SIZE:
            least = f"{block_store.MIN_SIZE >> 20} MiB"
            warning = f"disk_cache: hardly anything fits; give it {least} or more, or turn it off"
        elif problem := write_problem(block_store.default_path()):
            warning = f"{problem}; nothing more is cached until that is mended"
    except CacheError as error:
        warning = f"{error}; nothing is kept on disk"
    if warning:
        log.warning(warning)
        trio.from_thread.run_sync(report.warning, warning)
    return store


def _content_trees(
    config: Config,
    reader: ContentReader,
    resolver: NameResolver,
    reads: WaitingReads,
    nursery: trio.Nursery,
    status: MountStatus,
    name_since: NameSince,
) -> tuple[SkylinksDirectory, SkylinksDirectory]:
    cache = status.trees = TreeCache(_tree_bounds(config))

    def directory(
        parse: Callable[[str], tuple[str, ResolvableName]], space: InodeSpace
    ) -> tuple[NameTable, SkylinksDirectory]:
        table = NameTable(parse, space, cache, reader.forget)
        times = NameTimes(name_since, PATHS[space].decode())
        loader = NameLoader(table, reader, resolver, nursery, times)
        freshness = NameFreshness(table, loader, resolver, nursery)
        grace, deadline = config.lookup_grace, config.timeout
        return table, SkylinksDirectory(
            reader, table, loader, freshness, reads, lookup_grace=grace, deadline=deadline
        )

    status.skylinks, skylinks = directory(parse_skylink_name, InodeSpace.SKYLINKS)
    status.domains, domains = directory(parse_domain_name, InodeSpace.HNS)
    return skylinks, domains


def _read_repair(registry: VerifiedRegistry, ledger: Ledger, nursery: trio.Nursery) -> ReadRepair:
    writable = [client.url for client in registry.portals.writable_clients]
    return ReadRepair(ledger, registry.marks, writable, nursery, registry.wake_senders)


def _tree_bounds(config: Config) -> TreeCacheConfig:
    """Return the bounds of all trees; without a disk cache they come back from a portal only."""
    bounds = TreeCacheConfig(config.tree_cache)
    return bounds if config.disk_cache else replace(bounds, count=sys.maxsize)


def _key_trees(
    config: Config,
    keys: KeyringCache,
    registry: VerifiedRegistry,
    documents: Documents,
    nursery: trio.Nursery,
) -> tuple[RegistryDirectory[EntryState], RegistryDirectory[Document]]:
    ttl, grace, timeout = config.registry_ttl, config.lookup_grace, config.timeout
    entry_files = RegistryDirectoryConfig(
        InodeSpace.REGISTRY, ttl=ttl, grace=grace, timeout=timeout
    )

    def attributes(state: EntryState) -> Mapping[str, str]:
        return {} if state.signed is None else entry_attributes(state.signed)

    return (
        RegistryDirectory(
            registry,
            keys,
            entry_files,
            attributes,
            nursery,
        ),
        RegistryDirectory(
            documents,
            keys,
            replace(entry_files, space=InodeSpace.SKYDB, suffix=b".json"),
            lambda document: {**attributes(document.entry), "verified": document.verified.value},
            nursery,
        ),
    )
