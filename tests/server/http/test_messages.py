"""Answers as they go out: headers, and bodies made while they are sent; bodies of requests."""

import os
import socket
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from pathlib import Path

import pytest
import trio

from skymount.errors import SkymountError, StorageError
from skymount.server.http.connection import Connection, Shared
from skymount.server.http.messages import (
    FIRST_PIECE,
    IMMUTABLE,
    ClientGoneError,
    FileRange,
    Pieces,
    Request,
    Response,
    encode_head,
    error_response,
    fields,
    read_body,
    skylink_fields,
)
from skymount.server.http_error import HttpError
from skymount.wire.skylink import Skylink
from tests.server.http_client import request_of

Answer = Callable[[Request], Awaitable[Response]]


class Portal:
    """Gives one answer to everything."""

    def __init__(self, answer: Response | Answer) -> None:
        self._answer = answer

    async def answer(self, request: Request) -> Response:
        return self._answer if isinstance(self._answer, Response) else await self._answer(request)

    async def failed(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HttpError | OSError | SkymountError | MemoryError)
        return error_response(HttpError(500, str(error)))

    def varies(self, request: Request, status: int) -> tuple[str, ...]:
        return ()


class Made:
    """A body of pieces that notes how many were made, and whether it was closed."""

    def __init__(self, *pieces: bytes | Exception) -> None:
        self.count = 0
        self.is_closed = False
        self._pieces = pieces

    def __call__(self) -> Generator[bytes, int | None]:
        try:
            for piece in self._pieces:
                self.count += 1
                if isinstance(piece, Exception):
                    raise piece
                yield piece
        finally:
            self.is_closed = True


def connected(answer: Response | Answer) -> tuple[socket.socket, Connection]:
    """Return the client's end, and a connection that gives the answer at the other one."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    return ours, Connection(theirs, Shared(Portal(answer), 30, 30))


async def answered(answer: Response, method: str = "GET", version: str = "1.1") -> bytes:
    """Return all that a client gets."""
    ours, connection = connected(answer)
    request = f"{method} / HTTP/{version}\r\nHost: a\r\nConnection: close\r\n\r\n"
    with ours:
        ours.sendall(request.encode())
        await connection.serve()
        return b"".join(iter(lambda: ours.recv(1 << 20), b""))


async def test_a_body_of_known_length() -> None:
    made = Made(b"one ", b"", b"two ", b"three")
    head, _, body = (await answered(Response(200, b"", Pieces(made(), 13)))).partition(b"\r\n\r\n")
    assert b"Content-Length: 13" in head
    assert body == b"one two three"
    assert made.is_closed


async def test_a_body_whose_end_tells_its_length() -> None:
    """In chunks; by the end of the connection where the client knows no chunks."""
    for version, body in (("1.1", b"4\r\none \r\n5\r\nthree\r\n0\r\n\r\n"), ("1.0", b"one three")):
        made = Made(b"one ", b"", b"three")
        found = await answered(Response(200, b"", Pieces(made())), version=version)
        assert found.partition(b"\r\n\r\n")[2] == body
        assert b"Connection: close" in found


@pytest.mark.parametrize("size", [3, FIRST_PIECE + 1])
async def test_a_part_of_a_file(tmp_path: Path, size: int) -> None:
    """It is sent as it is; a file that is too short is an error before anything is sent."""
    path = tmp_path / "payload"
    path.write_bytes(b"x" + b"y" * size + b"z")
    found = await answered(Response(200, b"", FileRange(path, 1, size)))
    assert found.partition(b"\r\n\r\n")[2] == b"y" * size
    for broken in (FileRange(path, 3, size), FileRange(tmp_path / "none", 0, size)):
        found = await answered(Response(200, b"", broken))
        assert found.startswith(b"HTTP/1.1 500 ")


async def test_head_has_no_body(tmp_path: Path) -> None:
    """Its headers are those of GET; nothing is read."""
    made = Made(b"one")
    for body in (Pieces(made(), 3), b"one", FileRange(tmp_path / "none", 0, 3)):
        head, _, rest = (await answered(Response(200, b"", body), "HEAD")).partition(b"\r\n\r\n")
        assert b"Content-Length: 3" in head
        assert rest == b""
    assert made.count == 0


async def test_a_body_that_cannot_be_made() -> None:
    """It is an error before the first piece; later the answer is broken off."""
    for reason in (StorageError("no"), MemoryError()):
        failed = await answered(Response(200, b"", Pieces(Made(reason)(), 3)))
        assert failed.startswith(b"HTTP/1.1 500 ")
    made = Made(b"one", StorageError("no"))
    broken = await answered(Response(200, b"", Pieces(made(), 6)))
    assert broken.startswith(b"HTTP/1.1 200 ")
    assert broken.endswith(b"\r\n\r\none")
    assert made.is_closed


async def test_a_file_that_is_cut_while_it_is_sent(tmp_path: Path) -> None:
    """The answer is broken off: the client sees that it is not complete."""
    path, size = tmp_path / "payload", 64 << 20
    path.touch()
    os.truncate(path, size)
    ours, connection = connected(Response(200, b"", FileRange(path, 0, size)))
    ours.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.serve)
        with ours:
            found = await trio.to_thread.run_sync(ours.recv, 1000)
            os.truncate(path, 1)
            rest = partial(b"".join, iter(lambda: ours.recv(1 << 20), b""))
            found += await trio.to_thread.run_sync(rest)
    assert found.startswith(b"HTTP/1.1 200 ")
    assert len(found) < size


async def test_a_client_that_goes_away() -> None:
    """Nothing more is made."""
    made = Made(*[bytes(1 << 20)] * 1000)
    ours, connection = connected(Response(200, b"", Pieces(made())))
    ours.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.serve)
        with trio.fail_after(30):
            await trio.to_thread.run_sync(ours.recv, 1000)
            ours.close()
            while not made.is_closed:
                await trio.sleep(0.01)
    assert made.count < 1000


def test_headers_are_encoded_as_given() -> None:
    """In their order; nothing in them ends a line."""
    assert fields(("X-A", "ä"), ("x-a", b"\xff")) == "X-A: ä\r\n".encode() + b"x-a: \xff\r\n"
    assert fields(("A", "b\r\nC: d\0")) == b"A: b  C: d \r\n"


def test_a_head_says_what_caches_may_do() -> None:
    """nginx reads one `Vary` only; an endpoint's word counts, but not in an error."""
    made = Response(200, fields(("A", "b")), b"xy", IMMUTABLE, vary=("B", "A"))
    head = encode_head(made, "1.1", b"C: d\r\n", ("C", "A"), closes=False).decode()
    assert head.startswith("HTTP/1.1 200 OK\r\nA: b\r\nC: d\r\nDate: ")
    assert f"\r\nCache-Control: {IMMUTABLE}\r\nVary: A, B, C\r\nContent-Length: 2\r\n\r\n" in head
    made.status = 404
    assert "\r\nCache-Control: no-store\r\n" in encode_head(made, closes=False).decode()
    bare = encode_head(Response(204), closes=True).decode()
    assert bare.endswith("\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n")


def test_skylink_headers() -> None:
    """One for each family of portals."""
    link = Skylink.v1(bytes(32), 4096)
    lines = {f"Skynet-Skylink: {link}", f"Svc-Skylink: {link}", ""}
    assert {*skylink_fields(link).decode().split("\r\n")} == lines


def test_errors() -> None:
    """They are JSON with a message, or the bare message where the contract has it so."""
    made = error_response(HttpError(401, "who?", (("X-Why", "b"),)), b"X-First: a\r\n")
    assert (made.status, made.body) == (401, b'{"message":"who?"}\n')
    assert made.fields.startswith(b"X-First: a\r\nX-Why: b\r\n")
    assert made.fields.endswith(b"Content-Type: application/json; charset=utf-8\r\n")
    plain = error_response(HttpError(400, "no", plain_text=True))
    assert (plain.status, plain.body) == (400, b"no")
    assert plain.fields == b"Content-Type: text/plain; charset=utf-8\r\n"


async def test_a_body_is_read_whole() -> None:
    """Up to the limit."""
    assert await read_body(request_of(b"ab", b"c", b""), 3, 1) == b"abc"
    assert await read_body(request_of(b""), 0, 1) == b""


async def test_a_long_body_is_refused() -> None:
    """413, as soon as it is known."""
    for request in (
        request_of(b"ab", b"cd"),
        request_of(headers={"content-length": "4"}),
    ):
        with pytest.raises(HttpError) as refused:
            await read_body(request, 3, 1)
        assert refused.value.status == 413


async def test_a_late_body_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    """408 when the whole is not there in time."""
    request = request_of(b"a")
    with pytest.raises(HttpError) as refused:
        await read_body(request, 3, 5)
    assert refused.value.status == 408
    assert trio.current_time() == 5


async def test_a_body_that_breaks_off() -> None:
    """The client has gone: nobody to answer."""

    class Gone:
        async def receive(self) -> bytes:
            raise ClientGoneError

    request = request_of()
    request.body = Gone()
    with pytest.raises(ClientGoneError):
        await read_body(request, 3, 1)
