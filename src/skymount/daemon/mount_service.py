"""Owns the life of a mount: builds every part and joins them, the nursery they run in, signals, and
the end. Decides nothing about files.
"""

import gc
import json
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import asdict
from functools import partial
from typing import Any

import trio

from skymount import __version__, keyring, process_hardening
from skymount.config import Config
from skymount.content.cache import block_store
from skymount.content.cache.block_store import BlockStore
from skymount.content.cache.buffer_pool import BufferPool
from skymount.content.cache.disk_cache import DiskCache
from skymount.content.cache.memory_cache import MemoryCache
from skymount.content.cache.write_behind import WriteBehindQueue, open_keeper
from skymount.content.fetch.reader import open_reader
from skymount.content.fetch.skyfile_loader import SkyfileLoader
from skymount.content.model.skyfile import VerifyPolicy
from skymount.content.skydb.documents import Document, Documents
from skymount.daemon.embedded_portal import EmbeddedPortal, answers
from skymount.daemon.readiness import Report, announce, notify
from skymount.errors import CacheError, MountError
from skymount.fs import fuse, mountpoint
from skymount.fs.dispatcher import FileSystem
from skymount.fs.registry.directory import RegistryDirectory, RegistryDirectoryConfig
from skymount.fs.registry.keyring_cache import KeyringCache
from skymount.fs.registry.nodes import is_key_node, kind_of
from skymount.fs.skylinks import hns
from skymount.fs.skylinks.directory import SkylinksDirectory, TreeConfig
from skymount.fs.skylinks.hns import HnsDirectory
from skymount.fs.skylinks.mounted_name import space_of
from skymount.fs.skylinks.name_table import NameTable, parse_name
from skymount.fs.skylinks.xattrs import entry_attributes
from skymount.fs.static_tree import HNS, REGISTRY, SKYDB, SKYLINKS, StaticTree
from skymount.fs.subtree import Subtree
from skymount.keyring import Keyring
from skymount.portal.client.base import PortalReader
from skymount.portal.failover import Portals
from skymount.portal.options import DEFAULT_PORTAL_URL, PortalOptions
from skymount.portal.registry.entry_state import EntryState
from skymount.portal.registry.ledger import Ledger, default_path
from skymount.portal.registry.name_resolver import NameResolver, NameResolverConfig
from skymount.portal.registry.spool_retry import SpoolRetry
from skymount.portal.registry.verified_registry import VerifiedRegistry

log = logging.getLogger(__name__)

_STOP_GRACE = 2.0  # seconds that operations under way may take after a signal
_SILENCES = 3
"""Portals that may be silent one after another within the time that an operation may take."""

_SWITCH_INTERVAL = 0.0005
"""Seconds after which a hashing thread hands the interpreter to the event loop."""

_GARBAGE = (2_000, 4, 25)
"""New objects after which garbage is looked for among them, how often until it is among somewhat
older ones too, and how often that until it is among all. Nothing else runs meanwhile, so few at a
time: two milliseconds for ten thousand.
"""


def run(config: Config, report: Report) -> None:
    """Mount and serve until unmounted or told to stop; MountError when that cannot be done."""
    if mountpoint.check(config.mountpoint, allow_other=config.allow_other):
        log.warning("%s: the mount of a skymount that is gone was cleared", config.mountpoint)
    process_hardening.harden_service()
    sys.setswitchinterval(_SWITCH_INTERVAL)
    gc.freeze()  # what is there now stays: it is not looked through again for garbage
    gc.set_threshold(*_GARBAGE)
    own = EmbeddedPortal()
    if not config.portals and not answers(DEFAULT_PORTAL_URL):
        own.start()
    try:
        trio.run(partial(_serve, config, report, own))
    except BaseExceptionGroup as group:
        if isinstance(cause := _only_cause(group), MountError):
            raise cause from None
        raise
    finally:
        own.stop()


def _only_cause(error: BaseException) -> BaseException:
    """Return what the nurseries on its way wrapped in groups, if it was a single exception."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


async def _serve(config: Config, report: Report, own: EmbeddedPortal) -> None:
    """Build the parts from the wire up, mount, and answer the kernel until the end."""
    started = time.time()
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                PortalReader.of(
                    # no repetitions: `Portals` asks the next portal instead, in rounds
                    PortalOptions.parse(
                        url, retries=0, timeout=config.timeout / _SILENCES, **config.client_options
                    )
                )
            )
            for url in config.portal_urls
        ]
        portals = Portals(clients)
        cache = MemoryCache(config.memory_cache)
        loader = SkyfileLoader(portals, config.verify)
        keeper, shelf = None, None
        store = await trio.to_thread.run_sync(_open_store, config, cache.buffers, report)
        if store is not None:
            keeper = await stack.enter_async_context(open_keeper(store))
            shelf = DiskCache(keeper, config.portal_urls, config.verify)
        reader = await stack.enter_async_context(open_reader(portals, loader, cache, shelf))
        nursery = await stack.enter_async_context(trio.open_nursery())
        ledger = stack.enter_context(closing(Ledger(default_path())))
        entries = VerifiedRegistry(portals, ledger)
        names = NameResolver(portals, entries, _names_config(config))
        slots = NameTable(reader.load, nursery, names, parse_name)
        domains = NameTable(reader.load, nursery, names, hns.parse_name, hns.SPACE)

        def status() -> Mapping[str, object]:
            return {
                "version": __version__,
                "pid": os.getpid(),
                "mountpoint": config.mountpoint,
                "uptime_seconds": round(time.time() - started, 3),
                "portals": [client.url for client in clients],
                "own_portal": own.is_running,
                "verify": config.verify.value,
                "memory_cache": {
                    "size": cache.size,
                    "used": cache.used,
                    "on_its_way": cache.reserved,
                },
                "disk_cache": _kept(config, keeper),
                "fetched": reader.counts,
                "skylinks": len(slots),
                "domains": len(domains),
                "operations": dict(sorted(adapter.counts.items())),
            }

        tree = TreeConfig(lookup_grace=config.lookup_grace)
        trees: Sequence[Subtree] = (
            SkylinksDirectory(reader, slots, tree),
            HnsDirectory(reader, domains, tree),
        )
        keys = KeyringCache(Keyring(keyring.default_path()))
        documents = Documents(entries, reader, portals, config.verify)
        key_trees = _key_trees(config, keys, entries, documents)
        resender = SpoolRetry(entries, ledger, keys.latest, sends=config.send_pending)

        def realm_of(inode: int) -> Subtree:
            return key_trees[kind_of(inode)] if is_key_node(inode) else trees[space_of(inode)]

        operations = FileSystem(
            StaticTree(lambda: json.dumps(status(), indent=2).encode() + b"\n"),
            {
                SKYLINKS: trees[0],
                HNS: trees[hns.SPACE],
                REGISTRY: key_trees[0],
                SKYDB: key_trees[1],
            },
            realm_of,
            partial(_usage, slots, domains),
        )
        mount = fuse.FuseConfig(config.mountpoint, config.allow_other, config.timeout)
        adapter = fuse.FuseAdapter(operations, mount)
        signals = stack.enter_context(trio.open_signal_receiver(*_stop_signals()))
        fuse.attach(adapter, mount)
        try:
            with trio.CancelScope() as scope:
                nursery.start_soon(_stop_on_signal, signals, scope)
                nursery.start_soon(announce, config, report, own)
                nursery.start_soon(resender.run)
                for client in clients:
                    nursery.start_soon(client.connect)
                await fuse.run()
        finally:
            notify("STOPPING=1")
            fuse.detach()
            await _post_the_rest(key_trees)
            with trio.CancelScope(shield=True):
                await resender.say_what_is_pending()
            nursery.cancel_scope.cancel()
    log.info("%s: unmounted", config.mountpoint)


def _open_store(config: Config, buffers: BufferPool, report: Report) -> BlockStore | None:
    """Open the cache on disk; None when there is none to be."""
    if not config.disk_cache:
        return None
    store = warning = None
    try:
        store = BlockStore.open(block_store.default_path(), config.disk_cache, buffers)
        if config.disk_cache < block_store.LEAST:
            least = f"{block_store.LEAST >> 20} MiB"
            warning = f"disk_cache: hardly anything fits; give it {least} or more, or turn it off"
    except CacheError as error:
        warning = f"{error}; nothing is kept on disk"
    if warning:
        log.warning(warning)
        trio.from_thread.run_sync(report.warning, warning)
    return store


def _kept(config: Config, keeper: WriteBehindQueue | None) -> Mapping[str, int]:
    """Return what status.json says of the cache on disk."""
    if keeper is None:
        return {"size": 0}
    return {"size": config.disk_cache, "waiting": keeper.waiting, **asdict(keeper.counts)}


def _usage(*trees: NameTable) -> tuple[int, int]:
    """Return (bytes, files) of all trees."""
    found = [slots.usage() for slots in trees]
    return sum(size for size, _ in found), sum(files for _, files in found)


def _key_trees(
    config: Config, keys: KeyringCache, entries: VerifiedRegistry, documents: Documents
) -> tuple[RegistryDirectory[EntryState], RegistryDirectory[Document]]:
    """Build ``/registry`` and ``/skydb``, in the order of their kinds."""
    ttl, grace = config.registry_ttl, config.lookup_grace

    def of_entry(state: EntryState) -> Mapping[str, str]:
        return {} if state.signed is None else entry_attributes(state.signed)

    registry = RegistryDirectory(
        entries, keys, RegistryDirectoryConfig(REGISTRY, kind=0, ttl=ttl, grace=grace), of_entry
    )
    skydb = RegistryDirectory(
        documents,
        keys,
        RegistryDirectoryConfig(SKYDB, kind=1, suffix=b".json", ttl=ttl, grace=grace),
        lambda document: {**of_entry(document.entry), "verified": document.verified.value},
    )
    return registry, skydb


async def _post_the_rest(trees: Sequence[RegistryDirectory[Any]]) -> None:
    """Post what was written to files that are still open, or keep it in the spool."""
    with trio.CancelScope(shield=True, deadline=trio.current_time() + _STOP_GRACE):
        for tree in trees:
            await tree.close()


def _names_config(config: Config) -> NameResolverConfig:
    return NameResolverConfig(
        ttl=config.hns_ttl,
        check=config.verify is not VerifyPolicy.OFF,
        require=config.verify is VerifyPolicy.REQUIRE,
    )


def _stop_signals() -> list[signal.Signals]:
    """Return the signals that end a mount; nohup, which ignores one of them, is heeded."""
    hang_up = signal.SIGHUP
    ignored = signal.getsignal(hang_up) is signal.SIG_IGN
    return [signal.SIGTERM, signal.SIGINT, *([] if ignored else [hang_up])]


async def _stop_on_signal(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
    """End the mount on the first signal, whatever is still under way at the second."""
    async for number in signals:
        log.info("%s: unmounting", signal.Signals(number).name)
        if scope.deadline < float("inf"):
            scope.cancel()
        fuse.stop()
        scope.deadline = trio.current_time() + _STOP_GRACE
