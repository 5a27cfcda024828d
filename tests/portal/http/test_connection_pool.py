"""Who gets a connection, and in which order."""

import httpx
import pytest
import trio
import trio.testing

from skymount.portal.http.connection_pool import ConnectionPool
from skymount.portal.http.http11 import ConnectionState, HTTP11Connection
from tests.fuzz.portal import no_tls


def new_pool(connections: int) -> ConnectionPool:
    return ConnectionPool(connections, lambda: HTTP11Connection(no_tls, 60))


async def test_speculative_requests_wait_for_the_others():
    """R5: a request that nobody waits for gets a connection when no other request wants it."""
    pool = new_pool(1)
    order: list[str] = []

    async def borrow(name: str, speculative: bool) -> None:
        connection = await pool.lend(60, speculative=speculative)
        order.append(name)
        await trio.testing.wait_all_tasks_blocked()
        pool.take_back(connection)

    first = await pool.lend(60)
    async with trio.open_nursery() as nursery:
        for name, speculative in [("ahead", True), ("read", False), ("another read", False)]:
            nursery.start_soon(borrow, name, speculative)
            await trio.testing.wait_all_tasks_blocked()
        assert order == []
        pool.take_back(first)
    assert order == ["read", "another read", "ahead"]
    assert len(pool) == 1


async def test_waiting_has_a_limit(autojump_clock: trio.testing.MockClock):
    """A request that gets no connection in time fails, and takes no connection from the next."""
    pool = new_pool(1)
    connection = await pool.lend(60)
    for speculative in (True, False):
        with pytest.raises(httpx.PoolTimeout, match="every connection is busy for 5 s"):
            await pool.lend(5, speculative=speculative)
    pool.take_back(connection)
    assert await pool.lend(5) is connection


async def test_closed_while_waiting():
    """A request that waits while all connections are closed fails; a new one gets a new one."""
    pool = new_pool(1)
    connection = await pool.lend(60)

    async def borrow() -> None:
        with pytest.raises(httpx.NetworkError, match="closed"):
            await pool.lend(60)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(borrow)
        await trio.testing.wait_all_tasks_blocked()
        await pool.aclose()
        pool.take_back(connection)
    assert connection.state is ConnectionState.CLOSED
    assert await pool.lend(60) is not connection
