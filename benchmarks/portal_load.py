"""Sends requests to an HTTP server over connections that stay open, one after another on each."""

import os
import selectors
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, takewhile
from pathlib import Path

import httpx

from benchmarks.machine import BenchmarkError

_HEAD_END = b"\r\n\r\n"
_LENGTH = b"content-length:"
_PIECE = 1 << 16
_SILENCE = 60.0  # seconds without any answer
_RAW = "application/octet-stream"

SMALL = 2 << 10
"""Bytes of a small file."""


def get_request(url: str) -> bytes:
    """Return a GET of a path."""
    return (
        f"GET {url} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: load\r\nAccept: */*\r\n\r\n".encode()
    )


def body_request(method: str, url: str, body: bytes, content_type: str = _RAW) -> bytes:
    """Return a request with a body."""
    head = (
        f"{method} {url} HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def small_uploads() -> Iterator[bytes]:
    """Yield uploads of small files, each with other content."""
    run = os.urandom(16).hex()
    for number in count():
        body = f"{run} {number} ".encode().ljust(SMALL, b".")
        yield body_request("POST", "/svc/skyfile?filename=small", body)


def upload(url: str, size: int) -> str:
    """Upload a file that no other upload has a part of; return its skylink."""
    piece = os.urandom(1 << 20)

    def pieces() -> Iterator[bytes]:
        for start in range(0, size, len(piece)):
            yield (os.urandom(16) + piece[16:])[: size - start]

    headers = {"Content-Type": _RAW, "Content-Length": str(size)}
    answer = httpx.post(
        f"{url}/svc/skyfile?filename=large", content=pieces(), headers=headers, timeout=600
    )
    return str(answer.raise_for_status().json()["skylink"])


@dataclass(frozen=True, slots=True)
class Load:
    """What became of requests that were sent."""

    seconds: float
    latencies: list[float]
    """Seconds from each request to the end of its answer."""


@dataclass
class _Client:
    """One connection; at most one request is under way."""

    socket: socket.socket
    received: bytearray = field(default_factory=bytearray)
    began: float = 0.0

    def take_answer(self) -> bool:
        """Receive; return whether the whole answer has come. BenchmarkError if it is no success."""
        data = self.socket.recv(_PIECE)
        if not data:
            raise BenchmarkError("the server closed a connection")
        self.received += data
        end = self.received.find(_HEAD_END)
        if end < 0:
            return False
        head = bytes(self.received[:end]).lower()
        if not head.startswith(b"http/1.1 2"):
            raise BenchmarkError(f"the server answered {head[:200]!r}")
        _, _, length = head.partition(_LENGTH)
        size = int(length.split(b"\r\n", 1)[0]) if length else 0
        if len(self.received) < end + len(_HEAD_END) + size:
            return False
        self.received.clear()
        return True


def send_all(port: int, requests: Iterator[bytes], connections: int) -> Load:
    """Send each request once, over so many connections at once."""
    latencies: list[float] = []
    with selectors.DefaultSelector() as selector:
        clients = [
            _Client(socket.create_connection(("127.0.0.1", port))) for _ in range(connections)
        ]
        begun, busy = time.perf_counter(), 0
        try:
            for client in clients:
                client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                selector.register(client.socket, selectors.EVENT_READ, client)
                busy += _send_next(client, requests)
            while busy:
                ready = selector.select(_SILENCE)
                if not ready:
                    raise BenchmarkError(f"no answer within {_SILENCE:g} s")
                for key, _ in ready:
                    if key.data.take_answer():
                        latencies.append(time.perf_counter() - key.data.began)
                        busy -= 1 - _send_next(key.data, requests)
        finally:
            for client in clients:
                client.socket.close()
        return Load(time.perf_counter() - begun, latencies)


def send_for(seconds: float, port: int, requests: Iterator[bytes], connections: int) -> Load:
    """Send requests for so long, or until there are no more."""
    end = time.perf_counter() + seconds
    return send_all(port, takewhile(lambda _: time.perf_counter() < end, requests), connections)


def _send_next(client: _Client, requests: Iterator[bytes]) -> int:
    request = next(requests, None)
    if request is not None:
        client.began = time.perf_counter()
        client.socket.sendall(request)
    return int(request is not None)


def processor_time(pid: int) -> float:
    """Return the seconds of processor time that a process and its children have used."""
    ticks = sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return ticks / 100 + sum(processor_time(int(child)) for child in children)
