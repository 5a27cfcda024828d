"""Small bodies are read whole, within limits."""

from collections.abc import Mapping

import pytest
import trio
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from skymount.server.http.request_body import read_body
from skymount.server.http_error import HttpError


def _request(*pieces: bytes, headers: Mapping[str, str] | None = None, query: str = "") -> Request:
    """Return a request whose body comes in these pieces, and then no more."""
    messages: list[Message] = [
        {"type": "http.request", "body": piece, "more_body": at < len(pieces) - 1}
        for at, piece in enumerate(pieces)
    ]

    async def receive() -> Message:
        if not messages:
            await trio.sleep_forever()
        return messages.pop(0)

    raw = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    scope = {"type": "http", "headers": raw, "query_string": query.encode()}
    return Request(scope, receive)


async def test_a_body_is_read_whole() -> None:
    """Up to the limit."""
    assert await read_body(_request(b"ab", b"", b"c"), 3, 1) == b"abc"
    assert await read_body(_request(b""), 0, 1) == b""


async def test_a_long_body_is_refused() -> None:
    """413, as soon as it is known."""
    for request in (
        _request(b"ab", b"cd"),
        _request(headers={"content-length": "4"}),
        _request(headers={"content-length": "9" * 5000}),
    ):
        with pytest.raises(HttpError) as refused:
            await read_body(request, 3, 1)
        assert refused.value.status == 413


async def test_a_late_body_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    """408 when the whole is not there in time."""
    request = _request(b"a", b"b")
    await request.receive()
    await request.receive()
    with pytest.raises(HttpError) as refused:
        await read_body(request, 3, 5)
    assert refused.value.status == 408
    assert trio.current_time() == 5


async def test_a_body_that_breaks_off() -> None:
    """The client has gone: nobody to answer."""

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    with pytest.raises(ClientDisconnect):
        await read_body(Request({"type": "http", "headers": []}, receive), 3, 1)
