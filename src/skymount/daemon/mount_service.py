"""The life of a mount: makes its parts, starts them, and ends them on signals."""

import gc
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import trio

from skymount import default_portal, keyring, large_buffers, process_hardening, systemd
from skymount.content.opening import (
    SILENT_PORTALS,
    Content,
    ContentSettings,
    DiskSettings,
    open_content,
)
from skymount.content.replication.replicator import Replicator
from skymount.content.skydb.documents import Document
from skymount.daemon import metrics, signals
from skymount.daemon.embedded_portal import EmbeddedPortal, is_reachable
from skymount.daemon.readiness import Report, announce
from skymount.daemon.reload import Reloader
from skymount.daemon.status import Mount, as_json
from skymount.errors import SkymountError
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
from skymount.fs.skylinks.name_times import NameTimes
from skymount.fs.skylinks.tree_cache import TreeCache, TreeCacheConfig
from skymount.fs.skylinks.waiting_reads import WaitingReads
from skymount.fs.skylinks.xattrs import entry_attributes
from skymount.fs.static_tree import StaticTree
from skymount.fs.subtree import Subtree
from skymount.keyring import Keyring
from skymount.portal.registry.entry_reader import EntryState, ReadRepair
from skymount.portal.registry.name_resolver import ResolvableName
from skymount.portal.registry.sender import Sender
from skymount.settings import Config

log = logging.getLogger(__name__)

_CLEARED = "removed the mount of a skymount that no longer runs"

STOP_GRACE = 2.0  # seconds that operations may take to finish after a signal to stop

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
        if isinstance(cause := _single_cause(group), SkymountError):
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
    def warn(text: str) -> None:
        log.warning(text)
        report.warning(text)

    keys = KeyringCache(Keyring(keyring.default_path()))
    async with open_content(_content_settings(config, keys, warn)) as content:
        portals, registry, ledger = content.portals, content.registry, content.ledger
        if config.send_pending:
            writable = [client.url for client in portals.writable_clients]
            late = portals.background or content.nursery  # where late answers come from
            registry.repair = ReadRepair(
                ledger, registry.marks, writable, late, registry.wake_senders
            )
        replicate = Replicator(portals, content.reader).replicate
        sender = Sender(
            registry,
            ledger,
            sends=config.send_pending,
            pair_of=keys.latest,
            send_content=replicate,
        )

        urls = [each.url for each in portals.clients]
        reads = WaitingReads(portals.may_answer, portals.ask_for_signs, urls)
        trees = TreeCache(_tree_bounds(config))
        skylinks = _names(parse_skylink_name, InodeSpace.SKYLINKS, config, content, trees, reads)
        domains = _names(parse_domain_name, InodeSpace.HNS, config, content, trees, reads)
        key_trees = _key_trees(config, keys, content)
        static = StaticTree(
            lambda: as_json(mount.figures()), lambda: metrics.render(mount.metrics())
        )
        subtrees: Sequence[Subtree] = (skylinks, domains, *key_trees)
        files = FileSystem(static, dict(zip(InodeSpace, subtrees, strict=True)))
        how = fuse.FuseConfig(
            config.mountpoint, config.allow_other, config.timeout, config.mount_options
        )
        adapter = fuse.FuseAdapter(
            files, how, portals.waited_for, partial(portals.limit, config.timeout)
        )
        mount = Mount(config, embedded, content, trees, skylinks, domains, sender, adapter)
        reload = Reloader(config, reread, portals, content.names).reload

        with signals.receiving() as received:
            fuse.attach(adapter, how)
            end_turn()
            try:
                with trio.CancelScope() as scope:
                    seen = partial(mount.metrics, is_asking=False)
                    tasks: Sequence[Callable[[], Awaitable[object]]] = (
                        partial(signals.handle, received, fuse.stop, reload, scope, stop_grace),
                        partial(announce, config, report, embedded, reads),
                        partial(metrics.serve, config.metrics_listen, seen, warn),
                        reads.run,
                        sender.run,
                        adapter.failures.run,
                        *(client.connect for client in portals.clients),
                    )
                    for task in tasks:
                        content.nursery.start_soon(task)
                    await fuse.run()
            finally:
                systemd.notify("STOPPING=1")
                fuse.detach()
                with trio.CancelScope(shield=True, deadline=trio.current_time() + stop_grace):
                    for tree in key_trees:
                        await tree.close()  # posts open files, or keeps them in the outbox
                with trio.CancelScope(shield=True):
                    await sender.say_what_is_pending()
    log.info("%s: unmounted", config.mountpoint)


def _content_settings(
    config: Config, keys: KeyringCache, warn: Callable[[str], None]
) -> ContentSettings:
    return ContentSettings(
        portals=config.portal_options,
        silence=config.timeout / SILENT_PORTALS,
        wait=config.wait_for_portal,
        verify=config.verify,
        memory=config.memory_cache,
        disk=DiskSettings(config.disk_cache) if config.disk_cache else None,
        hns_ttl=config.hns_ttl,
        writes=config.registry_writes,
        is_own=lambda public_key: keys.pair(public_key) is not None,
        warn=warn,
    )


def _names(
    parse: Callable[[str], tuple[str, ResolvableName]],
    space: InodeSpace,
    config: Config,
    content: Content,
    trees: TreeCache,
    reads: WaitingReads,
) -> SkylinksDirectory:
    reader, names, nursery = content.reader, content.names, content.nursery
    table = NameTable(parse, space, trees, reader.forget)
    times = NameTimes(content.registry.marks.name_since, PATHS[space].decode())
    loader = NameLoader(table, reader, names, nursery, times)
    freshness = NameFreshness(table, loader, names, nursery)
    grace, limit = config.lookup_grace, partial(content.portals.limit, config.timeout)
    return SkylinksDirectory(
        reader, table, loader, freshness, reads, lookup_grace=grace, limit=limit
    )


def _tree_bounds(config: Config) -> TreeCacheConfig:
    """Return the bounds of all trees; without a disk cache they come back from a portal only."""
    bounds = TreeCacheConfig(config.tree_cache)
    return bounds if config.disk_cache else replace(bounds, count=sys.maxsize)


def _key_trees(
    config: Config, keys: KeyringCache, content: Content
) -> tuple[RegistryDirectory[EntryState], RegistryDirectory[Document]]:
    ttl, grace = config.registry_ttl, config.lookup_grace
    limit = partial(content.portals.limit, config.timeout)
    entries = RegistryDirectoryConfig(InodeSpace.REGISTRY, ttl=ttl, grace=grace, limit=limit)
    documents = replace(entries, space=InodeSpace.SKYDB, suffix=b".json")

    def of_entry(state: EntryState) -> Mapping[str, str]:
        return {} if state.signed is None else entry_attributes(state.signed)

    def of_document(document: Document) -> Mapping[str, str]:
        return {**of_entry(document.entry), "verified": document.verified.value}

    return (
        RegistryDirectory(content.registry, keys, entries, of_entry, content.nursery),
        RegistryDirectory(content.documents, keys, documents, of_document, content.nursery),
    )
