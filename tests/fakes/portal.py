"""A portal on a real socket that serves made-up content and misbehaves on demand.

Runs in a trio nursery (`running`) or in a thread of its own (`in_thread`), for mounts. Each fault
is a function from (request, honest reply) to the reply that is sent instead.
"""

import json
import re
import socket
import ssl
import struct
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qs, unquote, urlsplit

import trio

from skymount.wire.http.byte_range import ByteRange, parse_range
from skymount.wire.metadata import Metadata, encode_metadata
from skymount.wire.skylink import Skylink
from tests.fakes.skyfiles import FakeSkyfile, of_metadata

Headers = tuple[tuple[bytes, bytes], ...]

_HEAD_LIMIT = 1 << 20
_PIECE = 64 << 10


@dataclass(frozen=True)
class Request:
    """A request as it came."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes = b""

    @property
    def path(self) -> str:
        return unquote(self.target.partition("?")[0])

    @property
    def query(self) -> dict[str, str]:
        """The first value of each parameter."""
        return {key: values[0] for key, values in parse_qs(urlsplit(self.target).query).items()}

    def __str__(self) -> str:
        return f"{self.method} {self.target} {self.headers.get('range', '')}".strip()


@dataclass(frozen=True)
class Reply:
    """An answer, and how it is sent."""

    status: int = 200
    headers: Headers = ()
    body: bytes = b""
    whole: bytes = b""
    """All of the content that a range was taken from."""
    length: int | None = None
    """What Content-Length says, if not the truth; negative: there is none, the end is the end."""
    sent: int | None = None
    """Bytes of the body that are sent before `then` happens; None: all."""
    then: str = "keep"
    """keep, close, reset, stall; happens before the headers when `sent` is -1."""
    drip: tuple[int, float] = (_PIECE, 0.0)
    """Bytes at a time, seconds of pause after each."""
    delay: float = 0.0
    """Seconds until the first byte of the head."""
    head_pause: float = 0.0
    """Seconds after each byte of the head."""
    endless: bytes = b""
    """Repeated for ever in place of the body (`body`) or after the status line (`header`)."""
    endless_header: bytes = b""

    def without(self, name: bytes) -> "Reply":
        """Return it without a header."""
        return replace(self, headers=tuple(h for h in self.headers if h[0].lower() != name.lower()))

    def with_header(self, name: bytes, value: bytes) -> "Reply":
        return replace(self, headers=(*self.without(name).headers, (name, value)))


Fault = Callable[[Request, Reply], Reply]


# --- faults


def status(code: int, message: str = "no") -> Fault:
    """Answer with that status and a JSON message."""
    return lambda _, __: error(code, message)


def asks_for_a_pause(seconds: int) -> Fault:
    """Refuse as too busy, and say when the next attempt is welcome."""
    busy = error(429, "slow down").with_header(b"Retry-After", b"%d" % seconds)
    return lambda _, __: busy


def html(request: Request, reply: Reply) -> Reply:
    """Answer with a page that says nothing is wrong."""
    return Reply(200, ((b"Content-Type", b"text/html"),), b"<html><body>Welcome</body></html>")


def without_header(name: bytes) -> Fault:
    """Leave a header out."""
    return lambda _, reply: reply.without(name)


def header(name: bytes, value: bytes) -> Fault:
    return lambda _, reply: reply.with_header(name, value)


def ignores_range(request: Request, reply: Reply) -> Reply:
    """Answer with all of the content."""
    return replace(reply.without(b"Content-Range"), status=200, body=reply.whole or reply.body)


def short(missing: int) -> Fault:
    """Declare and send so many bytes too few."""
    return lambda _, reply: replace(reply, body=reply.body[: len(reply.body) - missing])


def excess(extra: bytes) -> Fault:
    """Declare and send more bytes than asked for."""
    return lambda _, reply: replace(reply, body=reply.body + extra)


def closes_after(count: int) -> Fault:
    """Close the connection after so many bytes of the body; -1: before any answer."""
    return lambda _, reply: replace(reply, length=len(reply.body), sent=count, then="close")


def resets_after(count: int) -> Fault:
    """Reset the connection after so many bytes of the body; -1: before any answer."""
    return lambda _, reply: replace(reply, length=len(reply.body), sent=count, then="reset")


def stalls_after(count: int) -> Fault:
    """Say nothing more after so many bytes of the body; -1: nothing at all."""
    return lambda _, reply: replace(reply, length=len(reply.body), sent=count, then="stall")


def drips(count: int, pause: float) -> Fault:
    """Send so many bytes at a time, with a pause after each."""
    return lambda _, reply: replace(reply, drip=(count, pause))


def waits(seconds: float) -> Fault:
    """Answer so much later."""
    return lambda _, reply: replace(reply, delay=seconds)


def drips_head(pause: float) -> Fault:
    """Send the head byte by byte, with a pause after each."""
    return lambda _, reply: replace(reply, head_pause=pause)


def flips(at: int) -> Fault:
    """Change one bit of the body."""

    def flip(_: Request, reply: Reply) -> Reply:
        if not reply.body:
            return reply
        where = at % len(reply.body)
        changed = bytes([reply.body[where] ^ 1])
        return replace(reply, body=reply.body[:where] + changed + reply.body[where + 1 :])

    return flip


def swaps(body: bytes) -> Fault:
    """Send these bytes, cut or padded to the length of the true ones."""
    return lambda _, reply: replace(
        reply, body=body[: len(reply.body)].ljust(len(reply.body), b"!")
    )


def body_is(body: bytes) -> Fault:
    """Send this body, with its own length."""
    return lambda _, reply: replace(reply, body=body)


def without_length(request: Request, reply: Reply) -> Reply:
    """Do not say how long the body is, and close behind it."""
    return replace(reply, length=-1, then="close")


def endless_body(request: Request, reply: Reply) -> Reply:
    """Send a body without end or length."""
    return replace(reply, endless=b"x" * _PIECE)


def endless_header(request: Request, reply: Reply) -> Reply:
    """Send headers without end."""
    return replace(reply, endless_header=b"X-Filler: " + b"x" * 60_000 + b"\r\n")


def redirects(location: str, code: int = 302, *, endless: bool = False) -> Fault:
    """Send the client elsewhere; `endless`: with a body that never ends."""
    headers = ((b"Location", location.encode()),)
    return lambda _, __: Reply(code, headers, endless=b"x" * _PIECE if endless else b"")


def error(code: int, message: str) -> Reply:
    """Answer with an error as portals word it."""
    body = json.dumps({"message": message}).encode() + b"\n"
    return Reply(code, ((b"Content-Type", b"application/json; charset=utf-8"),), body)


@dataclass
class _Rule:
    pattern: re.Pattern[str]
    fault: Fault
    left: int | None


@dataclass
class FakePortal:
    """Serves skyfiles. What it lacks and where it lies can be changed at any time."""

    base_sectors: bool = True
    metadata_header: bool = True
    metadata_endpoint: bool = True
    concat: bool = True
    """Whether it knows ``format=concat``; otherwise it refuses several files without a format."""
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    """Open now."""
    accepted: int = 0
    """Opened so far."""
    url: str = ""
    host: str | None = "127.0.0.1"
    """Where it listens; None: at every address."""
    port: int = 0
    tls: ssl.SSLContext | None = None
    has_other_layout: bool = False
    """Whether it stores large content in another layout than our portal does."""
    breaks_upload: tuple[int, str] | None = None
    """Bytes of an upload's body that it reads, and what it does then: reset, stall, sip (read on,
    slowly), or hang without reading any more."""
    takes: tuple[int, float] | None = None
    """Bytes of a body that it reads at a time, and seconds of pause after each."""
    _content: dict[Skylink, FakeSkyfile] = field(default_factory=dict)
    _rules: list[_Rule] = field(default_factory=list)

    def add(self, *skyfiles: FakeSkyfile) -> None:
        """Serve these skyfiles too."""
        self._content |= {skyfile.skylink: skyfile for skyfile in skyfiles}

    def resolve(self, skylink: Skylink, skyfile: FakeSkyfile) -> None:
        """Let a v2 skylink stand for a skyfile from now on."""
        self.add(skyfile)
        self._content[skylink] = skyfile

    def fault(
        self, fault: Fault, pattern: str = "", times: int | None = None, *, first: bool = False
    ) -> None:
        """Misbehave on requests whose «METHOD target» matches, so many times or always.

        Of several rules the first one applies, which is the one that was made first, or `first`.
        """
        self._rules.insert(
            0 if first else len(self._rules), _Rule(re.compile(pattern), fault, times)
        )

    def heal(self, pattern: str = "") -> None:
        """Behave again: forget the rules of that very pattern, or all of them."""
        self._rules = [rule for rule in self._rules if pattern and rule.pattern.pattern != pattern]

    def asked(self, pattern: str = "") -> list[Request]:
        return [request for request in list(self.requests) if re.search(pattern, str(request))]

    # --- answers

    def answer(self, request: Request) -> Reply:
        """Return the reply to a request, honest or not."""
        reply = self._honest(request)
        for rule in self._rules:
            if rule.left != 0 and rule.pattern.search(f"{request.method} {request.target}"):
                if rule.left is not None:
                    rule.left -= 1
                return rule.fault(request, reply)
        return reply

    def _honest(self, request: Request) -> Reply:
        first, _, rest = request.path.lstrip("/").partition("/")
        if first == "svc":
            return self._service(request, rest)
        try:
            skyfile = self._content.get(Skylink(first))
        except ValueError as problem:
            return error(400, f"error parsing skylink: {problem}")
        return (
            error(404, "failed to fetch skylink")
            if skyfile is None
            else self._download(request, skyfile, rest)
        )

    def _service(self, request: Request, rest: str) -> Reply:
        verb, _, name = rest.partition("/")
        if request.method == "POST" and verb == "skyfile":
            if request.query.get("dryrun") == "true" and not self.has_other_layout:
                return Reply(200, (), json.dumps({"skylink": _dry_run(request)}).encode())
            held = self._content.values()
            first = next(iter(held), None)
            if first is None:
                return error(500, "nothing to answer with")
            first = next((x for x in held if x.payload and x.payload in request.body), first)
            answer = {"skylink": first.name, "merkleroot": "", "bitfield": first.skylink.bitfield}
            return Reply(200, (), json.dumps(answer).encode())
        if verb == "root":
            query = request.query
            root = bytes.fromhex(query["root"])
            for skyfile in self._content.values():
                if root in skyfile.sectors:
                    start = int(query["offset"])
                    data = skyfile.sectors[root].ljust(start + int(query["length"]), b"\0")
                    return Reply(200, (), data[start : start + int(query["length"])])
            return error(404, "root not found")
        skyfile = self._content.get(Skylink(name)) if name else None
        if skyfile is None:
            return error(404, "not here")
        if verb == "basesector" and self.base_sectors and skyfile.base is not None:
            return Reply(200, (), skyfile.base)
        if verb == "metadata" and self.metadata_endpoint:
            return Reply(200, ((b"Content-Type", b"application/json"),), skyfile.metadata)
        return error(404, "no such endpoint")

    def _download(self, request: Request, skyfile: FakeSkyfile, path: str) -> Reply:
        content = skyfile.payload
        if path:
            if path not in skyfile.files:
                return error(404, f"failed to download contents for path: /{path}")
            content = skyfile.files[path]
        elif not self.concat and len(skyfile.files) > 1 and request.method == "GET":
            return error(400, "please specify a format")
        found: Headers = (
            (b"Svc-Skylink", skyfile.name.encode()),
            (b"Content-Type", b"application/octet-stream"),
        )
        if self.metadata_header and request.query.get("no-response-metadata") != "true":
            found += ((b"svc-metadata", skyfile.metadata),)
        asked = request.headers.get("range")
        ranges = parse_range(asked, len(content)) if asked else None
        if ranges is None:
            return Reply(200, found, content, content)
        if not ranges:
            return error(416, "range")
        part: ByteRange = ranges[0]
        found += ((b"Content-Range", part.content_range(len(content)).encode()),)
        return Reply(206, found, content[part.start : part.stop], content)

    # --- the socket

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Listen on a free port and serve until cancelled."""
        listeners = await trio.open_tcp_listeners(self.port, host=self.host)
        self.port = listeners[0].socket.getsockname()[1]
        host = f"[{self.host}]" if ":" in (self.host or "") else self.host
        self.url = f"http{'s' if self.tls else ''}://{host}:{self.port}"
        await trio.serve_listeners(self._serve, listeners, task_status=_Started(task_status))

    async def _serve(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        self.accepted += 1
        if self.takes is not None:  # else it is the kernel that takes it all
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.takes[0])
        try:
            if self.tls is None:
                await self._converse(stream)
            else:
                secure = trio.SSLStream(stream, self.tls, server_side=True)
                await self._converse(secure)  # type: ignore[arg-type]
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            pass
        finally:
            self.connections -= 1
            await trio.aclose_forcefully(stream)

    async def _converse(self, stream: trio.SocketStream) -> None:
        held = b""
        while True:
            try:
                request, held = await _receive(stream, held, self.breaks_upload, self.takes)
            except _BrokenUploadError as broken:
                self.requests.append(broken.request)
                await _end(stream, broken.then)
                return
            if request is None:
                return
            self.requests.append(request)
            if not await _send(stream, request, self.answer(request)):
                return


def _dry_run(request: Request) -> str:
    """Return the skylink that the body of a request, one file, would get."""
    metadata = Metadata(request.query["filename"], len(request.body))
    return of_metadata(encode_metadata(metadata), request.body).name


class _Started:
    """Hands on that the listeners stand, without them."""

    def __init__(self, status: "trio.TaskStatus[None]") -> None:
        self._status = status

    def started(self, value: object = None) -> None:
        self._status.started()


class _BrokenUploadError(Exception):
    """An upload is not read to its end."""

    def __init__(self, request: Request, then: str) -> None:
        super().__init__()
        self.request = request
        self.then = then


async def _receive(
    stream: trio.SocketStream,
    held: bytes,
    breaks: tuple[int, str] | None = None,
    takes: tuple[int, float] | None = None,
) -> tuple[Request | None, bytes]:
    """Read a request; None at the end of the connection."""
    while b"\r\n\r\n" not in held:
        piece = await stream.receive_some()
        if not piece or len(held) > _HEAD_LIMIT:
            return None, b""
        held += piece
    head, _, rest = held.partition(b"\r\n\r\n")
    line, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = line.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    body = bytearray(rest)
    if breaks is not None and method == "POST":
        size = len(body)
        while size < breaks[0] and (piece := await stream.receive_some()):
            size += len(piece)
        raise _BrokenUploadError(Request(method, target, headers, bytes(body)), breaks[1])
    if headers.get("transfer-encoding") == "chunked":  # kept as it came
        while not body.endswith(b"\r\n0\r\n\r\n"):
            piece = await stream.receive_some()
            if not piece:
                return None, b""
            body += piece
        return Request(method, target, headers, bytes(body)), b""
    size = int(headers.get("content-length", 0))
    most, pause = takes or (None, 0.0)
    while len(body) < size:
        await trio.sleep(pause)
        piece = await stream.receive_some(most)
        if not piece:
            return None, b""
        body += piece
    return Request(method, target, headers, bytes(body[:size])), bytes(body[size:])


async def _send(stream: trio.SocketStream, request: Request, reply: Reply) -> bool:
    """Send a reply; returns whether the connection goes on."""
    await trio.sleep(reply.delay)
    if reply.sent == -1:
        return await _end(stream, reply.then)
    lines = [f"HTTP/1.1 {reply.status} Status".encode()]
    lines += [name + b": " + value for name, value in reply.headers]
    if not reply.endless and (reply.length is None or reply.length >= 0):
        length = len(reply.body) if reply.length is None else reply.length
        lines.append(b"Content-Length: %d" % length)
    while reply.endless_header:
        await stream.send_all(b"\r\n".join(lines[:1]) + b"\r\n" + reply.endless_header)
        lines[0] = b"X-More: yes"
    head = b"\r\n".join(lines) + b"\r\n\r\n"
    size = 1 if reply.head_pause else len(head)
    for at in range(0, len(head), size):
        await stream.send_all(head[at : at + size])
        await trio.sleep(reply.head_pause)
    if request.method == "HEAD":
        return True
    while reply.endless:
        await stream.send_all(reply.endless)
    body = memoryview(reply.body)[: reply.sent]
    size, pause = reply.drip
    for at in range(0, len(body), size):
        await stream.send_all(body[at : at + size])
        if pause:
            await trio.sleep(pause)
    return await _end(stream, reply.then)


async def _end(stream: trio.SocketStream, how: str) -> bool:
    if how == "stall":
        while await stream.receive_some():  # until the client gives up
            pass
    while how == "sip" and await stream.receive_some(_PIECE):
        await trio.sleep(0.2)
    if how == "hang":
        await trio.sleep_forever()
    if how == "reset":
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return how == "keep"


@asynccontextmanager
async def running(portal: FakePortal) -> AsyncIterator[FakePortal]:
    """Run a portal in this event loop; it ends with the block."""
    async with trio.open_nursery() as nursery:
        await nursery.start(portal.run)
        yield portal
        nursery.cancel_scope.cancel()


@contextmanager
def in_thread(portal: FakePortal) -> Iterator[FakePortal]:
    """Run a portal in a thread of its own; it ends with the block."""
    ready = threading.Event()
    end: list[Callable[[], None]] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(portal.run)
            token = trio.lowlevel.current_trio_token()
            end.append(lambda: token.run_sync_soon(nursery.cancel_scope.cancel))
            ready.set()

    thread = threading.Thread(target=trio.run, args=(main,), daemon=True)
    thread.start()
    assert ready.wait(10), "the fake portal did not start"
    try:
        yield portal
    finally:
        end[0]()
        thread.join(10)
        assert not thread.is_alive(), "the fake portal did not end"
