"""Signs of life for systemd's watchdog, at a real socket."""

import threading
from collections.abc import Iterator

import pytest
import trio

from skymount.daemon.watchdog import give_signs_of_life
from tests.skymount_process import LIMIT, NotifySocket


@pytest.fixture
def notify(monkeypatch: pytest.MonkeyPatch) -> Iterator[NotifySocket]:
    made = NotifySocket()
    monkeypatch.setenv("NOTIFY_SOCKET", made.address)
    yield made
    made.close()


async def receive(notify: NotifySocket) -> list[str]:
    return await trio.to_thread.run_sync(notify.receive)


async def test_signs_come_as_long_as_the_mount_answers(notify: NotifySocket) -> None:
    """And none while it does not."""
    answers = threading.Event()
    asked = threading.Event()

    def ask() -> None:
        asked.set()
        assert answers.wait(LIMIT)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(give_signs_of_life, ask, 0.03)
        await trio.to_thread.run_sync(asked.wait)
        assert not notify.has_message
        answers.set()
        for _ in range(3):
            assert await receive(notify) == ["WATCHDOG=1"]
        nursery.cancel_scope.cancel()


async def test_an_error_is_no_sign_of_life(notify: NotifySocket) -> None:
    attempts: list[int] = []

    def ask() -> None:
        attempts.append(notify.has_message)
        if len(attempts) < 4:
            raise ConnectionAbortedError

    async with trio.open_nursery() as nursery:
        nursery.start_soon(give_signs_of_life, ask, 0.03)
        assert await receive(notify) == ["WATCHDOG=1"]
        nursery.cancel_scope.cancel()
    assert attempts[:4] == [False] * 4
