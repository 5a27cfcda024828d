"""Proxies before portals that misbehave as they are told: a program, and what drives it.

The program reads lines of JSON (`{"portal": 0, "mode": "stall", "share": 1.0, "seed": 7}`) and
prints one for each registry entry or upload that passes. It is a process of its own, so that it
never waits for a mount, nor a mount for it.
"""

import asyncio
import json
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import h11

from tests.chaos.faults import HONEST, STRIPPED, TLS, Answer, Request, Treatment, treatment

ROOT = Path(__file__).resolve().parent.parent.parent
_HEAD_LIMIT = 16 << 20
_RESET = struct.pack("ii", 1, 0)
_STALL_LIMIT = 120.0


@dataclass(frozen=True)
class ProxyConfig:
    """One proxy."""

    upstream: int
    certificate: str = ""
    """A PEM file with key and certificates; empty for plain HTTP."""
    expired: str = ""
    """The same, expired."""


class _Portal:
    """The proxy before one portal."""

    def __init__(self, number: int, config: ProxyConfig, tell: Callable[..., None]) -> None:
        self.number = number
        self.config = config
        self.elsewhere = ""
        self._tell = tell
        self._mode, self._share, self._random = "", 1.0, Random(0)
        self._healed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._holder = self._bound(0)  # keeps the port while nobody listens
        self._port = self._holder.getsockname()[1]
        self._accepting: asyncio.Task[None] | None = None
        self._listener: socket.socket | None = None
        self._good = _context(config.certificate)
        self._bad = _context(config.expired)

    @property
    def url(self) -> str:
        return f"http{'s' if self._good else ''}://127.0.0.1:{self._port}"

    def _bound(self, port: int) -> socket.socket:
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind(("127.0.0.1", port))
        return made

    def listen(self) -> None:
        if self._listener is None:
            self._listener = self._bound(self._port)
            self._listener.setblocking(False)
            self._listener.listen(256)
            self._accepting = asyncio.create_task(self._accept(self._listener))

    def set_mode(self, mode: str, share: float, seed: int) -> None:
        """Misbehave in another way from now on, or behave: with an empty mode."""
        self._mode, self._share, self._random = mode, share, Random(seed)
        self._healed.set()
        self._healed = asyncio.Event()
        if mode == "refuse" and self._listener is not None:
            assert self._accepting is not None
            self._accepting.cancel()
            self._listener.close()
            self._listener = None
        elif mode != "refuse":
            self.listen()
        if mode in ("refuse", *TLS) or (mode and self._random.random() < 0.3):
            for writer in list(self._writers):
                _reset(writer)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            client, _ = await loop.sock_accept(listener)
            task = asyncio.create_task(self._serve(client))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, client: socket.socket) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        context = self._bad if self._mode == "tls expired" else self._good
        if self._mode == "tls garbage":
            with suppress(OSError):
                client.send(b"HTTP/1.1 400 This is no TLS\r\n\r\n")
            client.close()
            return
        reader = asyncio.StreamReader(limit=1 << 20)
        loop = asyncio.get_running_loop()
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, client, ssl=context)
        except (OSError, ssl.SSLError, EOFError):
            client.close()
            return
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        self._writers.add(writer)
        try:
            await self._converse(reader, writer)
        except (OSError, EOFError, ssl.SSLError, h11.ProtocolError):
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held = b""
        while True:
            request, held = await _receive(reader, writer, held)
            if request is None or not await self._handle(request, writer):
                return

    async def _handle(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        """Answer a request in some way; whether the connection goes on."""
        healed, random = self._healed, self._random
        what = HONEST
        if self._mode and random.random() < self._share:
            what = treatment(self._mode, request, random, self.elsewhere)
        if request.is_registry_post:
            self._tell("post", self.number, body=request.body.decode("latin-1"), status=None)
        if what.stalls_first:
            await _wait(healed)
        await asyncio.sleep(what.delay)
        answer = what.reply
        if what.is_forwarded:
            answer = what.alter(request, await self._forward(what.change(request)))
        if answer is None:
            _reset(writer)
            return False
        return await _send(writer, answer.encoded(request), what, healed)

    async def _forward(self, request: Request) -> Answer:
        answer = await _ask(self.config.upstream, request)
        if request.is_registry_post:
            body = request.body.decode("latin-1")
            self._tell("post", self.number, body=body, status=answer.status)
        elif request.method == "POST" and answer.status == 200:
            self._tell("upload", self.number, body=answer.body.decode("latin-1"))
        return answer


def _context(certificate: str) -> ssl.SSLContext | None:
    if not certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def _reset(writer: asyncio.StreamWriter) -> None:
    client = writer.get_extra_info("socket")
    if client is not None:
        with suppress(OSError):
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


async def _wait(healed: asyncio.Event) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(healed.wait(), _STALL_LIMIT)


async def _send(
    writer: asyncio.StreamWriter, data: bytes, what: Treatment, healed: asyncio.Event
) -> bool:
    sent = data[: int(len(data) * what.keeps)] if what.then else data
    if what.drip is None:
        writer.write(sent)
        await writer.drain()
    else:
        size, pause = what.drip
        until = len(sent) - sent.find(b"\r\n\r\n") - 4 if what.drips_head else 0
        while sent:
            is_over = healed.is_set() or len(sent) <= until
            size = len(sent) if is_over else size
            writer.write(sent[:size])
            sent = sent[size:]
            await writer.drain()
            await asyncio.sleep(pause)
    if what.then == "stall":
        await _wait(healed)
        return False
    if what.then == "reset":
        await asyncio.sleep(0.01)  # what was sent is to arrive
        _reset(writer)
    elif what.then == "close":
        writer.close()
    return not what.then


async def _receive(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, held: bytes
) -> tuple[Request | None, bytes]:
    """Read a request and what came behind it; None at the end of the connection."""
    peer = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    if held:
        peer.receive_data(held)
    head, body = None, bytearray()
    while True:
        event = peer.next_event()
        if event is h11.NEED_DATA:
            if peer.they_are_waiting_for_100_continue:
                writer.write(peer.send(h11.InformationalResponse(status_code=100, headers=[])))
            peer.receive_data(await reader.read(1 << 16))
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            assert head is not None
            target, headers = head.target.decode(), tuple(head.headers.raw_items())
            found = Request(head.method.decode(), target, headers, bytes(body))
            return found, peer.trailing_data[0]
        else:
            return None, b""


async def _ask(port: int, request: Request) -> Answer:
    """Send a request to the portal over a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        peer = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_LIMIT)
        kept = [h for h in request.headers if h[0].lower() not in {*STRIPPED, b"expect"}]
        kept.append((b"Connection", b"close"))
        if request.body or request.method == "POST":
            kept.append((b"Content-Length", b"%d" % len(request.body)))
        made = h11.Request(method=request.method, target=request.target, headers=kept)
        for event in (made, h11.Data(data=request.body), h11.EndOfMessage()):
            if not isinstance(event, h11.Data) or event.data:
                writer.write(peer.send(event) or b"")
        await writer.drain()
        return await _answer_of(peer, reader)
    finally:
        writer.transport.abort()


async def _answer_of(peer: h11.Connection, reader: asyncio.StreamReader) -> Answer:
    head, body = None, bytearray()
    while True:
        event = peer.next_event()
        if event is h11.NEED_DATA:
            peer.receive_data(await reader.read(1 << 18))
        elif isinstance(event, h11.Response):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            assert head is not None
            headers = tuple(head.headers.raw_items())
            said = [int(v) for n, v in headers if n.lower() == b"content-length"]
            length = said[0] if said and not body else None  # of an answer to HEAD
            return Answer(head.status_code, headers, bytes(body), length)
        elif isinstance(event, h11.ConnectionClosed):
            raise EOFError


def _tell(event: str, portal: int, **more: object) -> None:
    line = {"event": event, "portal": portal, "at": time.monotonic(), **more}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


async def _main(configs: Sequence[ProxyConfig]) -> None:
    portals = [_Portal(number, config, _tell) for number, config in enumerate(configs)]
    for portal in portals:
        portal.elsewhere = portals[portal.number - 1].url
        portal.listen()
    sys.stdout.write(json.dumps([portal.url for portal in portals]) + "\n")
    sys.stdout.flush()
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        asked = json.loads(line)
        portals[asked["portal"]].set_mode(asked["mode"], asked["share"], asked["seed"])
        _tell("mode", asked["portal"], mode=asked["mode"])


# --- the side of the one who drives it


class FaultProxies:
    """Running proxies. `heard` gets each event, in a thread."""

    def __init__(
        self, process: "subprocess.Popen[str]", urls: list[str], heard: Callable[[Any], None]
    ) -> None:
        self.process = process
        self.urls = urls
        self._heard = heard
        self._modes = 0
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            if event["event"] == "mode":
                with self._changed:
                    self._modes += 1
                    self._changed.notify_all()
            else:
                self._heard(event)

    def set_mode(self, portal: int, mode: str, share: float = 1.0, seed: int = 0) -> None:
        """Change what a proxy does; returns when it does so. Called from one thread."""
        wanted = {"portal": portal, "mode": mode, "share": share, "seed": seed}
        assert self.process.stdin is not None
        with self._changed:
            expected = self._modes + 1
            self.process.stdin.write(json.dumps(wanted) + "\n")
            self.process.stdin.flush()
            done = self._changed.wait_for(lambda: self._modes >= expected, 60)
        assert done, "the fault proxy does not answer"

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._thread.join()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with suppress(OSError):
                stream.close()


@contextmanager
def fault_proxies(
    configs: Sequence[ProxyConfig], heard: Callable[[Any], None]
) -> Iterator[FaultProxies]:
    """Run a proxy before each portal."""
    text = json.dumps([asdict(config) for config in configs])
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.chaos.fault_proxy", text],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        urls = json.loads(process.stdout.readline())
    except ValueError:
        process.kill()
        process.wait()
        raise
    running = FaultProxies(process, urls, heard)
    try:
        yield running
    finally:
        running.close()


if __name__ == "__main__":
    asyncio.run(_main([ProxyConfig(**each) for each in json.loads(sys.argv[1])]))
