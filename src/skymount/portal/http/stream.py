"""One TCP stream to a server, with TLS or without: bytes out and in, and a bound on each wait.

Errors are those of httpx. What the bytes mean is left to ``http11``.
"""

import array
import fcntl
import math
import os
import select
import socket
import ssl
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import NamedTuple, Self, TypeVar

import httpx
import trio

_FAILED = (trio.ClosedResourceError, OSError)
T = TypeVar("T")

_ENDED = select.POLLRDHUP | select.POLLHUP | select.POLLERR

_GATHERED = 256 << 10
"""Bytes that are worth waiting for on a fast stream: each turn of the loop costs as much as
receiving 100 KiB, and the sender is woken for the room that is made.
"""

_GATHERING = 0.02
"""Seconds that they may take. A slower stream is read as it comes."""

_DECRYPTED = 1 << 20
"""Bytes that are decrypted at once, in under a millisecond."""


class NotFollowedError(Exception):
    """A redirect must not be followed; the text says what is wrong with where it leads."""


class Wait(NamedTuple):
    """A wait for a server, by trio's clock."""

    since: float
    until: float

    @classmethod
    def begin(cls, timeout: float | None) -> Self:
        now = trio.current_time()
        return cls(now, now + _seconds(timeout))


CheckAddress = Callable[[str], None]
"""NotFollowedError for a numeric address that a redirect may not lead to."""


def new_tls_context(ca_file: str = "") -> ssl.SSLContext:
    """Trust the system's authorities, and those in `ca_file`. It takes some 50 ms.

    SSL_CERT_FILE and SSL_CERT_DIR stand for the system's. OSError names a file that cannot be read.
    """
    context = ssl.create_default_context()
    for path in (os.environ.get("SSL_CERT_FILE"), ca_file):
        if path:
            try:
                context.load_verify_locations(path)
            except OSError as error:
                reason = error.strerror or str(error)
                raise OSError(f"no certificates can be read from {path}: {reason}") from None
    context.set_alpn_protocols(["http/1.1"])
    return context


async def open_stream(
    host: str,
    port: int,
    context: ssl.SSLContext | None,
    timeout: float | None,
    check: CheckAddress | None = None,
) -> "SocketStream":
    """Connect to whichever address answers first. Nothing is sent to one that `check` refuses."""
    with trio.move_on_after(_seconds(timeout)):
        try:
            if check is not None:
                await _check_addresses(host, port, check)
            opened = await trio.open_tcp_stream(host, port)
        except OSError as error:
            raise httpx.ConnectError(_reason(error)) from error
        stream = SocketStream(socket.socket(fileno=opened.socket.detach()))
        try:
            if check is not None:  # the addresses of the name may have changed meanwhile
                check(stream.peer)
            if context is not None:
                await stream.start_tls(context, host)
        except BaseException:
            stream.close()
            raise
        return stream
    raise httpx.ConnectTimeout(f"no connection in {timeout:g} s")


def _reason(error: OSError) -> str:
    """Return why no connection was made: trio names the address instead, and groups the causes."""
    group = error.__cause__
    if not isinstance(group, BaseExceptionGroup):
        return error.strerror or str(error)
    numbers = dict.fromkeys(each.errno for each in group.exceptions if isinstance(each, OSError))
    return " or ".join(os.strerror(number) for number in numbers if number) or str(error)


async def _check_addresses(host: str, port: int, check: CheckAddress) -> None:
    for found in await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM):
        check(str(found[4][0]))


class SocketStream:
    """A connected stream. One task at a time sends and one receives; any task may close it.

    The socket is asked at once, and waited for only if it has to be: a bounded wait takes longer
    than most calls. What is received goes straight into the reader's buffer.
    """

    def __init__(self, connected: socket.socket, gathering: float = _GATHERING) -> None:
        """Take over a connected socket; httpx.ConnectError if it has ended already."""
        self._gathering = gathering
        self._socket = connected
        self._socket.setblocking(False)
        try:
            self.peer: str = connected.getpeername()[0]
        except OSError as error:
            connected.close()
            raise httpx.ConnectError(str(error)) from error
        self.wait: Wait | None = None
        self._tls: ssl.SSLSocket | None = None
        self._sent = 0  # bytes, as far as the kernel has them
        self._has_received = False
        self._is_emptied = False
        """Whether the last buffer did not get full."""
        self._is_fast = True
        """Whether much came in time when it was last waited for."""

    async def start_tls(self, context: ssl.SSLContext, host: str) -> None:
        """Encrypt from now on. httpx.ConnectError if the server cannot, or is not that host."""
        try:
            self._socket = self._tls = context.wrap_socket(
                self._socket, server_hostname=host, do_handshake_on_connect=False
            )
            while True:
                try:
                    return self._tls.do_handshake()
                except ssl.SSLWantReadError:
                    await trio.lowlevel.wait_readable(self._socket)
                except ssl.SSLWantWriteError:
                    await trio.lowlevel.wait_writable(self._socket)
        except ssl.SSLCertVerificationError as error:
            text = f"the certificate of {host} is not valid: {error.verify_message}"
            raise httpx.ConnectError(text) from error
        except _FAILED as error:
            raise httpx.ConnectError(str(error)) from error

    @property
    def is_closed(self) -> bool:
        return self._socket.fileno() < 0

    def close(self) -> None:
        if not self.is_closed:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()

    def is_quiet(self) -> bool:
        """Whether it is open and nothing came unasked, as far as is known without waiting."""
        if self.is_closed or (self._tls is not None and self._tls.pending()):
            return False
        # After the handshake a server may send tickets, which are no response.
        may_come = self._tls is not None and not self._has_received
        events = _ENDED if may_come else _ENDED | select.POLLIN
        poll = select.poll()
        poll.register(self._socket, events)
        return not poll.poll(0)

    def sent(self) -> tuple[int, int]:
        """Return the bytes that the kernel was given, and how many of them the other side has not
        taken.
        """
        queued = array.array("i", [0])
        if not self.is_closed:
            fcntl.ioctl(self._socket, termios.TIOCOUTQ, queued)
        return self._sent, queued[0]

    async def send(self, data: bytes, timeout: float | None) -> None:
        rest = memoryview(data)
        try:
            while rest:
                try:
                    size = self._socket.send(rest)
                    rest = rest[size:]
                    self._sent += size
                except (BlockingIOError, ssl.SSLWantWriteError):
                    with self._bounded(timeout, httpx.WriteTimeout):
                        await trio.lowlevel.wait_writable(self._socket)
        except _FAILED as error:
            raise httpx.WriteError(str(error)) from error

    async def receive(self, limit: int, timeout: float | None) -> bytes:
        """Return at most `limit` bytes of what comes next; none at the end."""
        return await self._received(partial(self._read, limit), timeout)

    async def receive_into(self, view: memoryview, timeout: float | None) -> int:
        """Put what comes next into a buffer, as far as it fits; return how much, 0 at the end.

        On a fast stream with nothing left to read, it waits for up to `_GATHERED` bytes at once.
        """
        is_waiting = self._is_emptied and self._is_fast
        if is_waiting:
            await self._gather(min(len(view), _GATHERED))
        receive = partial(self._read_into, view)
        received = await self._received(receive, timeout, has_waited=is_waiting)
        most = len(view) if self._tls is None else min(len(view), _DECRYPTED)
        self._is_emptied = received < most
        self._is_fast = self._is_fast or received >= _GATHERED
        return received

    async def _gather(self, size: int) -> None:
        """Wait until so many bytes are here, or the end is; but not for long."""
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
            try:
                with trio.move_on_after(self._gathering) as scope:
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
            except (BlockingIOError, ssl.SSLWantReadError):
                pass
            else:
                if not has_waited:  # a fast stream must not hold up everything else
                    await trio.lowlevel.checkpoint()
                return received
            while True:
                with self._bounded(timeout, httpx.ReadTimeout):
                    await trio.lowlevel.wait_readable(self._socket)
                with suppress(BlockingIOError, ssl.SSLWantReadError):  # it may have been nothing
                    return receive()
        except _FAILED as error:
            raise httpx.ReadError(str(error)) from error

    @contextmanager
    def _bounded(
        self, timeout: float | None, error: type[httpx.TimeoutException]
    ) -> Iterator[None]:
        """Raise an error when what is waited for takes longer, unless the other side has taken
        anything meanwhile of what the kernel holds.
        """
        self.wait = wait = Wait.begin(timeout)
        taken = self.sent()
        try:
            with trio.move_on_at(wait.until) as scope:
                yield
        finally:
            self.wait = None
        if scope.cancelled_caught and self.sent() == taken:
            raise error(f"silent for {timeout:g} s")

    def _read(self, limit: int) -> bytes:
        if self._tls is None:
            return self._socket.recv(limit)
        view = memoryview(bytearray(min(limit, _GATHERED)))
        return bytes(view[: self._read_into(view)])

    def _read_into(self, view: memoryview) -> int:
        if self._tls is None:
            return self._socket.recv_into(view)
        received, most = 0, min(len(view), _DECRYPTED)
        while received < most:  # each call brings one record, of 16 KiB at most
            try:
                size = self._tls.recv_into(view[received:most])
            except ssl.SSLWantReadError:
                if not received:
                    raise
                break
            if not size:
                break
            received += size
        self._has_received = True
        return received


def _seconds(timeout: float | None) -> float:
    return math.inf if timeout is None else timeout
