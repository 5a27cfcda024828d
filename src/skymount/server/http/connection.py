"""One connection of a client: reads requests, has each answered, and writes the answers.

`http_server` accepts connections and stops them. What a client does not take stays where it is:
files go from the disk to the socket, and other bodies are made piece by piece. A piece is small
where the pieces of all answers take much memory.
"""

import errno
import logging
import math
import os
import socket
import time
from collections.abc import Generator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Protocol

import trio

from skymount.errors import StorageError
from skymount.large_buffers import BufferUse
from skymount.server.config import UNIX
from skymount.server.http.access_log import Observer, Visit
from skymount.server.http.messages import (
    BODILESS,
    FIRST_PIECE,
    ClientGoneError,
    FileRange,
    Pieces,
    Request,
    Response,
    encode_head,
    encode_line,
)
from skymount.server.http.parsing import BadRequestError, BodyReader, Head, take_head
from skymount.server.http_error import HttpError
from skymount.server.storage.stored_range import STREAM_CHUNK_SIZE

_log = logging.getLogger(__name__)

_ROOM = 32 << 20  # bytes of the larger pieces of all answers
_RECEIVE_SIZE = 256 << 10  # bytes received at once
_PIECES_AT_ONCE = 4  # pieces of a body that was sent, before other connections run
_DRAIN_LIMIT = 64 << 20  # bytes read and dropped after an early answer
_DRAIN_TIME = 5.0  # seconds; then the connection is closed
_FILE_STEP = 8 << 20  # bytes of a file that a thread sends, if the socket has room for them
_TELL = 60.0  # seconds between lines of the log about clients that take nothing
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_GONE = frozenset(
    getattr(errno, name)
    for name in ("EPIPE", "ECONNRESET", "ETIMEDOUT", "EHOSTUNREACH", "ENETUNREACH", "ENOTCONN")
)


class Portal(Protocol):
    """What answers requests."""

    async def answer(self, request: Request) -> Response:
        """Answer a request; ClientGoneError."""

    async def failed(self, request: Request, error: Exception) -> Response:
        """Return the answer that says why the body of another one cannot be made."""

    def varies(self, request: Request, status: int) -> tuple[str, ...]:
        """Return the request headers that an answer depends on, besides what itself says."""


@dataclass(slots=True)
class Shared:
    """What all connections of a portal share."""

    portal: Portal
    idle_timeout: float
    send_timeout: float
    observers: Sequence[Observer] = ()
    """They are told of each request when it was answered."""
    is_stopping: bool = False
    buffers: BufferUse = field(default_factory=BufferUse)
    _room: int = _ROOM
    _given_up: int = 0  # clients that the log has not counted yet
    _next_told: float = 0

    def take_room(self) -> int:
        """Return how many bytes the next piece of a body may have."""
        if self._room < STREAM_CHUNK_SIZE:
            return FIRST_PIECE
        self._room -= STREAM_CHUNK_SIZE
        return STREAM_CHUNK_SIZE

    def give_room(self, taken: int) -> None:
        if taken == STREAM_CHUNK_SIZE:
            self._room += taken

    def give_up(self) -> None:
        """Count a client that takes nothing; the log says so once a minute."""
        self._given_up += 1
        if trio.current_time() >= self._next_told:
            seconds = f"{self.send_timeout:.0f} s"
            _log.warning(
                "closed %d connections, as they read nothing for %s", self._given_up, seconds
            )
            self._given_up, self._next_told = 0, trio.current_time() + _TELL


def _addresses(stream: socket.socket) -> tuple[str, str]:
    """Return the IP address of the other end, or `UNIX`, empty if it has gone; and the address
    that it has connected to, as a Host header gives it.
    """
    if stream.family == socket.AF_UNIX:
        return UNIX, "localhost"
    host, port = stream.getsockname()[:2]
    host = host.partition("%")[0]
    reached = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        return str(stream.getpeername()[0]), reached
    except OSError:
        return "", reached


class Connection:
    """Serves one client. Call `serve` once."""

    def __init__(self, stream: socket.socket, shared: Shared) -> None:
        """`stream` does not block; it is closed at the end."""
        self.held = bytearray()
        """What was received, and not used yet."""
        self.shared = shared
        self._stream = stream
        self._peer, self._reached = _addresses(stream)
        self._scope = trio.CancelScope()  # of all that is done here
        self._is_idle = False  # while no byte of a request is here

    def end_if_idle(self) -> bool:
        """Close the connection if no request is under way; return whether that is so."""
        if not self._is_idle or self._has_arrived():
            return False
        self._scope.cancel()
        return True

    def _has_arrived(self) -> bool:
        """Whether bytes wait to be received."""
        with suppress(OSError):
            return bool(self._stream.recv(1, socket.MSG_PEEK))
        return False

    def abort(self) -> None:
        """End the connection, whatever is under way. `serve` closes it: a thread may be about to
        write to its descriptor, which must not be another file by then.
        """
        with suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)

    async def serve(self) -> None:
        """Answer requests until one side closes the connection, and close it."""
        try:
            with self._scope:
                while not self.shared.is_stopping and await self._serve_request():
                    pass
        except ClientGoneError:
            pass
        finally:
            self._stream.close()

    async def _serve_request(self) -> bool:
        """Answer the next request; return whether another one may follow."""
        try:
            head = await self._receive_head()
        except BadRequestError as error:
            self._tell(Visit(self._peer, status=error.status))
            await self._refuse(error)
            return False
        if head is None:
            return False
        path, _, query = head.target.partition("?")
        visit = Visit(self._peer, head.method, head.target, head.version, head.headers, path)
        body = _Body(self, head)
        request = Request(
            head.method,
            path,
            query,
            head.version,
            head.headers,
            body,
            self._peer,
            self._reached,
            visit,
        )
        writer = _Writer(self, request, head, body)
        began = time.monotonic()
        try:
            response = await self.shared.portal.answer(request)
            is_sent = await writer.write(response)
        finally:
            visit.seconds = time.monotonic() - began
            self._tell(visit)
        if is_sent and not body.reader.is_ended:
            await self._drain(body, is_last=writer.closes)
        return is_sent and not writer.closes and body.reader.is_ended

    def _tell(self, visit: Visit) -> None:
        for observe in self.shared.observers:
            observe(visit)

    async def _receive_head(self) -> Head | None:
        """Return the head of the next request; None when there is none. BadRequestError."""
        if self.held:  # a request that came early: others get their turn first
            await trio.lowlevel.checkpoint()
        self._scope.deadline = trio.current_time() + self.shared.idle_timeout
        while (head := take_head(self.held)) is None:
            self._is_idle = not self.held
            await trio.lowlevel.wait_readable(self._stream)
            self._is_idle = False
            await trio.lowlevel.checkpoint_if_cancelled()  # no request is left half done
            if not await self.receive():
                if self.held:
                    raise BadRequestError("the request ends within its head")
                return None
        self._scope.deadline = math.inf
        return head

    async def receive(self) -> int:
        """Receive bytes; return how many, 0 at the end. ClientGoneError."""
        while True:
            try:
                data = self._stream.recv(_RECEIVE_SIZE)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._stream)
            except OSError:
                raise ClientGoneError from None
            else:
                self.held += data
                return len(data)

    async def send(self, data: bytes) -> None:
        """Send all of it; ClientGoneError."""
        rest = memoryview(data)
        while True:
            try:
                rest = rest[self._stream.send(rest) :]
            except BlockingIOError:
                pass
            except OSError:
                raise ClientGoneError from None
            if not rest:
                return
            await self._wait_writable()

    async def send_file(self, descriptor: int, offset: int, size: int) -> int:
        """Send what the client takes of a part of a file, and return how much that is.

        StorageError at the end of the file, OSError; ClientGoneError.
        """
        while True:
            await self._wait_writable()
            sent = await trio.to_thread.run_sync(self._send_file, descriptor, offset, size)
            if sent is not None:
                return sent

    def _send_file(self, descriptor: int, offset: int, size: int) -> int | None:
        """Wait for the disk alone; None if the client takes nothing."""
        try:
            sent = os.sendfile(self._stream.fileno(), descriptor, offset, min(size, _FILE_STEP))
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno in _GONE:
                raise ClientGoneError from None
            raise
        if not sent:
            raise StorageError("a stored file is damaged: shorter than recorded")
        return sent

    async def _wait_writable(self) -> None:
        """Wait until the client takes more; ClientGoneError if it takes nothing for too long."""
        with trio.move_on_after(self.shared.send_timeout):
            await trio.lowlevel.wait_writable(self._stream)
            return
        self.shared.give_up()
        raise ClientGoneError

    async def _drain(self, body: "_Body", *, is_last: bool) -> None:
        """Read the rest of a body: closing with unread bytes can cost the client the answer."""
        size = 0
        with trio.move_on_after(_DRAIN_TIME):
            with suppress(BadRequestError):
                while not is_last and size < _DRAIN_LIMIT:
                    data = await body.receive()
                    if not data:
                        return
                    size += len(data)
            await self._end_sending()

    async def _refuse(self, error: BadRequestError) -> None:
        """Answer what is no proper request with a line that says why, and read on for a while."""
        with trio.move_on_after(_DRAIN_TIME):
            await self.send(encode_line(error.status, error.message))
            await self._end_sending()

    async def _end_sending(self) -> None:
        """Tell the client, which may wait for it, that nothing follows; drop what it sends."""
        size = 0
        with suppress(OSError):
            self._stream.shutdown(socket.SHUT_WR)
        while size < _DRAIN_LIMIT and (received := await self.receive()):
            size += received
            self.held.clear()
            await trio.lowlevel.checkpoint()


class _Body:
    """The body of a request. The client is told to send it when an endpoint wants it."""

    def __init__(self, connection: Connection, head: Head) -> None:
        self.reader = BodyReader(head.body)
        self._connection = connection
        self._awaits_continue = head.awaits_continue and not self.reader.is_ended
        self._is_broken = False
        self._pieces = 0

    @property
    def ends_connection(self) -> bool:
        """Whether it is not known where the next request begins."""
        return self._is_broken or self._awaits_continue

    async def receive(self) -> bytes:
        reader, connection = self.reader, self._connection
        if self._awaits_continue:
            self._awaits_continue = False
            await connection.send(_CONTINUE)
        while not reader.is_ended:
            try:
                data = reader.take(connection.held)
            except BadRequestError:
                self._is_broken = True
                raise
            if data is not None:
                self._pieces += 1
                if self._pieces % _PIECES_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
                return data
            if not await connection.receive():
                raise ClientGoneError
        return b""


class _Writer:
    """Writes the answer to one request."""

    def __init__(self, connection: Connection, request: Request, head: Head, body: _Body) -> None:
        self.closes = True
        """Whether the connection ends with the answer."""
        self._connection = connection
        self._request = request
        self._head = head
        self._body = body
        self._is_begun = False

    async def write(self, response: Response) -> bool:
        """Send an answer; return whether it was sent whole. ClientGoneError."""
        try:
            await self._write(response)
        except ClientGoneError:
            raise
        except Exception as error:
            if self._is_begun:
                if not isinstance(error, HttpError | StorageError | OSError):
                    raise
                request = self._request
                _log.error("%s %r: broken off: %s", request.method, request.path, error)
                return False
            failed = await self._connection.shared.portal.failed(self._request, error)
            await self._write(failed)
        return True

    async def _write(self, response: Response) -> None:
        body = response.body
        is_bodiless = self._request.method == "HEAD" or response.status in BODILESS
        if isinstance(body, Pieces):
            with closing(body.made):
                if is_bodiless:
                    await self._send(self._begin(response))
                else:
                    await self._send_pieces(response, body)
        elif is_bodiless or not body:
            await self._send(self._begin(response))
        elif isinstance(body, FileRange):
            await self._send_file(response, body)
        else:
            await self._send(self._begin(response), body)

    def _begin(self, response: Response) -> bytes:
        """Return the head of an answer, which is sent at once."""
        head, shared, visit = self._head, self._connection.shared, self._request.visit
        self._is_begun = True
        visit.status, visit.skylink = response.status, response.skylink or visit.skylink
        is_last = shared.is_stopping or self._body.ends_connection or not head.keeps_open
        is_open_ended = response.length is None and head.version == "1.0"
        self.closes = is_last or (is_open_ended and response.status not in BODILESS)
        varies = shared.portal.varies(self._request, response.status)
        added = self._request.added
        return encode_head(response, head.version, added, varies, closes=self.closes)

    async def _send(self, start: bytes, data: bytes = b"", end: bytes = b"") -> None:
        """Send a part of the body, between what is none of it."""
        if len(data) <= FIRST_PIECE:
            await self._connection.send(start + data + end)
        else:
            for part in filter(None, (start, data, end)):
                await self._connection.send(part)
        self._request.visit.size += len(data)

    async def _send_file(self, response: Response, body: FileRange) -> None:
        descriptor, content = await trio.to_thread.run_sync(body.open)
        try:
            await self._send(self._begin(response), content)
            offset, end = body.offset + len(content), body.offset + body.length
            while offset < end:
                sent = await self._connection.send_file(descriptor, offset, end - offset)
                offset += sent
                self._request.visit.size += sent
        finally:
            os.close(descriptor)

    async def _send_pieces(self, response: Response, body: Pieces) -> None:
        is_chunked = body.length is None and self._head.version == "1.1"
        shared, room = self._connection.shared, None
        shared.buffers.begin()
        try:
            piece = await trio.to_thread.run_sync(_next_piece, body.made, room)
            start = self._begin(response)
            while piece is not None:
                if piece and is_chunked:
                    await self._send(start + b"%x\r\n" % len(piece), piece, b"\r\n")
                elif piece or start:
                    await self._send(start, piece)
                start = b""
                shared.give_room(room or 0)
                room = shared.take_room()
                piece = await trio.to_thread.run_sync(_next_piece, body.made, room)
            if end := start + b"0\r\n\r\n" * is_chunked:
                await self._send(end)
        finally:
            shared.give_room(room or 0)
            with trio.CancelScope(shield=True):
                await shared.buffers.end(self._request.visit.size)


def _next_piece(made: Generator[bytes, int | None], room: int | None) -> bytes | None:
    """Return the next piece of a body, of about as many bytes as there is room for; None at the
    end.
    """
    try:
        return made.send(room)
    except StopIteration:
        return None
