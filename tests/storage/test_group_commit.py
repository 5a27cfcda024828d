"""What comes together is written together, and told together when that fails."""

import pytest
import trio
import trio.testing

from skymount.errors import StorageError
from skymount.server.storage.disk_errors import DiskFullError
from skymount.storage.group_commit import GroupCommit


async def test_what_comes_during_a_write_shares_the_next_one() -> None:
    """In order; nobody goes on before its own is written."""
    written, go_on = list[list[int]](), trio.Semaphore(0)

    async def write(items: list[int]) -> None:
        await go_on.acquire()
        written.append(list(items))

    commits, done = GroupCommit(write), list[int]()

    async def put(item: int) -> None:
        await commits.put(item)
        assert any(item in batch for batch in written)
        done.append(item)

    async with trio.open_nursery() as nursery:
        for item in range(5):
            nursery.start_soon(put, item)
            await trio.testing.wait_all_tasks_blocked()
        assert done == []
        go_on.release()
        await trio.testing.wait_all_tasks_blocked()
        assert done == [0]
        go_on.release()
    assert written == [[0], [1, 2, 3, 4]]
    assert sorted(done) == [0, 1, 2, 3, 4]


async def test_with_a_semaphore_several_run_at_once() -> None:
    """What comes when all of them run shares the next one."""
    begun, go_on = list[list[int]](), trio.Event()

    async def write(items: list[int]) -> None:
        begun.append(list(items))
        await go_on.wait()

    commits = GroupCommit(write, trio.Semaphore(2))
    async with trio.open_nursery() as nursery:
        for item in range(5):
            nursery.start_soon(commits.put, item)
            await trio.testing.wait_all_tasks_blocked()
        assert begun == [[0], [1]]
        go_on.set()
    assert begun == [[0], [1], [2, 3, 4]]


@pytest.mark.parametrize(
    ("failure", "kind"),
    [(DiskFullError("full"), DiskFullError), (ZeroDivisionError("a bug"), StorageError)],
)
async def test_a_failure_is_that_of_all(failure: Exception, kind: type[StorageError]) -> None:
    """Each gets an error of its own; the next write is not affected."""
    failures = list[StorageError]()
    is_broken = True

    async def write(items: list[int]) -> None:
        await trio.lowlevel.checkpoint()
        if is_broken:
            raise failure

    commits = GroupCommit(write)

    async def put(item: int) -> None:
        with pytest.raises(kind, match=str(failure)) as caught:
            await commits.put(item)
        failures.append(caught.value)

    async with trio.open_nursery() as nursery:
        for item in range(5):
            nursery.start_soon(put, item)
    assert len({id(error) for error in failures}) == 5
    is_broken = False
    await commits.put(9)


async def test_who_is_cancelled_does_not_take_others_along() -> None:
    """The one that writes for all finishes; one that waits leaves."""
    written, go_on = list[list[int]](), trio.Event()

    async def write(items: list[int]) -> None:
        await go_on.wait()
        written.append(list(items))

    commits = GroupCommit(write)
    async with trio.open_nursery() as nursery:
        scopes = [trio.CancelScope() for _ in range(4)]

        async def put(item: int) -> None:
            with scopes[item]:
                await commits.put(item)

        for item in range(4):
            nursery.start_soon(put, item)
            await trio.testing.wait_all_tasks_blocked()
        for scope in scopes[:3]:
            scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        go_on.set()
    assert written == [[0], [1, 2, 3]]
