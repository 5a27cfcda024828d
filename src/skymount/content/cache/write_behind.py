"""Owns the way between the event loop and the blocks on disk: reads in threads, and a queue of what
is to be written, which nobody ever waits for. What a block is, and where it lies, is `diskstore`'s.
"""

import logging
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue

import trio

from skymount.content.cache.block_format import BlockKey
from skymount.content.cache.block_store import BlockStore

log = logging.getLogger(__name__)

QUEUED = 64 << 20
"""Bytes that may wait to be written; most of them are in the memory cache all the same."""

FINISH = 2.0
"""Seconds that the end of a mount waits for what is still to be written."""

_WRITERS = 2  # threads; while one waits for its turn to run, the disk works for the other
_READERS = 2  # threads; the disk and the memory bus gain nothing from more

_Item = tuple[BlockKey, bytes | memoryview | None]
"""What is to be written; None: it is only used."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of blocks since the mount began."""

    hits: int
    misses: int
    stored: int
    dropped: int
    """Not written: the queue or the disk was full, or a block too large."""
    damaged: int


class WriteBehindQueue:
    """Reads and writes the blocks of a store. Made by `open_keeper`, which owns its threads.

    The loop and the writing threads count apart, so that the loop never waits for them.
    """

    def __init__(self, store: BlockStore) -> None:
        self._store = store
        self._readers = trio.CapacityLimiter(_READERS)
        self._queue: SimpleQueue[_Item | None] = SimpleQueue()
        self._writing = trio.CancelScope(shield=True)
        self._is_closed = self._is_given_up = False
        self._hits = self._misses = self._refused = 0
        self._offered_bytes = 0
        self._writers = trio.CapacityLimiter(_WRITERS)
        self._counting = threading.Lock()  # held by the writing threads
        self._stored = self._not_stored = 0
        self._done_bytes = 0

    @property
    def counts(self) -> Counts:
        """What became of blocks so far."""
        return Counts(
            hits=self._hits,
            misses=self._misses,
            stored=self._stored,
            dropped=self._refused + self._not_stored,
            damaged=self._store.damaged,
        )

    @property
    def waiting(self) -> int:
        """Bytes that are still to be written."""
        return self._offered_bytes - self._done_bytes

    async def fetch(self, keys: Sequence[BlockKey]) -> list[memoryview | None]:
        """Read blocks in one thread; None for those that are not there."""
        found = await trio.to_thread.run_sync(
            partial(_get_all, self._store, keys), abandon_on_cancel=True, limiter=self._readers
        )
        hits = sum(block is not None for block in found)
        self._hits += hits
        self._misses += len(found) - hits
        return found

    def offer(self, key: BlockKey, data: bytes | memoryview) -> None:
        """Have a block written at some time; it is dropped when too much waits. Never blocks.

        The bytes are not copied, and must not change any more.
        """
        if self._is_closed or self.waiting + len(data) > QUEUED:
            self._refused += 1
            return
        self._offered_bytes += len(data)
        self._queue.put((key, data))

    def touch(self, key: BlockKey) -> None:
        """Have it noted that a block is used. Never blocks."""
        if not self._is_closed:
            self._queue.put((key, None))

    async def write(self) -> None:
        """Write what is offered until `finish`, whose time limit holds when all else is cancelled.

        Threads of its own do it: a hop for each block would cost more than the block.
        """
        with self._writing:
            async with trio.open_nursery() as nursery:
                for _ in range(_WRITERS):
                    nursery.start_soon(self._write_in_thread)
        if self._writing.cancelled_caught:
            self._is_given_up = True
            log.info("the cache on disk: %d bytes were not written in time", self.waiting)

    def finish(self) -> None:
        """Take nothing more, and have the rest written for a moment."""
        self._is_closed = True
        for _ in range(_WRITERS):
            self._queue.put(None)
        self._writing.deadline = trio.current_time() + FINISH

    async def _write_in_thread(self) -> None:
        await trio.to_thread.run_sync(
            self._write_out, abandon_on_cancel=True, limiter=self._writers
        )

    def _write_out(self) -> None:
        while (item := self._queue.get()) is not None and not self._is_given_up:
            key, data = item
            if data is None:
                self._store.touch(key)
                continue
            try:
                is_stored = self._store.put(key, data)
            except Exception:
                # Nobody foresaw it, but it must not end the mount.
                log.exception("%s: not kept on disk", key.skylink)
                is_stored = False
            with self._counting:
                self._stored += is_stored
                self._not_stored += not is_stored
                self._done_bytes += len(data)
            del item, data  # the memory is not held while the queue is empty
            if self._queue.empty():
                self._store.rest()


def _get_all(store: BlockStore, keys: Sequence[BlockKey]) -> list[memoryview | None]:
    return [store.get(key) for key in keys]


@asynccontextmanager
async def open_keeper(store: BlockStore) -> AsyncIterator[WriteBehindQueue]:
    """Make a keeper; what it was offered is written when the block is left, or given up."""
    keeper = WriteBehindQueue(store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keeper.write)
        try:
            yield keeper
        finally:
            keeper.finish()
