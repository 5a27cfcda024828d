"""Small bodies are read whole, within limits."""

import pytest
import trio
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from skymount.server.http.request_body import read_body
from skymount.server.http_error import HttpError
from tests.server.http_client import request_of


async def test_a_body_is_read_whole() -> None:
    """Up to the limit."""
    assert await read_body(request_of(b"ab", b"", b"c"), 3, 1) == b"abc"
    assert await read_body(request_of(b""), 0, 1) == b""


async def test_a_long_body_is_refused() -> None:
    """413, as soon as it is known."""
    for request in (
        request_of(b"ab", b"cd"),
        request_of(headers={"content-length": "4"}),
        request_of(headers={"content-length": "9" * 5000}),
    ):
        with pytest.raises(HttpError) as refused:
            await read_body(request, 3, 1)
        assert refused.value.status == 413


async def test_a_late_body_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    """408 when the whole is not there in time."""
    request = request_of(b"a", b"b")
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
