"""Listens, accepts connections and stops; the only importer of hypercorn.

hypercorn's own serving loop cannot stop while a client does not read, and its connections outlive
their clients. So this module runs its own loop, and overrides methods of hypercorn that are
private: of `H11Protocol` the attribute `connection` and the methods `_check_protocol` and
`_create_stream`, of `TCPServer` the method `_read_data` and the attributes `protocol`, `idle_task`
and `_task_group`. The version of hypercorn is pinned for that; check these after an update.
"""

import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, cast

import h11
import trio
from hypercorn.config import Config
from hypercorn.events import Event, Updated
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ASGIFramework, ConnectionState
from hypercorn.utils import wrap_app
from starlette.types import ASGIApp

from skymount.errors import ConfigError
from skymount.server.config import PortalConfig
from skymount.server.http.access_rules import AccessRules
from skymount.server.http.framing import StrictConnection
from skymount.server.routes import build_app
from skymount.server.storage.local_storage import open_local
from skymount.server.storage.portal_storage import PortalStorage
from skymount.wire.http.host import is_loopback

_log = logging.getLogger(__name__)

_BACKLOG = 128  # connections waiting to be accepted
_HEADERS_LIMIT = 64 << 10  # bytes of a request line and its headers
_REQUESTS_PER_CONNECTION = 1_000_000  # a mount keeps its connections for days


async def serve(
    config: PortalConfig,
    *,
    on_listening: Callable[[str], None],
    shutdown: trio.Event | None = None,
    listener: socket.socket | None = None,
) -> None:
    """Run a portal until `shutdown` is set or the task is cancelled.

    `listener` is a socket to accept connections from, in place of one at the address of `config`.
    `on_listening` is called with its URL once it accepts connections. StorageError when the data
    directory cannot be used, ConfigError when the address cannot.
    """
    async with open_local(config.data) as stored:
        with await trio.to_thread.run_sync(_listen, config, listener) as listening:
            # Accepted connections inherit it. It also ends one whose client reads nothing.
            timeout_ms = round(config.send_timeout * 1000)
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)
            stop = trio.Event() if shutdown is None else shutdown
            rules = AccessRules.of(config, on_loopback=is_loopback(listening.getsockname()[0]))
            async with _with_upstream(config, stored) as (storage, guard):
                app = guard(build_app(config, storage, rules))
                await _run(config, app, listening, on_listening, stop, storage.background)


@asynccontextmanager
async def _with_upstream(
    config: PortalConfig, storage: PortalStorage
) -> AsyncIterator[tuple[PortalStorage, Callable[[ASGIApp], ASGIApp]]]:
    """Put upstream portals behind what is stored here, if there are any."""
    if not config.upstream:
        yield storage, lambda app: app
        return
    from skymount.server.upstream.opening import open_upstream

    async with open_upstream(config, storage) as upstream:
        yield upstream


def _listen(config: PortalConfig, listener: socket.socket | None) -> socket.socket:
    host, port = config.host, config.port
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = found[0]
        if not (config.password or config.insecure or is_loopback(str(address[0]))):
            raise ConfigError(
                f"refusing to listen on {host}:{port} without a password, as others may reach it: "
                "give one with --password-file FILE, or allow this with --insecure"
            )
        return listener or socket.create_server(address, family=family, backlog=_BACKLOG)
    except (OSError, OverflowError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        reason = str(reason or error).partition(" (while")[0]  # what create_server adds
        raise ConfigError(f"cannot listen on {host}:{port}: {reason}") from error


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _hypercorn_config(config: PortalConfig) -> Config:
    log = logging.getLogger(f"{__name__}.hypercorn")
    log.setLevel(logging.ERROR)
    settings = Config()
    settings.errorlog = log
    settings.accesslog = None
    settings.include_server_header = False
    settings.h11_max_incomplete_size = _HEADERS_LIMIT
    settings.keep_alive_timeout = config.idle_timeout
    settings.keep_alive_max_requests = _REQUESTS_PER_CONNECTION
    return settings


class _Http1(H11Protocol):
    """hypercorn's HTTP/1.1, without upgrades to WebSocket and HTTP/2, and with strict framing.

    No endpoint needs an upgrade, and hypercorn fails on malformed ones instead of refusing them.
    Requests to upgrade are ignored, as a server may; the preface of HTTP/2 gets an error.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        limit = self.config.h11_max_incomplete_size
        self.connection = StrictConnection(h11.SERVER, max_incomplete_event_size=limit)

    async def _check_protocol(self, event: h11.Request) -> None:
        pass

    async def _create_stream(self, request: h11.Request) -> None:
        headers = [(name, value) for name, value in request.headers if name != b"upgrade"]
        if len(headers) != len(request.headers):
            request = h11.Request(
                method=request.method,
                target=request.target,
                headers=headers,
                http_version=request.http_version,
            )
        await super()._create_stream(request)


class _Connection(TCPServer):
    """hypercorn's connection, HTTP/1.1 only, which ends at once when the client has closed it."""

    _has_ended = False

    async def _read_data(self) -> None:
        wrapper = self.protocol
        wrapper.protocol = _Http1(
            self.app,
            self.config,
            self.context,
            self._task_group,
            wrapper.state,
            wrapper.ssl,
            wrapper.client,
            wrapper.server,
            wrapper.send,
        )
        await super()._read_data()
        self._has_ended = True
        await self.idle_task.stop()

    async def protocol_send(self, event: Event) -> None:
        if self._has_ended and isinstance(event, Updated):  # nobody read the response
            return
        with suppress(trio.BusyResourceError):  # the connection is being closed
            await super().protocol_send(event)


async def _run(
    config: PortalConfig,
    app: ASGIApp,
    listening: socket.socket,
    on_listening: Callable[[str], None],
    shutdown: trio.Event,
    background: Iterable[Callable[[], Awaitable[None]]],
) -> None:
    """Accept connections, and run `background` meanwhile.

    At `shutdown` running requests get `grace`; then streams are closed.
    """
    wrapped = wrap_app(cast(ASGIFramework, app), 0, "asgi")
    settings, context = _hypercorn_config(config), WorkerContext(None)
    streams: set[trio.SocketStream] = set()
    none_left = trio.Event()

    async def handle(stream: trio.SocketStream) -> None:
        streams.add(stream)
        try:
            typed = cast(trio.SSLStream[trio.SocketStream], stream)
            await _Connection(wrapped, settings, context, ConnectionState({}), typed)
        except* Exception:  # noqa: BLE001  # a bug in one must not end the portal
            _log.exception("a connection failed")
        finally:
            streams.discard(stream)
            if context.terminated.is_set() and not streams:
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
        finally:
            await context.terminated.set()
            with trio.CancelScope(shield=True):
                if streams:
                    with trio.move_on_after(config.grace):
                        await none_left.wait()
                for stream in list(streams):
                    await stream.aclose()
            handlers.cancel_scope.cancel()
