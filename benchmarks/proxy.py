"""A proxy that simulates distance: it delays, limits the rate of each connection, and counts.

    python -m benchmarks.proxy UPSTREAM_PORT RTT RATE     (seconds; bytes a second, 0 for no limit)

Every byte leaves half a round trip after it came, and no faster than the rate; what a new
connection sends waits one round trip more, as for TCP's handshake. Prints its port, then for each
line on standard input its counts as JSON, and begins to count anew. Ends with its input.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import machine

WINDOW = 8 << 20
"""Bytes that one direction of a connection holds back at most, like a receiver's TCP window: a
connection without a rate limit carries one in half a round trip."""

_PIECE = 64 << 10  # bytes that are sent at once under a rate limit: 3 ms of 20 MB/s
_REQUEST = re.compile(rb"(?:GET|HEAD|POST) \S+ HTTP/1\.1\r\n")


@dataclass(slots=True)
class Counts:
    """What passed since the last look."""

    requests: int = 0
    received: int = 0
    """Bytes that went to the clients."""
    open: int = 0
    """Connections that are open now."""
    most_open: int = 0


class _Direction:
    """One direction of a connection: a queue of (when it is due, bytes)."""

    def __init__(self, not_before: float, delay: float, rate: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._free = not_before
        self._delay = delay
        self._rate = rate
        self._queue: deque[tuple[float, bytes | memoryview]] = deque()
        self._held = 0
        self._ended = self._reading_stopped = self._target_full = False
        self._timer: asyncio.TimerHandle | None = None
        self.source: asyncio.Transport | None = None
        self._target: asyncio.Transport | None = None
        self.sent: Callable[[int], None] = lambda _: None

    def feed(self, data: bytes) -> None:
        """Take what came from the source."""
        now = self._loop.time()
        self._held += len(data)
        if not self._rate:
            self._queue.append((max(now, self._free) + self._delay, data))
        else:
            self._feed_slowly(memoryview(data), now)
        if self._held > WINDOW and self.source is not None:
            self.source.pause_reading()
            self._reading_stopped = True
        self._wake()

    def _feed_slowly(self, data: memoryview, now: float) -> None:
        """Cut it into pieces, each due when the link would have carried it."""
        for start in range(0, len(data), _PIECE):
            piece = data[start : start + _PIECE]
            self._free = max(now, self._free) + len(piece) / self._rate
            self._queue.append((self._free + self._delay, piece))

    def end(self) -> None:
        """Take the end of what comes; the target learns of it after all the rest."""
        self._ended = True
        due = self._queue[-1][0] if self._queue else self._loop.time() + self._delay
        self._queue.append((due, b""))
        self._wake()

    def lead_to(self, target: asyncio.Transport) -> None:
        """Begin to send: what came before waited."""
        self._target = target
        self._wake()

    def abort(self) -> None:
        """Break off: there is nothing to come."""
        if self._target is not None:
            self._target.abort()

    def target_is_full(self, full: bool) -> None:
        """Wait while the target takes no more."""
        self._target_full = full
        self._wake()

    def drop(self) -> None:
        """Forget what is under way: the target is gone."""
        self._queue.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _wake(self) -> None:
        if self._timer is None and self._queue and self._target and not self._target_full:
            self._timer = self._loop.call_at(self._queue[0][0], self._send)

    def _send(self) -> None:
        """Send what is due."""
        self._timer = None
        target, now = self._target, self._loop.time()
        assert target is not None
        if target.is_closing():
            self._queue.clear()
            return
        while self._queue and self._queue[0][0] <= now and not self._target_full:
            data = self._queue.popleft()[1]
            if not data:
                target.close()
                return
            target.write(data)
            self._held -= len(data)
            self.sent(len(data))
        if self._reading_stopped and self._held < WINDOW // 2 and not self._ended:
            self._reading_stopped = False
            assert self.source is not None
            self.source.resume_reading()
        self._wake()


class _End(asyncio.Protocol):
    """The socket at one end: reads into `outward`, and is what `inward` writes to."""

    def __init__(self, outward: _Direction, inward: _Direction, lost: Callable[[], None]) -> None:
        self._outward = outward
        self._inward = inward
        self._lost = lost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._outward.source = transport
        self._inward.lead_to(transport)

    def data_received(self, data: bytes) -> None:
        self._outward.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._inward.drop()
        self._outward.end()
        self._lost()

    def pause_writing(self) -> None:
        self._inward.target_is_full(True)

    def resume_writing(self) -> None:
        self._inward.target_is_full(False)


class _ClientEnd(_End):
    """The end towards the client; counts its requests."""

    def __init__(
        self,
        outward: _Direction,
        inward: _Direction,
        lost: Callable[[], None],
        counts: Callable[[], Counts],
    ) -> None:
        super().__init__(outward, inward, lost)
        self._counts = counts

    def data_received(self, data: bytes) -> None:
        self._counts().requests += len(_REQUEST.findall(data))
        super().data_received(data)


class _Server:
    """Accepts clients and connects each to the upstream."""

    def __init__(self, upstream: int, rtt: float, rate: float) -> None:
        self._upstream = upstream
        self._rtt = rtt
        self._rate = rate
        self._connecting: set[asyncio.Task[None]] = set()
        self.counts = Counts()

    def take_counts(self) -> Counts:
        """Return the counts and begin anew; what is open stays open."""
        found = self.counts
        self.counts = Counts(open=found.open, most_open=found.open)
        return found

    def accept(self) -> _End:
        """Make the client's end of a new connection."""
        now = asyncio.get_running_loop().time()
        there = _Direction(now + self._rtt, self._rtt / 2, self._rate)
        back = _Direction(now, self._rtt / 2, self._rate)
        back.sent = self._received
        self.counts.open += 1
        self.counts.most_open = max(self.counts.most_open, self.counts.open)
        connecting = asyncio.create_task(self._connect(there, back))
        self._connecting.add(connecting)
        connecting.add_done_callback(self._connecting.discard)
        return _ClientEnd(there, back, self._closed, lambda: self.counts)

    async def _connect(self, there: _Direction, back: _Direction) -> None:
        """Open the other half; what the client sends before that waits for its delay anyway."""
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(
                lambda: _End(back, there, lambda: None), "127.0.0.1", self._upstream
            )
        except OSError:
            back.abort()

    def _closed(self) -> None:
        self.counts.open -= 1

    def _received(self, size: int) -> None:
        self.counts.received += size


async def _serve(upstream: int, rtt: float, rate: float) -> None:
    loop = asyncio.get_running_loop()
    proxy = _Server(upstream, rtt, rate)
    server = await loop.create_server(proxy.accept, "127.0.0.1", 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while await lines.readline():
        print(json.dumps(asdict(proxy.take_counts())), flush=True)


# --- the side of the one who measures


@dataclass(frozen=True, slots=True)
class Distance:
    """A running proxy."""

    port: int
    rtt: float
    _process: "subprocess.Popen[str]"

    @property
    def url(self) -> str:
        """The address that clients use."""
        return f"http://127.0.0.1:{self.port}"

    def take_counts(self) -> Counts:
        """Return what passed since the last look."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return Counts(**json.loads(self._process.stdout.readline()))


_ENV = os.environ | {"MALLOC_MMAP_THRESHOLD_": "67108864", "MALLOC_TRIM_THRESHOLD_": "268435456"}
"""Keeps glibc from giving the memory of each piece back to the kernel, which costs a third more."""


@contextmanager
def distance(
    upstream: int, log: Path, *, rtt: float = 0.0, rate: float = 0.0
) -> Iterator[Distance]:
    """Run a proxy before a port of this machine; seconds, and bytes a second for a connection."""
    command = (sys.executable, "-m", "benchmarks.proxy", str(upstream), str(rtt), str(rate))
    pipe = subprocess.PIPE
    with machine.process(*command, log=log, env=_ENV, stdin=pipe, stdout=pipe) as running:
        assert running.stdout is not None
        port = running.stdout.readline()
        if not port:
            raise machine.BenchmarkError(f"the proxy did not start: {log.read_text()}")
        yield Distance(int(port), rtt, running)


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])))
