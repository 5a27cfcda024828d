"""Small bodies are read whole, within limits."""

import pytest
import trio

from skymount.server.http.messages import ClientGoneError, read_body
from skymount.server.http_error import HttpError
from tests.server.http_client import request_of


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
