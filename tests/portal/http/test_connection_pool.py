"""Who gets a connection, and in which order."""

from collections.abc import Callable

import httpx
import pytest
import trio
import trio.testing

from skymount.portal.http.connection_pool import PATIENCE, ConnectionPool, in_background
from skymount.portal.http.http11 import ConnectionState, HTTP11Connection
from tests.fuzz.portal import no_tls


def new_pool(connections: int) -> ConnectionPool:
    return ConnectionPool(connections, lambda: HTTP11Connection(no_tls, 60))


async def test_speculative_requests_wait_for_the_others():
    """R5: a request that nobody waits for gets a connection when no other request wants it."""
    pool = new_pool(1)
    order: list[str] = []

    async def borrow(name: str, speculative: bool) -> None:
        connection = await pool.lend(60, speculative=(lambda: True) if speculative else None)
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


async def test_a_speculative_request_that_is_wanted_keeps_its_place():
    """R5: once a read waits for it, it is served in the order in which it came."""
    pool = new_pool(1)
    order: list[str] = []
    wanted = False

    async def borrow(name: str, speculative: Callable[[], bool] | None) -> None:
        connection = await pool.lend(60, speculative=speculative)
        order.append(name)
        await trio.testing.wait_all_tasks_blocked()
        pool.take_back(connection)

    first = await pool.lend(60)
    async with trio.open_nursery() as nursery:
        for name, speculative in [("ahead", lambda: not wanted), ("read", None)]:
            nursery.start_soon(borrow, name, speculative)
            await trio.testing.wait_all_tasks_blocked()
        wanted = True
        pool.take_back(first)
    assert order == ["ahead", "read"]


async def test_a_speculative_request_does_not_starve(autojump_clock: trio.testing.MockClock):
    """R5: however many other requests there are, it has its turn after a second."""
    pool = new_pool(2)

    async def read_on() -> None:
        while True:
            connection = await pool.lend(60)
            await trio.sleep(0.05)
            pool.take_back(connection)

    async with trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(read_on)
        await trio.testing.wait_all_tasks_blocked()
        begun = trio.current_time()
        pool.take_back(await pool.lend(5, speculative=lambda: True))
        assert PATIENCE <= trio.current_time() - begun < PATIENCE + 0.5
        nursery.cancel_scope.cancel()


async def test_requests_in_the_background_leave_room():
    """G6: others never wait for them, and they wait for each other in turn."""
    pool = new_pool(4)
    lent: list[tuple[str, HTTP11Connection]] = []

    async def borrow(name: str) -> None:
        lent.append((name, await pool.lend(60)))

    async def ask(*names: str) -> list[str]:
        await trio.testing.wait_all_tasks_blocked()
        for name in names:
            nursery.start_soon(borrow, name)
            await trio.testing.wait_all_tasks_blocked()
        return [name for name, _ in lent]

    def give_back(number: int) -> None:
        pool.take_back(lent.pop(number)[1])

    async with trio.open_nursery() as nursery:
        with in_background():
            assert await ask("1", "2", "3", "4", "5") == ["1", "2", "3"]
        assert await ask("read") == ["1", "2", "3", "read"]
        assert await ask("read too") == ["1", "2", "3", "read"]
        give_back(3)
        assert await ask() == ["1", "2", "3", "read too"]
        give_back(3)
        assert await ask() == ["1", "2", "3"]
        give_back(0)
        assert await ask() == ["2", "3", "4"]
        give_back(0)
        assert await ask("read") == ["3", "4", "5", "read"]
        while lent:
            give_back(0)
        assert await ask("a", "b", "c", "d") == ["a", "b", "c", "d"]


async def test_request_in_the_background_that_is_cancelled():
    """Its place is not lost, also if it was just given to it."""
    pool = new_pool(2)

    async def borrow(scope: trio.CancelScope) -> None:
        with scope, in_background():
            await pool.lend(60)

    with in_background():
        first = await pool.lend(60)
    async with trio.open_nursery() as nursery:
        scopes = [trio.CancelScope(), trio.CancelScope()]
        for scope in scopes:
            nursery.start_soon(borrow, scope)
            await trio.testing.wait_all_tasks_blocked()
        scopes[1].cancel()
        await trio.testing.wait_all_tasks_blocked()
        scopes[0].cancel()
        pool.take_back(first)
    with trio.fail_after(30), in_background():
        await pool.lend(60)
    await pool.lend(60)


async def test_single_connection_serves_the_background_too():
    pool = new_pool(1)
    with trio.fail_after(30), in_background():
        pool.take_back(await pool.lend(60))


async def test_waiting_has_a_limit(autojump_clock: trio.testing.MockClock):
    """A request that gets no connection in time fails, and takes no connection from the next."""
    pool = new_pool(1)
    connection = await pool.lend(60)
    for speculative in (lambda: True, None):
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


async def test_cancelled_just_before_it_gets_a_place():
    """C13: A request that is cancelled in the moment in which it gets its place gives it back."""
    pool = new_pool(1)
    first = await pool.lend(60)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pool.lend, 60)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        pool.take_back(first)
    with trio.fail_after(5):
        pool.take_back(await pool.lend(60))
    assert len(pool) == 1
