"""Opens the data directory, listens, accepts connections and stops."""

import errno
import logging
import os
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
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
from starlette.types import ASGIApp

from skymount.errors import ConfigError
from skymount.server import control
from skymount.server.config import UNIX, PortalConfig
from skymount.server.endpoints.metrics import Metrics
from skymount.server.http import access_log
from skymount.server.http.access_log import Observer
from skymount.server.http.access_rules import AccessRules
from skymount.server.http.connection import Connection
from skymount.server.routes import build_app
from skymount.server.storage.cluster.choice import open_storage
from skymount.server.storage.cluster.migrations import Tables
from skymount.server.storage.portal_storage import PortalStorage
from skymount.wire.http.host import is_loopback

_log = logging.getLogger(__name__)

_BACKLOG = 128  # connections waiting to be accepted
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
            if not is_unix:
                # Accepted connections inherit it. It also ends one whose client reads nothing.
                timeout_ms = round(config.send_timeout * 1000)
                listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)
            stop = trio.Event() if shutdown is None else shutdown
            on_loopback = is_unix or is_loopback(address_of(listening)[0])
            rules = AccessRules.of(config, on_loopback=on_loopback)
            metrics = Metrics() if config.metrics else None
            observers = list[Observer]()
            if metrics is not None:
                rules.passwords.on_wrong = metrics.count_wrong
                observers.append(metrics.count)
            async with (
                _application(config, stored, rules, metrics) as app,
                access_log.opened(config.access_log) as log,
            ):
                with _control(config) as commands:
                    taking: Callable[[], Awaitable[None]] = partial(control.serve, commands, stored)
                    background = [*stored.background, taking]
                    if log is not None:
                        background.append(log.run)
                        observers.append(log.add)
                    await _run(config, app, listening, on_listening, stop, background, observers)


def _control(config: PortalConfig) -> AbstractContextManager[socket.socket | None]:
    """Return the socket for commands on the data directory; none if that is not used."""
    return nullcontext() if config.cluster else control.listening(config.data)


@asynccontextmanager
async def _application(
    config: PortalConfig, storage: PortalStorage, rules: AccessRules, metrics: Metrics | None
) -> AsyncIterator[ASGIApp]:
    """Return what answers requests, with upstream portals behind what is stored, if any."""
    own = build_app(config, storage, rules, metrics)
    if not config.upstream:
        yield own
        return
    from skymount.server.upstream.loops import LoopMiddleware
    from skymount.server.upstream.opening import open_upstream

    async with open_upstream(config, storage) as (both, loops):
        yield LoopMiddleware(build_app(config, both, rules, metrics), own, loops)


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


async def _run(
    config: PortalConfig,
    app: ASGIApp,
    listening: socket.socket,
    on_listening: Callable[[str], None],
    shutdown: trio.Event,
    background: Iterable[Callable[[], Awaitable[None]]],
    observers: Sequence[Observer],
) -> None:
    """Accept connections, and run `background` meanwhile.

    At `shutdown` running requests get `graceful_timeout`; then their connections are closed.
    """
    connections: set[Connection] = set()
    none_left = trio.Event()

    async def handle(stream: trio.SocketStream) -> None:
        connection = Connection(stream, app, config.idle_timeout, observers)
        connections.add(connection)
        try:
            await connection.serve()
        except Exception:  # noqa: BLE001  # a bug in one must not end the portal
            _log.exception("a connection failed")
        finally:
            connections.discard(connection)
            if not connections:
                none_left.set()

    async with trio.open_nursery() as handlers:
        try:
            async with trio.open_nursery() as accepting:
                listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
                start = partial(trio.serve_listeners, handle, [listener])
                await accepting.start(partial(start, handler_nursery=handlers))
                on_listening(_url(listening))
                for task in background:
                    handlers.start_soon(task)
                await shutdown.wait()
                accepting.cancel_scope.cancel()
            for connection in connections:
                connection.stop()
            if connections:
                none_left = trio.Event()
                with trio.move_on_after(config.graceful_timeout):
                    await none_left.wait()
        finally:
            with trio.CancelScope(shield=True):
                for connection in list(connections):
                    await connection.stream.aclose()
            handlers.cancel_scope.cancel()
