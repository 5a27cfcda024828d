"""One connection of a client: HTTP/1.1, and one ASGI request after another.

`framing` and `response_framing` say what the bytes mean. `http_server` accepts connections and
stops them; what requests are answered with, the ASGI application decides.
"""

import time
from contextlib import suppress
from email.utils import formatdate
from functools import lru_cache

import trio
from starlette.types import ASGIApp, Message, Scope

from skymount.server.http.framing import RequestHead, RequestReader
from skymount.server.http.response_framing import ResponseFraming, encode_head
from skymount.server.http_error import HttpError

_HEAD_LIMIT = 64 << 10  # bytes of a request line and its headers
_RECEIVE_SIZE = 256 << 10  # bytes received at once
_AHEAD_LIMIT = 64 << 10  # bytes of later requests that are received during a response
_DRAIN_LIMIT = 64 << 20  # bytes read and dropped after an early response
_DRAIN_TIME = 5.0  # seconds; then the connection is closed
_PIECES_AT_ONCE = 32  # pieces of a body, as of tiny chunks, before other connections run
_JOIN_LIMIT = 64 << 10  # bytes of a body that are copied, to be sent together with the head
_CONTINUE = b"HTTP/1.1 100 \r\n\r\n"
_GONE = (trio.BrokenResourceError, trio.ClosedResourceError)


@lru_cache(maxsize=1)
def _date(second: int) -> tuple[bytes, bytes]:
    return b"date", formatdate(second, usegmt=True).encode()


class Connection:
    """Serves one client. Call `serve` once, and `stop` when the portal ends."""

    def __init__(self, stream: trio.SocketStream, app: ASGIApp, idle_timeout: float) -> None:
        self.stream = stream
        self.reader = RequestReader(_HEAD_LIMIT)
        self.is_stopping = False
        self._app = app
        self._idle_timeout = idle_timeout
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

    async def _receive_request(self) -> RequestHead | None:
        """Return the next request; None when there is none to be answered."""
        reader = self.reader
        with trio.move_on_after(self._idle_timeout) as scope:
            try:
                while (request := reader.next_head()) is None:
                    self._idle = None if reader.ahead else scope
                    data = await self.stream.receive_some(_RECEIVE_SIZE)
                    self._idle = None
                    if not data and reader.ahead:
                        raise HttpError(400, "a request is not complete")
                    if not data:
                        return None
                    reader.receive(data)
                return request
            except HttpError as error:
                await self.refuse(error)
            finally:
                self._idle = None
        return None

    async def _answer(self, request: RequestHead) -> bool:
        """Have the application answer; return whether another request may follow."""
        exchange = _Exchange(self, request)
        await self._app(exchange.scope, exchange.receive, exchange.send)
        if not exchange.is_complete:
            return False  # the client sees that the response is not complete
        if self.reader.has_body:
            await self._drain(closes=exchange.closes)
        return not (exchange.closes or self.reader.has_body)

    async def _drain(self, *, closes: bool) -> None:
        """Read the rest of a body: closing with unread bytes can cost the client the response."""
        reader, size, pieces = self.reader, 0, 0
        with trio.move_on_after(_DRAIN_TIME), suppress(HttpError):
            if closes:
                await self.stream.send_eof()  # the client may wait for it
            while reader.has_body and size < _DRAIN_LIMIT:
                piece = reader.next_piece()
                if piece is None:
                    data = await self.stream.receive_some(_RECEIVE_SIZE)
                    if not data:
                        break
                    reader.receive(data)
                else:
                    size, pieces = size + len(piece), pieces + 1
                    if pieces % _PIECES_AT_ONCE == 0:
                        await trio.lowlevel.checkpoint()

    async def refuse(self, error: HttpError) -> None:
        """Answer what is no proper request, without a body, and read on for a while."""
        stream = self.stream
        headers = [(b"content-length", b"0"), (b"connection", b"close"), _date(int(time.time()))]
        with suppress(*_GONE), trio.move_on_after(_DRAIN_TIME):
            await stream.send_all(encode_head(error.status, headers))
            await stream.send_eof()
            size = 0
            while size < _DRAIN_LIMIT and (data := await stream.receive_some(_RECEIVE_SIZE)):
                size += len(data)


class _Exchange:
    """One request and its response, as ASGI has them."""

    def __init__(self, connection: Connection, request: RequestHead) -> None:
        self._connection = connection
        self._reader = connection.reader
        self._stream = connection.stream
        self._start: Message | None = None
        self._response = ResponseFraming(request)
        self._is_begun = False  # the response, or that there is none
        self._waits_for_continue = request.expects_continue and self._reader.has_body
        self._is_received = False  # the whole body
        self._pieces = 0
        self.is_complete = False
        """Whether the whole response was sent."""
        path, _, query = request.target.partition(b"?")
        self.scope: Scope = {
            "type": "http",
            "http_version": "1.0" if request.is_1_0 else "1.1",
            "method": request.method.decode(),
            "scheme": "http",
            "path": path.decode("latin-1"),
            "raw_path": path,
            "query_string": query,
            "headers": request.headers,
        }

    @property
    def closes(self) -> bool:
        """Whether the connection ends with the response."""
        return self._response.closes

    async def receive(self) -> Message:
        """Return the next piece of the body; when there is none, wait until the client goes."""
        if self._is_received:
            return await self._receive_end()
        if self._waits_for_continue and not self._is_begun:
            with suppress(*_GONE):
                await self._stream.send_all(_CONTINUE)
        self._waits_for_continue = False
        reader = self._reader
        try:
            while (piece := reader.next_piece()) is None:
                if not await self._receive_more():
                    return {"type": "http.disconnect"}
        except HttpError as error:
            if not self._is_begun:
                self._is_begun = True
                await self._connection.refuse(error)
            return {"type": "http.disconnect"}
        self._pieces += 1
        if self._pieces % _PIECES_AT_ONCE == 0:
            await trio.lowlevel.checkpoint()
        self._is_received = not reader.has_body
        return {"type": "http.request", "body": piece, "more_body": reader.has_body}

    async def _receive_end(self) -> Message:
        """Wait until the client has gone. One that only sends nothing more may still read: whether
        it does is seen when a response is sent.
        """
        with suppress(*_GONE):
            while data := await self._stream.receive_some(_RECEIVE_SIZE):
                self._reader.receive(data)
                if self._reader.ahead >= _AHEAD_LIMIT:
                    break
            await trio.sleep_forever()
        return {"type": "http.disconnect"}

    async def _receive_more(self) -> bool:
        """Receive bytes; return whether the client is still there."""
        try:
            data = await self._stream.receive_some(_RECEIVE_SIZE)
        except _GONE:
            return False
        self._reader.receive(data)
        return bool(data)

    async def send(self, message: Message) -> None:
        """Send a part of the response; its head goes with the first part of its body."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        pieces = list[bytes]()
        if self._start is not None:
            pieces.append(self._head(self._start))
            self._start = None
        body, is_last = message.get("body", b""), not message.get("more_body", False)
        pieces += self._response.body(body)
        if is_last:
            pieces.append(self._response.end())
        if len(body) <= _JOIN_LIMIT:
            pieces = [b"".join(pieces)]
        for piece in pieces:
            if piece:
                await self._stream.send_all(piece)
        self.is_complete = is_last

    def _head(self, start: Message) -> bytes:
        self._is_begun = True
        self._response.closes |= self._connection.is_stopping or self._waits_for_continue
        return self._response.head(start["status"], [*start["headers"], _date(int(time.time()))])
