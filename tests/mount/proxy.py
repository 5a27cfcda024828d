"""A TCP proxy in front of a portal, which counts requests, and can be told to stall or be away."""

import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

from tests.ports import unused_port

_REQUEST = re.compile(rb"(?:GET|HEAD|POST|PUT|OPTIONS) (/\S*) HTTP/1\.[01]\r\n")
_PIECE = 1 << 16


class Proxy:
    """Forwards connections to a portal.

    Made with its port taken but closed: a connection is refused until `open`.
    """

    def __init__(self, upstream: str, port: int = 0) -> None:
        parts = urlsplit(upstream)
        self._upstream = (parts.hostname, parts.port)
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", port or unused_port()))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.requests: list[str] = []
        """The targets of the requests so far, without the one that a new mount sends (M3)."""
        self.received = 0
        """Bytes that the portal has sent."""
        self.delay = 0.0
        """Seconds by which each request is delayed."""
        self.stalling = False
        """Whether a request is taken and never answered."""
        self.stalled = threading.Event()
        """Set once such a request came."""
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._counting = threading.Lock()
        self._closing = False

    def open(self) -> None:
        """Accept connections from now on."""
        self._listener.listen(128)
        self._start(self._accept)

    def close(self) -> None:
        """Drop every connection and wait for the threads."""
        self._closing = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        while self._threads:
            for each in self._sockets:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            self._threads.pop().join(10)
        for each in self._sockets:
            each.close()

    def _start(self, work: "object", *args: object) -> None:
        assert callable(work)
        thread = threading.Thread(target=work, args=args, daemon=True)
        thread.start()
        self._threads.append(thread)  # only now: one that has not started cannot be joined

    def _accept(self) -> None:
        while not self._closing:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._upstream)
            except OSError:
                continue
            self._sockets += [client, server]
            self._start(self._forward, client, server, True)
            self._start(self._forward, server, client, False)

    def _forward(self, source: socket.socket, target: socket.socket, is_request: bool) -> None:
        with suppress(OSError):
            while piece := source.recv(_PIECE):
                if is_request:
                    found = [target.decode() for target in _REQUEST.findall(piece)]
                    self.requests += [each for each in found if not each.endswith("/stats")]
                    if self.stalling:
                        self.stalled.set()
                        continue
                    time.sleep(self.delay)
                else:
                    with self._counting:
                        self.received += len(piece)
                target.sendall(piece)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxy_to(upstream: str, *, is_open: bool = True, port: int = 0) -> Iterator[Proxy]:
    """Run a proxy in front of a portal."""
    proxy = Proxy(upstream, port)
    try:
        if is_open:
            proxy.open()
        yield proxy
    finally:
        proxy.close()


class Door:
    """An address at which a portal can be reached, or refuses connections."""

    def __init__(self, portal: str) -> None:
        self._portal = portal
        self._proxy = Proxy(portal)
        self.url = self._proxy.url
        self._proxy.open()

    def open(self) -> None:
        self._proxy = Proxy(self._portal, urlsplit(self.url).port or 0)
        self._proxy.open()

    def close(self) -> None:
        self._proxy.close()

    def stall(self, is_stalling: bool) -> None:
        """Take requests and answer none, or answer again."""
        self._proxy.stalling = is_stalling


@contextmanager
def door_to(portal: str) -> Iterator[Door]:
    door = Door(portal)
    try:
        yield door
    finally:
        door.close()
