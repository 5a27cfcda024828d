"""The connections that a client makes ahead of need, and what it learns of the way."""

import gc

import pytest

from skymount.errors import BadContentError, PortalError, UnavailableError
from skymount.portal.http.client import HttpClient
from skymount.settings import PortalOptions
from tests.portal.http.scripted_server import GET, HELLO, Reply, fetched, serving, sized, talking


async def test_ahead_of_need():
    """Connections are made ahead of need, as many as there may be, and requests use them."""
    async with serving(HELLO) as server:
        transport = HttpClient(server.url, PortalOptions.parse(server.url, connections=3))
        await transport.connect(10)
        await transport.connect(2)
        async with transport.open(GET), transport.open(GET):
            await transport.connect(3)
            assert await fetched(transport) == b"hello"
        assert server.accepted == 3
        await transport.aclose()


async def test_one_that_stands_is_the_next():
    """A request does not wait for a new connection in place of one that broke, if one is idle."""
    async with serving(sized(b"hel", length=5)) as server:
        transport = HttpClient(server.url, PortalOptions.parse(server.url))
        await transport.connect(2)
        for _ in range(2):
            async with transport.open(GET):
                pass  # its body is not all here, which ends the connection
        assert server.accepted == 2
        await transport.aclose()


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("http://127.0.0.1:1", UnavailableError),
        ("https://127.0.0.1:1", UnavailableError),
        ("http://x..y", BadContentError),
    ],
)
async def test_nobody_ahead_of_need(url: str, error: type[PortalError]):
    """That nobody is there is the error of a request, not of making connections ahead."""
    transport = HttpClient(url, PortalOptions(url, retries=0))
    await transport.connect(2)
    with pytest.raises(error):
        await fetched(transport)
    await transport.aclose()


async def test_round_trip():
    """It is the shortest of late: a slow answer hardly counts, and an old one fades."""
    slow = Reply([HELLO[:1], HELLO[1:]])
    async with talking(slow) as (_, client):
        assert client.round_trip is None
        await fetched(client)
        first = client.round_trip
        assert first is not None
        for number in range(1, 20):
            await fetched(client)
            assert client.round_trip is not None
            assert 0 < client.round_trip <= first * 1.02**number


async def test_connections_of_a_client_that_was_closed():
    """What was made ahead is gone, and no request makes a connection anew."""
    async with talking(HELLO) as (server, client):
        await client.connect(2)
        await client.aclose()
        with pytest.raises(RuntimeError, match="this client is closed"):
            await fetched(client)
        assert server.accepted == 2


async def test_client_that_nobody_closed():
    """It warns when it is dropped with open connections."""
    async with talking(HELLO) as (_, client):
        dropped = [HttpClient(client.url, client.options)]
        await dropped[0].connect(1)

        def drop() -> None:
            dropped.clear()
            gc.collect()

        with pytest.warns(ResourceWarning, match="unclosed <socket"):
            drop()
