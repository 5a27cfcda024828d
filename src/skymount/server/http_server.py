"""Opens the data directory, listens, accepts connections and stops."""

import errno
import logging
import os
import resource
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import (
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from functools import partial

import trio

from skymount.errors import ConfigError
from skymount.server import control
from skymount.server.config import UNIX, PortalConfig
from skymount.server.http import access_log
from skymount.server.http.access import Access, AccessRules
from skymount.server.http.access_log import Observer
from skymount.server.http.connection import Connection, Portal, Shared
from skymount.server.http.messages import encode_line
from skymount.server.monitoring import Metrics
from skymount.server.routes import PortalApp
from skymount.server.storage.cluster.choice import open_storage
from skymount.server.storage.cluster.migrations import Tables
from skymount.server.storage.portal_storage import PortalStorage
from skymount.wire.http.host import is_loopback

_log = logging.getLogger(__name__)

_BACKLOG = 128  # connections waiting to be accepted
_ACCEPTED_AT_ONCE = 16
_OWN_FILES = 44  # databases, logs, and what the event loop needs
_LEAST, _MOST = 8, 1 << 20  # connections that are served at once, whatever the limit of files is
_PATIENCE = 5.0  # seconds that a client waits until another one leaves
_RECEIVED = 64 << 10  # bytes of a request that is not answered
_UNSENT = 512 << 10  # bytes that the system holds for a client besides those under way to it
_PAUSE = 0.1  # seconds before the next attempt to accept
_BUSY = encode_line(
    503,
    "the portal serves as many clients as it can; try again in a moment",
    ("Retry-After", "5"),
)
_UNIX_MODE = 0o660  # the user's and the group's


async def serve(
    config: PortalConfig,
    *,
    on_listening: Callable[[str], None],
    shutdown: trio.Event | None = None,
    listener: socket.socket | None = None,
) -> None:
    """Run a portal until `shutdown` is set or the task is cancelled, which running requests are not
    waited for.

    `listener` is a socket to accept connections from, in place of one at the address of `config`.
    `on_listening` is called with its URL once it accepts connections. StorageError when the data
    directory cannot be used, ConfigError when the address cannot.
    """
    async with open_storage(config, Tables.UPDATE) as stored:
        with ExitStack() as opened:
            opening = partial(opened.enter_context, listen(config, listener))
            listening = await trio.to_thread.run_sync(opening)
            is_unix = listening.family == socket.AF_UNIX
            stop = trio.Event() if shutdown is None else shutdown
            on_loopback = is_unix or is_loopback(address_of(listening)[0])
            rules = AccessRules.of(config, on_loopback=on_loopback)
            metrics = Metrics() if config.metrics else None
            observers = list[Observer]()
            if metrics is not None:
                rules.passwords.on_wrong = metrics.count_wrong
                observers.append(metrics.count)
            access = Access(rules)
            async with (
                _application(config, stored, access, metrics) as portal,
                access_log.opened(config.access_log) as log,
            ):
                with _control(config) as commands:
                    taking: Callable[[], Awaitable[None]] = partial(control.serve, commands, stored)
                    background = [*stored.background, taking]
                    if log is not None:
                        background.append(log.run)
                        observers.append(log.add)
                    limits = config.idle_timeout, config.send_timeout
                    shared = Shared(portal, *limits, observers)
                    connections = Connections(listening, shared, config.graceful_timeout)
                    await connections.run(on_listening, stop, background)


def _control(config: PortalConfig) -> AbstractContextManager[socket.socket | None]:
    """Return the socket for commands on the data directory; none if that is not used."""
    return nullcontext() if config.cluster else control.listening(config.data)


@asynccontextmanager
async def _application(
    config: PortalConfig, storage: PortalStorage, access: Access, metrics: Metrics | None
) -> AsyncIterator[Portal]:
    """Return what answers requests, with upstream portals behind what is stored, if any."""
    own = PortalApp(config, storage, access, metrics)
    if not config.upstream:
        yield own
        return
    from skymount.server.upstream.loops import LoopBreaker
    from skymount.server.upstream.opening import open_upstream

    async with open_upstream(config, storage) as (both, loops):
        yield LoopBreaker(PortalApp(config, both, access, metrics), own, loops)


@contextmanager
def listen(config: PortalConfig, listener: socket.socket | None) -> Iterator[socket.socket]:
    """Yield the socket to accept connections from; ConfigError. Blocks."""
    is_unix = config.host.startswith(UNIX)
    where = config.host if is_unix else f"{config.host}:{config.port}"
    form = f"{UNIX}PATH" if is_unix else "HOST:PORT"
    with ExitStack() as opened:
        try:
            if not is_unix:
                listening = opened.enter_context(_at_address(config, listener))
            elif listener is None:
                listening = opened.enter_context(_at_path(config.host.removeprefix(UNIX)))
            else:
                listening = opened.enter_context(listener)
        except (OSError, OverflowError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            reason = str(reason or error).partition(" (while")[0]  # what create_server adds
            advice = f"choose another address with --listen {form}"
            raise ConfigError(f"cannot listen on {where}: {reason}; {advice}") from error
        yield listening


def _at_address(config: PortalConfig, listener: socket.socket | None) -> socket.socket:
    host, port = config.host, config.port
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, *_, address = found[0]
    if not (config.password or config.insecure or is_loopback(str(address[0]))):
        raise ConfigError(
            f"refusing to listen on {host}:{port} without a password, as others may reach it: "
            "give one with --password-file FILE, or allow this with --insecure"
        )
    return listener or socket.create_server(address, family=family, backlog=_BACKLOG)


@contextmanager
def _at_path(path: str) -> Iterator[socket.socket]:
    """Listen at a Unix socket, which is removed at the end; OSError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        os.fchmod(made.fileno(), _UNIX_MODE)  # at no moment more than that
        try:
            made.bind(path)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            _remove_stale(path)
            made.bind(path)
        ours = _open_to_group(path)
        try:
            made.listen(_BACKLOG)
            yield made
        finally:
            with suppress(OSError):
                if os.path.samestat(os.lstat(path), ours):
                    os.unlink(path)


def _open_to_group(path: str) -> os.stat_result:
    """Give a socket its mode, whatever the umask; OSError if the path is no socket any more."""
    there = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(there)
        if not stat.S_ISSOCK(found.st_mode):
            raise FileExistsError(errno.EEXIST, "another program has replaced the socket")
        os.chmod(f"/proc/self/fd/{there}", _UNIX_MODE)
        return found
    finally:
        os.close(there)


def _remove_stale(path: str) -> None:
    """Remove a socket that nobody listens at; OSError if somebody does, or it is no socket."""
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise FileExistsError(errno.EEXIST, "there is a file that is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setblocking(False)
        try:
            asking.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except BlockingIOError:  # too many wait to be accepted
            pass
    raise OSError(errno.EADDRINUSE, "another program listens there")


def address_of(listening: socket.socket) -> tuple[str, int]:
    """Return where a socket listens, as in `PortalConfig`."""
    name = listening.getsockname()
    if listening.family != socket.AF_UNIX:
        return name[0], name[1]
    if isinstance(name, bytes):  # a socket without a file
        name = "@" + os.fsdecode(name[1:])
    return f"{UNIX}{name}", 0


def _url(listening: socket.socket) -> str:
    host, port = address_of(listening)
    if host.startswith(UNIX):
        return host
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Connections:
    """The connections of one portal."""

    def __init__(self, listening: socket.socket, shared: Shared, graceful_timeout: float) -> None:
        self._listening = listening
        self._shared = shared
        self._graceful_timeout = graceful_timeout
        self._open = dict[Connection, None]()  # the oldest first
        self._left = trio.Event()  # one of them has ended
        self._limit = _connection_limit()
        self._waiting_since: float | None = None  # when a client found no room
        self._is_full_told = False

    async def run(
        self,
        on_listening: Callable[[str], None],
        shutdown: trio.Event,
        background: Iterable[Callable[[], Awaitable[None]]],
    ) -> None:
        """Accept connections, and run `background` meanwhile.

        At `shutdown` running requests get `graceful_timeout`; then their connections are closed.
        """
        async with trio.open_nursery() as handlers:
            try:
                async with trio.open_nursery() as accepting:
                    self._listening.setblocking(False)
                    accepting.start_soon(self._accept, handlers)
                    on_listening(_url(self._listening))
                    for task in background:
                        handlers.start_soon(task)
                    await shutdown.wait()
                    accepting.cancel_scope.cancel()
                self._listening.close()
                self._shared.is_stopping = True
                for connection in self._open:
                    connection.end_if_idle()
                with trio.move_on_after(self._graceful_timeout):
                    while self._open:
                        await self._wait_left()
            finally:
                for connection in [*self._open]:
                    connection.abort()
                handlers.cancel_scope.cancel()

    async def _accept(self, handlers: trio.Nursery) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._listening)
            for _ in range(_ACCEPTED_AT_ONCE):
                try:
                    stream, _ = self._listening.accept()
                    await self._take(stream, handlers)
                except BlockingIOError:
                    break
                except ConnectionError:  # it has gone already
                    continue
                except (OSError, MemoryError) as error:  # it goes on when others have left
                    self._tell_full(str(error) or "no memory")
                    await trio.sleep(_PAUSE)
                    break

    async def _take(self, stream: socket.socket, handlers: trio.Nursery) -> None:
        """Serve a client once there is room; else it is told so."""
        stream.setblocking(False)
        if stream.family != socket.AF_UNIX:
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT)
        if not await self._has_room():
            with stream, suppress(OSError):
                stream.send(_BUSY)
                stream.shutdown(socket.SHUT_WR)
                stream.recv(_RECEIVED)  # closing with unread bytes can cost the client the answer
            return
        connection = Connection(stream, self._shared)
        self._open[connection] = None
        handlers.start_soon(self._serve, connection)

    async def _has_room(self) -> bool:
        """Wait for room, but not for long: the others that wait to be accepted do so, too."""
        if len(self._open) < self._limit:
            return True
        is_ended = any(connection.end_if_idle() for connection in self._open)
        if is_ended or self._waiting_since is None:
            self._waiting_since = trio.current_time()
        with trio.move_on_at(self._waiting_since + _PATIENCE):
            while len(self._open) >= self._limit:
                await self._wait_left()
            return True
        self._tell_full(f"there are {self._limit} connections, and others get 503")
        return False

    def _tell_full(self, reason: str) -> None:
        """Log that clients are not served, once until one of those that are has left."""
        if not self._is_full_told:
            self._is_full_told = True
            _log.warning("no more clients can be served now: %s", reason)

    async def _serve(self, connection: Connection) -> None:
        try:
            await connection.serve()
        except Exception:  # noqa: BLE001  # a bug in one must not end the portal
            _log.exception("a connection failed")
        finally:
            del self._open[connection]
            self._waiting_since, self._is_full_told = None, False
            self._left.set()

    async def _wait_left(self) -> None:
        self._left = trio.Event()
        await self._left.wait()


def _connection_limit() -> int:
    """Return how many clients are served at once: each may have a file open besides its socket."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if files == resource.RLIM_INFINITY else max(_LEAST, (files - _OWN_FILES) // 2)
