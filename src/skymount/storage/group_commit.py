"""Does together what comes at the same time: many items for one sync of the disk, or one query."""

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import trio

from skymount.errors import StorageError

_Item = TypeVar("_Item")


class _Batch(Generic[_Item]):
    def __init__(self) -> None:
        self.items: list[_Item] = []
        self.failure: Exception | None = StorageError("it was not written")
        self.done = trio.Event()


class GroupCommit(Generic[_Item]):
    """Calls a function with all items that came while it ran the last time."""

    def __init__(
        self,
        write: Callable[[list[_Item]], Awaitable[None]],
        lock: trio.Lock | trio.Semaphore | None = None,
    ) -> None:
        """`write` is called with `lock` held, if other writers need it too. With a semaphore
        several calls may run at once.
        """
        self._write = write
        self._lock = lock or trio.Lock()
        self._next: _Batch[_Item] = _Batch()

    async def put(self, item: _Item) -> None:
        """Return once an item is written. What the function raises, all that came with it get."""
        batch = self._next
        batch.items.append(item)
        if len(batch.items) == 1:
            with trio.CancelScope(shield=True):  # others wait for it
                await self._commit(batch)
        else:
            await batch.done.wait()
        if batch.failure is not None:
            kind = type(batch.failure)
            known = kind if issubclass(kind, StorageError) else StorageError
            raise known(str(batch.failure)) from batch.failure

    async def _commit(self, batch: _Batch[_Item]) -> None:
        try:
            async with self._lock:
                self._next = _Batch()
                await self._write(batch.items)
            batch.failure = None
        except Exception as error:  # noqa: BLE001  # each of them raises it
            batch.failure = error
        finally:
            batch.done.set()
