"""One connection of a client: HTTP/1.1 by h11, and one ASGI request after another.

`http_server` accepts connections and stops them; what requests are answered with, the ASGI
application decides.
"""

import socket
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from email.utils import formatdate
from functools import lru_cache

import h11
import trio
from starlette.types import ASGIApp, Message, Scope

from skymount.server.config import UNIX
from skymount.server.http.access_log import VISIT, Observer, Visit
from skymount.server.http.framing import StrictConnection

_HEADERS_LIMIT = 64 << 10  # bytes of a request line and its headers
_RECEIVE_SIZE = 256 << 10  # bytes received at once
_AHEAD_LIMIT = 64 << 10  # bytes of later requests that are received during a response
_DRAIN_LIMIT = 64 << 20  # bytes read and dropped after an early response
_DRAIN_TIME = 5.0  # seconds; then the connection is closed
_PIECES_AT_ONCE = 32  # pieces of a body, as of tiny chunks, before other connections run
_JOIN_LIMIT = 64 << 10  # bytes of a body that are copied, to be sent together with the head
_BODILESS = frozenset({204, 304})
_BODY_HEADERS = {b"content-length", b"transfer-encoding"}
_GONE = (trio.BrokenResourceError, trio.ClosedResourceError)
_CLOSE = (b"connection", b"close")
_SKYLINK = b"skynet-skylink"


@lru_cache(maxsize=1)
def _date(second: int) -> tuple[bytes, bytes]:
    return b"date", formatdate(second, usegmt=True).encode()


def _skylink_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the skylink that the headers of an answer name, if they do."""
    return next((value.decode() for name, value in headers if name == _SKYLINK), "")


def _peer_of(stream: trio.SocketStream) -> str:
    """Return the IP address of the other end, or `UNIX`; empty if it has gone."""
    if stream.socket.family == socket.AF_UNIX:
        return UNIX
    try:
        name = stream.socket.getpeername()
    except OSError:
        return ""
    return str(name[0]) if isinstance(name, tuple) else ""


def _reached(stream: trio.SocketStream) -> str:
    """Return the address that a client has connected to, as a Host header gives it."""
    name = stream.socket.getsockname()
    if not isinstance(name, tuple):
        return "localhost"
    host, port = name[0].partition("%")[0], name[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Connection:
    """Serves one client. Call `serve` once, and `stop` when the portal ends."""

    def __init__(
        self,
        stream: trio.SocketStream,
        app: ASGIApp,
        idle_timeout: float,
        observers: Sequence[Observer] = (),
    ) -> None:
        """`observers` are told of each request when it was answered."""
        self.stream = stream
        self.http = StrictConnection(_HEADERS_LIMIT)
        self.peer = _peer_of(stream)
        self.reached = _reached(stream)
        self.is_stopping = False
        self._app = app
        self._idle_timeout = idle_timeout
        self._observers = observers
        self._idle: trio.CancelScope | None = None  # while no byte of a request is here

    def stop(self) -> None:
        """Answer no more requests than the one that is under way."""
        self.is_stopping = True
        if self._idle is not None:
            self._idle.cancel()

    async def serve(self) -> None:
        """Answer requests until one side closes the connection, and close it."""
        try:
            while not self.is_stopping:
                request = await self._receive_request()
                if request is None or not await self._answer(request):
                    break
        except* _GONE:
            pass
        finally:
            await trio.aclose_forcefully(self.stream)

    async def _receive_request(self) -> h11.Request | None:
        """Return the next request; None when there is none to be answered."""
        http = self.http
        with trio.move_on_after(self._idle_timeout) as scope:
            while True:
                try:
                    event = http.next_event()
                except h11.RemoteProtocolError as error:
                    if await self.refuse(error):
                        self._tell(Visit(self.peer, status=error.error_status_hint))
                    return None
                if isinstance(event, h11.Request):
                    return event
                if event is not h11.NEED_DATA:
                    return None
                self._idle = None if http.trailing_data[0] else scope
                try:
                    http.receive_data(await self.stream.receive_some(_RECEIVE_SIZE))
                finally:
                    self._idle = None
        return None

    async def _answer(self, request: h11.Request) -> bool:
        """Have the application answer; return whether another request may follow."""
        exchange = _Exchange(self, request)
        began = time.monotonic()
        try:
            await self._app(exchange.scope, exchange.receive, exchange.send)
        finally:
            exchange.visit.seconds = time.monotonic() - began
            self._tell(exchange.visit)
        http = self.http
        if http.our_state not in (h11.DONE, h11.MUST_CLOSE):
            return False  # the client sees that the response is not complete
        await self._drain()
        if http.our_state is h11.DONE and http.their_state is h11.DONE:
            http.start_next_cycle()
            return True
        return False

    def _tell(self, visit: Visit) -> None:
        for observe in self._observers:
            observe(visit)

    async def _drain(self) -> None:
        """Read the rest of a body: closing with unread bytes can cost the client the response."""
        http, size, pieces = self.http, 0, 0
        if http.their_state is not h11.SEND_BODY:
            return
        with trio.move_on_after(_DRAIN_TIME), suppress(h11.RemoteProtocolError):
            if http.our_state is h11.MUST_CLOSE:
                await self.stream.send_eof()  # the client may wait for it
            while http.their_state is h11.SEND_BODY and size < _DRAIN_LIMIT:
                event = http.next_event()
                if event is h11.NEED_DATA:
                    http.receive_data(await self.stream.receive_some(_RECEIVE_SIZE))
                elif isinstance(event, h11.Data):
                    size, pieces = size + len(event.data), pieces + 1
                    if pieces % _PIECES_AT_ONCE == 0:
                        await trio.lowlevel.checkpoint()

    async def refuse(self, error: h11.RemoteProtocolError) -> bool:
        """Answer what is no proper request, without a body, and read on for a while. Return whether
        an answer was still to be given.
        """
        http, stream = self.http, self.stream
        if http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return False
        headers = [(b"content-length", b"0"), _CLOSE, _date(int(time.time()))]
        response = h11.Response(status_code=error.error_status_hint, headers=headers)
        with suppress(*_GONE), trio.move_on_after(_DRAIN_TIME):
            await stream.send_all(http.send(response) or b"")
            await stream.send_eof()
            size = 0
            while size < _DRAIN_LIMIT and (data := await stream.receive_some(_RECEIVE_SIZE)):
                size += len(data)
        return True


class _Exchange:
    """One request and its response, as ASGI has them."""

    def __init__(self, connection: Connection, request: h11.Request) -> None:
        self._connection = connection
        self._http = connection.http
        self._stream = connection.stream
        self._start: Message | None = None
        self._pieces = 0
        self._is_bodiless = request.method == b"HEAD"
        path, _, query = request.target.partition(b"?")
        headers = list(request.headers)
        self.visit = Visit(
            connection.peer,
            request.method.decode(),
            request.target.decode("latin-1"),
            request.http_version.decode(),
            headers,
            path.decode("latin-1"),
        )
        self.scope: Scope = {
            VISIT: self.visit,
            "type": "http",
            "http_version": request.http_version.decode(),
            "method": request.method.decode(),
            "scheme": "http",
            "client": (connection.peer, 0),
            "server": (connection.reached, None),
            "path": path.decode("latin-1"),
            "raw_path": path,
            "query_string": query,
            "headers": headers,
        }
        self._has_body = any(name in _BODY_HEADERS for name, _ in headers)
        if not self._has_body:
            self._http.next_event()  # the end of the request

    async def receive(self) -> Message:
        """Return the next piece of the body; when there is none, wait until the client goes."""
        if not self._has_body:
            self._has_body = True
            return {"type": "http.request", "body": b"", "more_body": False}
        http = self._http
        if http.their_state is not h11.SEND_BODY:
            return await self._receive_end()
        if http.they_are_waiting_for_100_continue:
            go_on = h11.InformationalResponse(status_code=100, headers=[])
            with suppress(*_GONE):
                await self._stream.send_all(http.send(go_on) or b"")
        while True:
            try:
                event = http.next_event()
            except h11.RemoteProtocolError as error:
                if await self._connection.refuse(error):
                    self.visit.status = error.error_status_hint
                return {"type": "http.disconnect"}
            if isinstance(event, h11.Data):
                self._pieces += 1
                if self._pieces % _PIECES_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
                return {"type": "http.request", "body": bytes(event.data), "more_body": True}
            if isinstance(event, h11.EndOfMessage):
                return {"type": "http.request", "body": b"", "more_body": False}
            if not await self._receive_more():
                return {"type": "http.disconnect"}

    async def _receive_end(self) -> Message:
        """Wait until the client has gone. One that only sends nothing more may still read: whether
        it does is seen when a response is sent.
        """
        with suppress(*_GONE):
            while data := await self._stream.receive_some(_RECEIVE_SIZE):
                self._http.receive_data(data)
                if len(self._http.trailing_data[0]) >= _AHEAD_LIMIT:
                    break
            await trio.sleep_forever()
        return {"type": "http.disconnect"}

    async def _receive_more(self) -> bool:
        """Receive bytes; return whether the client is still there."""
        try:
            data = await self._stream.receive_some(_RECEIVE_SIZE)
        except _GONE:
            return False
        if data:
            self._http.receive_data(data)
        return bool(data)

    async def send(self, message: Message) -> None:
        """Send a part of the response; its head goes with the first part of its body."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        http, pieces = self._http, list[bytes]()
        if self._start is not None:
            pieces.append(self._head(self._start))
            self._start = None
        body = b"" if self._is_bodiless else message.get("body", b"")
        if body:
            pieces += http.send_with_data_passthrough(h11.Data(data=body)) or ()
        if not message.get("more_body", False):
            pieces.append(http.send(h11.EndOfMessage()) or b"")
        if len(body) <= _JOIN_LIMIT:
            pieces = [b"".join(pieces)]
        for piece in pieces:
            if piece:
                await self._stream.send_all(piece)
        self.visit.size += len(body)

    def _head(self, start: Message) -> bytes:
        status = start["status"]
        self._is_bodiless = self._is_bodiless or status in _BODILESS
        self.visit.status = status
        self.visit.skylink = _skylink_of(start["headers"]) or self.visit.skylink
        headers = [*start["headers"], _date(int(time.time()))]
        if self._connection.is_stopping or self._http.they_are_waiting_for_100_continue:
            headers.append(_CLOSE)
        return self._http.send(h11.Response(status_code=status, headers=headers)) or b""
