"""Owns one TCP or TLS stream to a server: bytes out and in, and a bound on each wait.

Every failure is raised as httpx names it. What the bytes mean is not known here.
"""

import math
import select
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

import httpx
import trio

_FAILED = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)
T = TypeVar("T")

_ENDED = select.POLLRDHUP | select.POLLHUP | select.POLLERR

_MUCH = 256 << 10
"""Bytes that are worth waking up for, where they come fast."""

_GATHERING = 0.02
"""Seconds that they may take: on a slower way whatever has come is taken."""


class NotFollowedError(Exception):
    """A redirect must not be followed; the text says what is wrong with where it leads."""


CheckAddress = Callable[[str], None]
"""NotFollowedError for a numeric address that a redirect may not lead to."""


class Link(ABC):
    """A stream that stands. One task at a time sends and one receives; any may close it, which ends
    that.
    """

    def __init__(self, peer: str) -> None:
        self.peer = peer
        """The numeric address of the other end."""

    @property
    @abstractmethod
    def is_closed(self) -> bool:
        """Whether `close` was called."""

    @abstractmethod
    def close(self) -> None:
        """End it at once."""

    @abstractmethod
    def is_quiet(self) -> bool:
        """Whether it still stands and nothing came unasked, as far as is known without waiting."""

    @abstractmethod
    def has_ended(self) -> bool:
        """Whether the server closed it, as far as is known without waiting."""

    @abstractmethod
    async def send(self, data: bytes, timeout: float | None) -> None:
        """Send all of some bytes."""

    @abstractmethod
    async def receive(self, limit: int, timeout: float | None) -> bytes:
        """Return at most `limit` bytes of what comes next; none at the end."""

    @abstractmethod
    async def receive_into(self, view: memoryview, timeout: float | None) -> int:
        """Put what comes next into a buffer, as far as it fits; return how much, 0 at the end."""


async def open_link(
    host: str,
    port: int,
    context: ssl.SSLContext | None,
    timeout: float | None,
    check: CheckAddress | None = None,
) -> Link:
    """Connect, with TLS if there is a context, to whichever address answers first.

    Nothing is sent to one that does not pass the check; without one each will do.
    """
    with trio.move_on_after(_seconds(timeout)):
        try:
            if check is not None:
                await check_addresses(host, port, check)
            stream = await trio.open_tcp_stream(host, port)
            peer = _checked_peer(stream, check)
        except OSError as error:
            raise httpx.ConnectError(str(error)) from error
        if context is None:
            return _Plain(stream, peer)
        tls = trio.SSLStream(stream, context, server_hostname=host, https_compatible=True)
        try:
            await tls.do_handshake()
        except _FAILED as error:
            stream.socket.close()
            raise httpx.ConnectError(str(error.__cause__ or error)) from error
        except BaseException:
            stream.socket.close()
            raise
        return _Secure(stream, tls, peer)
    raise httpx.ConnectTimeout("")


async def check_addresses(host: str, port: int, check: CheckAddress) -> None:
    """Check every address that a host has; OSError when none can be found."""
    for found in await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM):
        check(str(found[4][0]))


def _checked_peer(stream: trio.SocketStream, check: CheckAddress | None) -> str:
    """Return the address of the other end: the name's may have changed since they were checked."""
    try:
        peer: str = stream.socket.getpeername()[0]
        if check is not None:
            check(peer)
    except BaseException:
        stream.socket.close()
        raise
    return peer


class _Plain(Link):
    """A TCP stream. Its socket is asked at once, and waited for if it has to be: to bound a wait
    takes longer than most calls. Nothing copies what is received: it comes straight from the
    kernel.

    Who fills a buffer, and has emptied the socket, waits for much at a time: each turn of the loop
    costs as much as receiving 100 KiB, and the sender is woken for what room it makes.
    """

    def __init__(self, stream: trio.SocketStream, peer: str) -> None:
        super().__init__(peer)
        self._socket = socket.socket(fileno=stream.socket.detach())
        self._socket.setblocking(False)
        self._is_emptied = False
        """Whether the last buffer did not get full."""
        self._is_fast = True
        """Whether much came in time when it was last waited for."""

    @property
    def is_closed(self) -> bool:
        return self._socket.fileno() < 0

    def close(self) -> None:
        if not self.is_closed:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()

    def is_quiet(self) -> bool:
        return not self.is_closed and _is_quiet(self._socket, _ENDED | select.POLLIN)

    def has_ended(self) -> bool:
        return not self.is_closed and not _is_quiet(self._socket, _ENDED)

    async def send(self, data: bytes, timeout: float | None) -> None:
        rest = memoryview(data)
        try:
            while rest:
                try:
                    rest = rest[self._socket.send(rest) :]
                except BlockingIOError:
                    with _bounded(timeout, httpx.WriteTimeout):
                        await trio.lowlevel.wait_writable(self._socket)
        except _FAILED as error:
            raise httpx.WriteError(str(error)) from error

    async def receive(self, limit: int, timeout: float | None) -> bytes:
        return await self._received(partial(self._socket.recv, limit), timeout)

    async def receive_into(self, view: memoryview, timeout: float | None) -> int:
        is_waiting = self._is_emptied and self._is_fast
        if is_waiting:
            await self._gather(min(len(view), _MUCH))
        receive = partial(self._socket.recv_into, view)
        received = await self._received(receive, timeout, has_waited=is_waiting)
        self._is_emptied = received < len(view)
        self._is_fast = self._is_fast or received >= _MUCH
        return received

    async def _gather(self, size: int) -> None:
        """Wait until so many bytes are here, or the end is; but not for long."""
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
            try:
                with trio.move_on_after(_GATHERING) as scope:
                    await trio.lowlevel.wait_readable(self._socket)
            finally:
                if not self.is_closed:
                    self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        except _FAILED as error:
            raise httpx.ReadError(str(error)) from error
        self._is_fast = not scope.cancelled_caught

    async def _received(
        self, receive: Callable[[], T], timeout: float | None, *, has_waited: bool = False
    ) -> T:
        try:
            try:
                received = receive()
            except BlockingIOError:
                pass
            else:
                if not has_waited:  # what comes fast must not hold up all else
                    await trio.lowlevel.checkpoint()
                return received
            while True:
                with _bounded(timeout, httpx.ReadTimeout):
                    await trio.lowlevel.wait_readable(self._socket)
                with suppress(BlockingIOError):  # it may have been nothing
                    return receive()
        except _FAILED as error:
            raise httpx.ReadError(str(error)) from error


class _Secure(Link):
    """A TLS stream."""

    def __init__(
        self, stream: trio.SocketStream, tls: trio.SSLStream[trio.SocketStream], peer: str
    ) -> None:
        super().__init__(peer)
        self._socket = stream.socket
        self._tls = tls
        self._has_received = False

    @property
    def is_closed(self) -> bool:
        return self._socket.fileno() < 0

    def close(self) -> None:
        self._socket.close()

    def is_quiet(self) -> bool:
        if self.is_closed or self._has_left_overs():
            return False
        # After the handshake the server may send something that is no answer (tickets).
        return _is_quiet(self._socket, _ENDED | select.POLLIN if self._has_received else _ENDED)

    def _has_left_overs(self) -> bool:
        """Whether TLS took more from the socket than was received: the next answer would begin
        with it. trio has no public way to ask.
        """
        return bool(self._tls._incoming.pending or self._tls._ssl_object.pending())

    def has_ended(self) -> bool:
        return not self.is_closed and not _is_quiet(self._socket, _ENDED)

    async def send(self, data: bytes, timeout: float | None) -> None:
        try:
            with _bounded(timeout, httpx.WriteTimeout):
                await self._tls.send_all(data)
        except _FAILED as error:
            raise httpx.WriteError(str(error)) from error

    async def receive(self, limit: int, timeout: float | None) -> bytes:
        try:
            with _bounded(timeout, httpx.ReadTimeout):
                data = await self._tls.receive_some(limit)
        except _FAILED as error:
            raise httpx.ReadError(str(error)) from error
        self._has_received = True
        return bytes(data)

    async def receive_into(self, view: memoryview, timeout: float | None) -> int:
        data = await self.receive(len(view), timeout)
        view[: len(data)] = data
        return len(data)


def _is_quiet(stream: socket.socket | trio.socket.SocketType, events: int) -> bool:
    poll = select.poll()
    poll.register(stream, events)
    return not poll.poll(0)


@contextmanager
def _bounded(timeout: float | None, error: type[httpx.TimeoutException]) -> Iterator[None]:
    """Raise an error when what is waited for takes longer."""
    with trio.move_on_after(_seconds(timeout)) as scope:
        yield
    if scope.cancelled_caught:
        raise error("")


def _seconds(timeout: float | None) -> float:
    return math.inf if timeout is None else timeout
