"""Owns the life of a mount: builds every part and joins them, the nursery they run in, signals,
readiness, and the end. Decides nothing about files.
"""

import contextlib
import errno
import gc
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import trio

from skymount import __version__, keyring
from skymount.config import Config
from skymount.content import diskstore
from skymount.content.buffers import Buffers
from skymount.content.cache import MemoryCache
from skymount.content.diskstore import DiskStore
from skymount.content.documents import Document, Documents
from skymount.content.keeping import Keeper, open_keeper
from skymount.content.loader import Loader
from skymount.content.reader import open_reader
from skymount.content.shelf import Shelf
from skymount.content.skyfile import Policy
from skymount.errors import CacheError, MountError
from skymount.fs import fuse, hns, kernel, mountpoint
from skymount.fs.fixed import HNS, REGISTRY, SKYDB, SKYLINKS, Fixed
from skymount.fs.hns import Hns
from skymount.fs.keynodes import is_key_node, kind_of
from skymount.fs.keys import Keys
from skymount.fs.keytree import KeyTree, KeyTreeConfig
from skymount.fs.operations import Operations
from skymount.fs.realm import Realm
from skymount.fs.skylinks import Skylinks, TreeConfig
from skymount.fs.slots import Slots, parse_name, space_of
from skymount.fs.xattrs import entry_attributes
from skymount.keyring import Keyring
from skymount.portal.entries import Entries, State
from skymount.portal.failover import Portals
from skymount.portal.ledger import Ledger, default_path
from skymount.portal.options import DEFAULT_PORTAL_URL, PortalOptions
from skymount.portal.reading import PortalReader
from skymount.portal.resolve import Names, NamesConfig

log = logging.getLogger(__name__)

_PROBE = 0.3
"""Seconds to find out whether a portal answers; only a warning hangs on it."""

_PORTAL_START = 15.0  # seconds that our own portal may take to listen
_PORTAL_CHECK = 2.0  # seconds between two looks at whether a portal is at the default address
_PORTAL_PAUSE = 60.0  # seconds between two attempts at most to start one that does not start
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


@dataclass(frozen=True, slots=True)
class Report:
    """How the daemon tells its starter what happens; called from the event loop."""

    ready: Callable[[], None]
    warning: Callable[[str], None]


def run(config: Config, report: Report) -> None:
    """Mount and serve until unmounted or told to stop; MountError when that cannot be done."""
    if mountpoint.check(config.mountpoint, allow_other=config.allow_other):
        log.warning("%s: the mount of a skymount that is gone was cleared", config.mountpoint)
    sys.setswitchinterval(_SWITCH_INTERVAL)
    gc.freeze()  # what is there now stays: it is not looked through again for garbage
    gc.set_threshold(*_GARBAGE)
    own = OwnPortal()
    if not config.portals and not _answers(DEFAULT_PORTAL_URL):
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


def _answers(url: str) -> bool:
    """Whether something listens at a portal's address."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=_PROBE).close()
    except OSError:
        return False
    return True


class OwnPortal:
    """The embedded portal as a child process; it ends when we do, however that happens."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        """Whether there is such a child now."""
        return self._process is not None and self._process.poll() is None

    @property
    def was_started(self) -> bool:
        """Whether there is or has been one."""
        return self._process is not None

    def start(self) -> None:
        """Start it at the default address. The end of its standard input ends it.

        MountError when there is no starting it.
        """
        self.stop()
        address = urlsplit(DEFAULT_PORTAL_URL).netloc
        command = [sys.executable, "-P", "-m", "skymount", "portal", "serve", "--listen", address]
        try:
            self._process = subprocess.Popen(
                [*command, "--until-eof"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # a Ctrl-C in our terminal is not for it
            )
        except OSError as error:
            raise MountError(
                f"{sys.executable}: the embedded portal cannot be started: {error.strerror}; "
                "name a portal with --portal URL"
            ) from None

    async def is_listening(self) -> bool:
        """Wait until it listens; False when it ended, or took too long."""
        process = self._process
        if process is None or process.stdout is None:
            return False
        with trio.move_on_after(_PORTAL_START):
            line = await trio.to_thread.run_sync(process.stdout.readline, abandon_on_cancel=True)
            return b"listening on" in line
        return False

    async def keep(self) -> None:
        """Start one whenever none answers at the default address.

        The one that was there may have been another mount's, and have ended with it.
        """
        pause = _PORTAL_CHECK
        while True:
            await trio.sleep(pause)
            if self.is_running or await trio.to_thread.run_sync(
                _answers, DEFAULT_PORTAL_URL, abandon_on_cancel=True
            ):
                continue
            log.warning("no portal answers at %s any more, starting one", DEFAULT_PORTAL_URL)
            try:
                await trio.to_thread.run_sync(self.start)
                pause = _PORTAL_CHECK if await self.is_listening() else pause * 2
            except MountError as error:
                log.warning("%s", error)
                pause *= 2
            pause = min(pause, _PORTAL_PAUSE)

    def stop(self) -> None:
        """End it, if it is there, and wait for that."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


async def _serve(config: Config, report: Report, own: OwnPortal) -> None:
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
        loader = Loader(portals, config.verify)
        keeper, shelf = None, None
        store = await trio.to_thread.run_sync(_open_store, config, cache.buffers, report)
        if store is not None:
            keeper = await stack.enter_async_context(open_keeper(store))
            shelf = Shelf(keeper, config.portal_urls, config.verify)
        reader = await stack.enter_async_context(open_reader(portals, loader, cache, shelf))
        nursery = await stack.enter_async_context(trio.open_nursery())
        ledger = stack.enter_context(closing(Ledger(default_path())))
        entries = Entries(portals, ledger)
        names = Names(portals, entries, ledger, _names_config(config))
        slots = Slots(reader.load, nursery, names, parse_name)
        domains = Slots(reader.load, nursery, names, hns.parse_name, hns.SPACE)

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
        trees: Sequence[Realm] = (Skylinks(reader, slots, tree), Hns(reader, domains, tree))
        key_trees = _key_trees(config, entries, Documents(entries, reader, portals))

        def realm_of(inode: int) -> Realm:
            return key_trees[kind_of(inode)] if is_key_node(inode) else trees[space_of(inode)]

        operations = Operations(
            Fixed(lambda: json.dumps(status(), indent=2).encode() + b"\n"),
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
                nursery.start_soon(_announce, config, report, own)
                for client in clients:
                    nursery.start_soon(client.connect)
                await fuse.run()
        finally:
            _notify("STOPPING=1")
            fuse.detach()
            await _post_the_rest(key_trees)
            nursery.cancel_scope.cancel()
    log.info("%s: unmounted", config.mountpoint)


def _open_store(config: Config, buffers: Buffers, report: Report) -> DiskStore | None:
    """Open the cache on disk; None when there is none to be."""
    if not config.disk_cache:
        return None
    try:
        return DiskStore.open(diskstore.default_path(), config.disk_cache, buffers)
    except CacheError as error:
        warning = f"{error}; nothing is kept on disk"
        log.warning(warning)
        trio.from_thread.run_sync(report.warning, warning)
        return None


def _kept(config: Config, keeper: Keeper | None) -> Mapping[str, int]:
    """Return what status.json says of the cache on disk."""
    if keeper is None:
        return {"size": 0}
    return {"size": config.disk_cache, "waiting": keeper.waiting, **asdict(keeper.counts)}


def _usage(*trees: Slots) -> tuple[int, int]:
    """Return (bytes, files) of all trees."""
    found = [slots.usage() for slots in trees]
    return sum(size for size, _ in found), sum(files for _, files in found)


def _key_trees(
    config: Config, entries: Entries, documents: Documents
) -> tuple[KeyTree[State], KeyTree[Document]]:
    """Build ``/registry`` and ``/skydb``, in the order of their kinds."""
    keys = Keys(Keyring(keyring.default_path()))
    ttl, grace = config.registry_ttl, config.lookup_grace

    def of_entry(state: State) -> Mapping[str, str]:
        return {} if state.signed is None else entry_attributes(state.signed)

    registry = KeyTree(
        entries, keys, KeyTreeConfig(REGISTRY, kind=0, ttl=ttl, grace=grace), of_entry
    )
    skydb = KeyTree(
        documents,
        keys,
        KeyTreeConfig(SKYDB, kind=1, suffix=b".json", ttl=ttl, grace=grace),
        lambda document: of_entry(document.entry),
    )
    return registry, skydb


async def _post_the_rest(trees: Sequence[KeyTree[Any]]) -> None:
    """Post what was written to files that are still open, or keep it in the spool."""
    with trio.CancelScope(shield=True, deadline=trio.current_time() + _STOP_GRACE):
        for tree in trees:
            await tree.close()


def _names_config(config: Config) -> NamesConfig:
    return NamesConfig(
        ttl=config.hns_ttl,
        check=config.verify is not Policy.OFF,
        require=config.verify is Policy.REQUIRE,
    )


async def _announce(config: Config, report: Report, own: OwnPortal) -> None:
    """Say that the tree answers, once a stat through the kernel does."""
    warning = await _portal_warning(config, own)
    if warning:
        log.warning(warning)
        report.warning(warning)
    tune = partial(kernel.tune, config.mountpoint, read_ahead=config.read_ahead)
    await trio.to_thread.run_sync(tune, abandon_on_cancel=True)
    log.info("%s: mounted, portals: %s", config.mountpoint, " ".join(config.portal_urls))
    _notify(f"READY=1\nSTATUS=mounted at {config.mountpoint}")
    report.ready()
    if not config.portals:
        await own.keep()


async def _portal_warning(config: Config, own: OwnPortal) -> str:
    """Return what is to be said of the portals that do not answer, if anything."""
    started = own.was_started
    if started and await own.is_listening():
        return ""
    silent = list(config.portal_urls)

    async def probe(url: str) -> None:
        if await trio.to_thread.run_sync(_answers, url, abandon_on_cancel=True):
            silent.remove(url)

    # a limit of its own: finding the address of a host has none
    with trio.move_on_after(2 * _PROBE):
        async with trio.open_nursery() as probes:
            for url in config.portal_urls:
                probes.start_soon(probe, url)
    if not silent:
        return ""
    failed = "our own portal did not start, see the log; " if started else ""
    return f"{failed}{' '.join(silent)} does not answer yet; the tree works once it does"


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


def _notify(state: str) -> None:
    """Tell systemd, if it asked to be told (sd_notify(3))."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notify:
            notify.sendto(state.encode(), address)
    except OSError as error:
        log.warning("NOTIFY_SOCKET: %s", error.strerror or errno.errorcode.get(error.errno or 0))


def run_in_background(config: Config, log_to: Callable[[], None]) -> list[str]:
    """Fork a daemon that runs the mount; return its warnings once the tree answers.

    MountError carries what the daemon failed on. No thread may have been started before.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _become_daemon(config, log_to, writing)
    os.close(writing)
    warnings: list[str] = []
    with os.fdopen(reading, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            kind, text = line[0], line[1:].rstrip("\n")
            if kind == "R":
                return warnings
            if kind == "E":
                os.waitpid(pid, 0)
                raise MountError(text)
            warnings.append(text)
    raise MountError(f"{config.mountpoint}: the daemon ended before the tree answered; see its log")


def _become_daemon(config: Config, log_to: Callable[[], None], starter: int) -> None:
    """Leave the terminal, run the mount, and never return."""
    listening = True

    def tell(kind: str, text: str = "") -> None:
        message = f"{kind}{' '.join(text.split())}\n"
        if listening:  # afterwards the descriptor's number belongs to somebody else
            with contextlib.suppress(BrokenPipeError):  # the starter was interrupted
                os.write(starter, message.encode("utf-8", "backslashreplace"))

    def ready() -> None:
        nonlocal listening
        tell("R")
        listening = False
        os.close(starter)

    status = 1
    try:
        os.setsid()
        os.chdir("/")
        os.umask(0o077)  # the log names skylinks, and who knows one may read it
        log_to()
        run(config, Report(ready=ready, warning=partial(tell, "W")))
        status = 0
    except MountError as error:
        log.error("%s", error)
        tell("E", str(error))
    except BaseException as error:
        log.exception("the daemon failed")
        tell("E", f"{config.mountpoint}: {error!r}")
    finally:
        logging.shutdown()
        os._exit(status)
