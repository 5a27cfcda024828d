"""A thread that runs trio for callers without async."""

import gc
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
import trio

from skymount.trio_thread import TrioThread

_END = 30.0  # seconds in which a thread must have ended


@asynccontextmanager
async def opened(log: list[str]) -> AsyncIterator[str]:
    log.append("opened")
    try:
        yield "what it gives"
    finally:
        log.append("closed")


async def double(number: int) -> int:
    await trio.sleep(0)
    return 2 * number


def test_calls_and_the_end() -> None:
    log: list[str] = []
    thread = TrioThread(opened(log), "test")
    assert thread.opened == "what it gives"
    assert thread.call(lambda: double(21)) == 42
    with pytest.raises(TypeError):
        thread.call(lambda: double("x", "y"))  # type: ignore[call-arg,arg-type]
    told = threading.Event()
    thread.call_soon(told.set)
    assert told.wait(_END)
    assert thread.is_alive
    thread.stop()
    assert not thread.is_alive
    assert log == ["opened", "closed"]
    with pytest.raises(RuntimeError, match="this test is closed"):
        thread.call(lambda: double(1))
    thread.call_soon(told.clear)  # nothing happens
    assert told.is_set()


def test_it_ends_when_it_is_dropped() -> None:
    log: list[str] = []
    thread = TrioThread(opened(log), "dropped")
    (running,) = (each for each in threading.enumerate() if each.name == "skymount-dropped")
    del thread
    gc.collect()
    running.join(_END)
    assert log == ["opened", "closed"]


def test_it_ends_when_until_returns() -> None:
    log: list[str] = []
    thread = TrioThread(opened(log), "brief", trio.lowlevel.checkpoint)
    for running in threading.enumerate():
        if running.name == "skymount-brief":
            running.join(_END)
    assert not thread.is_alive
    assert log == ["opened", "closed"]


def test_a_call_that_the_end_cuts_short() -> None:
    """It is not left waiting."""
    thread = TrioThread(opened([]), "test")
    waiting = threading.Event()

    async def wait() -> None:
        waiting.set()
        await trio.sleep_forever()

    failures: list[str] = []

    def call() -> None:
        try:
            thread.call(wait)
        except RuntimeError as error:
            failures.append(str(error))

    caller = threading.Thread(target=call)
    caller.start()
    assert waiting.wait(_END)
    thread.stop()
    caller.join(_END)
    assert failures == ["the test was closed during this call"]


@pytest.fixture
def alarm() -> Iterator[Callable[[], None]]:
    """Return what makes the main thread raise TimeoutError, by a signal."""

    def on_signal(*_: object) -> None:
        raise TimeoutError("too long")

    before = signal.signal(signal.SIGUSR1, on_signal)
    main = threading.main_thread().ident
    assert main is not None
    yield lambda: signal.pthread_kill(main, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def test_a_call_that_a_signal_ends(alarm: Callable[[], None]) -> None:
    """It is cancelled, whatever the handler raises."""
    thread = TrioThread(opened([]), "test")
    ended = threading.Event()

    async def wait() -> None:
        try:
            alarm()
            await trio.sleep_forever()
        finally:
            ended.set()

    with pytest.raises(TimeoutError, match="too long"):
        thread.call(wait)
    assert ended.wait(_END)
    thread.stop()


def test_a_start_that_a_signal_ends(alarm: Callable[[], None]) -> None:
    """The thread ends once it has opened, as nobody can stop it."""
    log: list[str] = []
    interrupted, ended = threading.Event(), threading.Event()

    @asynccontextmanager
    async def slow() -> AsyncIterator[None]:
        alarm()
        await trio.to_thread.run_sync(interrupted.wait, _END)
        async with opened(log):
            yield
        ended.set()

    with pytest.raises(TimeoutError, match="too long"):
        TrioThread(slow(), "test")
    interrupted.set()
    assert ended.wait(_END)
    assert log == ["opened", "closed"]


def test_what_cannot_be_opened() -> None:
    @asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        raise OSError("no")
        yield

    with pytest.raises(OSError, match="no"):
        TrioThread(broken(), "test")
