"""Responses as they go out: their headers, and bodies that are read while they are sent."""

from collections.abc import Generator

import pytest
import trio
from starlette.requests import ClientDisconnect
from starlette.types import Message

from skymount.server.http import responses
from skymount.server.http.responses import BytesResponse, StreamedResponse
from skymount.server.http_error import HttpError
from skymount.wire.skylink import Skylink


class Connection:
    """What a client gets of a response; it may go away after some messages."""

    def __init__(self, patience: float = float("inf")) -> None:
        self.messages: list[Message] = []
        self._patience = patience
        self._gone = trio.Event()

    async def receive(self) -> Message:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.messages.append(message)
        if len(self.messages) > self._patience:
            self._gone.set()
            await trio.sleep_forever()

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)


class Chunks:
    """A body in three chunks that notes whether it was closed."""

    def __init__(self) -> None:
        self.read = 0
        self.is_closed = False

    def __call__(self) -> Generator[bytes]:
        try:
            for self.read, chunk in enumerate((b"one ", b"two ", b"three"), 1):
                yield chunk
        finally:
            self.is_closed = True


def streamed(chunks: Chunks) -> StreamedResponse:
    return StreamedResponse(200, [("ETag", '"x"')], chunks(), 13)


async def test_streamed_body() -> None:
    """It goes out in its chunks, with the length that was told."""
    connection, chunks = Connection(), Chunks()
    await streamed(chunks)({"type": "http", "method": "GET"}, connection.receive, connection.send)
    head, *rest = connection.messages
    assert head["headers"] == [(b"etag", b'"x"'), (b"content-length", b"13")]
    assert [message["body"] for message in rest] == [b"one ", b"two ", b"three", b""]
    assert [message["more_body"] for message in rest] == [True, True, True, False]
    assert chunks.is_closed


async def test_head_has_no_body() -> None:
    """Its headers are those of GET; nothing is read."""
    connection, chunks = Connection(), Chunks()
    await streamed(chunks)({"type": "http", "method": "HEAD"}, connection.receive, connection.send)
    assert (connection.body, chunks.read) == (b"", 0)
    assert (b"content-length", b"13") in connection.messages[0]["headers"]


async def test_client_that_goes_away() -> None:
    """Nothing more is read, and the file is closed."""
    connection, chunks = Connection(patience=1), Chunks()
    with trio.fail_after(5), pytest.raises(ClientDisconnect):
        await streamed(chunks)(
            {"type": "http", "method": "GET"}, connection.receive, connection.send
        )
    assert (chunks.read, chunks.is_closed) == (1, True)


@pytest.mark.parametrize(("status", "length"), [(200, [(b"content-length", b"2")]), (204, [])])
def test_bytes(status: int, length: list[tuple[bytes, bytes]]) -> None:
    """The headers are those that were given, in their order, and a length where one may be."""
    made = BytesResponse(status, [("X-A", "ä"), ("x-a", b"\xff")], b"ab")
    assert made.raw_headers == [(b"x-a", "ä".encode()), (b"x-a", b"\xff"), *length]


def test_skylink_headers() -> None:
    """One for each family of portals."""
    link = Skylink.v1(bytes(32), 4096)
    assert sorted(responses.skylink_headers(link)) == [
        ("Skynet-Skylink", str(link)),
        ("Svc-Skylink", str(link)),
    ]


def test_errors() -> None:
    """They are JSON with a message, or the bare message where the contract has it so."""
    made = responses.of_http_error(HttpError(401, "who?", (("X-Why", "b"),)), [("X-First", "a")])
    assert (made.status_code, made.body) == (401, b'{"message":"who?"}\n')
    assert made.raw_headers[:2] == [(b"x-first", b"a"), (b"x-why", b"b")]
    assert (b"content-type", b"application/json; charset=utf-8") in made.raw_headers
    plain = responses.of_http_error(HttpError(400, "no", plain_text=True))
    assert (plain.status_code, plain.body) == (400, b"no")
    assert (b"content-type", b"text/plain; charset=utf-8") in plain.raw_headers
