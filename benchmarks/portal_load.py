"""Sends requests to an HTTP server over connections that stay open, one after another on each."""

import selectors
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.machine import BenchmarkError

_HEAD_END = b"\r\n\r\n"
_LENGTH = b"content-length:"
_PIECE = 1 << 16
_SILENCE = 60.0  # seconds without any answer


@dataclass
class _Client:
    """One connection; at most one request is under way."""

    socket: socket.socket
    received: bytearray = field(default_factory=bytearray)

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


def send_all(port: int, requests: Iterator[bytes], connections: int) -> float:
    """Send each request once, over so many connections at once; return the seconds it took."""
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
                        busy -= 1 - _send_next(key.data, requests)
        finally:
            for client in clients:
                client.socket.close()
        return time.perf_counter() - begun


def _send_next(client: _Client, requests: Iterator[bytes]) -> int:
    request = next(requests, None)
    if request is not None:
        client.socket.sendall(request)
    return int(request is not None)


def processor_time(pid: int) -> float:
    """Return the seconds of processor time that a process and its children have used."""
    ticks = sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return ticks / 100 + sum(processor_time(int(child)) for child in children)
