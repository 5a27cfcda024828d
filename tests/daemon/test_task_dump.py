"""The tree of tasks, for the log."""

import trio
import trio.testing

from skymount.daemon.task_dump import dump


async def _wait_for_ever() -> None:
    await trio.sleep_forever()


async def _two_below(started: trio.Event) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(_wait_for_ever)
        started.set()


async def test_where_tasks_wait() -> None:
    """M10: Tasks that wait alike are one, with their number; parents come before children."""
    started = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_two_below, started)
        await started.wait()
        await trio.testing.wait_all_tasks_blocked()
        lines = dump({1: ("read", trio.current_time() - 2)})
        nursery.cancel_scope.cancel()
    assert lines[:2] == ["1 request of the kernel under way", "  read for 2.0 s"]
    parent = next(n for n, line in enumerate(lines) if line.endswith("_two_below"))
    below = lines[parent + 1 :]
    child = next(line for line in below if "_wait_for_ever (2 of them)" in line)
    assert len(child) - len(child.lstrip()) > len(lines[parent]) - len(lines[parent].lstrip())
    assert any("test_task_dump.py:" in line and line.endswith("_wait_for_ever") for line in below)


async def test_a_dump_is_bounded() -> None:
    """M10: 300 tasks, 600 lines."""

    async def deeper(left: int) -> None:
        async with trio.open_nursery() as nursery:
            if left:
                nursery.start_soon(deeper, left - 1)
            nursery.start_soon(trio.sleep_forever)

    async with trio.open_nursery() as nursery:
        for _ in range(40):
            nursery.start_soon(deeper, 20)
        await trio.testing.wait_all_tasks_blocked()
        lines = dump({})
        nursery.cancel_scope.cancel()
    assert len(lines) <= 602
    assert any("the rest is left out" in line for line in lines)
