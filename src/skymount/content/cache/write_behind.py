"""Disk reads in threads, and the queue of blocks that are written behind the reader's back.

Nobody waits for a write. The blocks themselves are `block_store`'s.
"""

import logging
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue

import trio

from skymount.concurrency import run_all
from skymount.content.cache.block_format import BlockKey
from skymount.content.cache.block_store import BlockStore
from skymount.wording import readable_size

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WriteBehindConfig:
    """Limits of the queue and its threads."""

    queue_limit: int = 64 << 20
    """Bytes that may be queued; most of them are in the memory cache anyway."""
    finish_timeout: float = 2.0
    """Seconds that the end of a mount waits for queued writes."""
    writers: int = 2
    """Threads; while one waits for the interpreter, the disk works for the other."""
    readers: int = 4
    """Threads; a disk is faster when it has several requests at once."""


_Item = tuple[BlockKey, bytes | memoryview | None]
"""A block to write; None instead of data: only note its use."""


@dataclass(frozen=True, slots=True)
class DiskCacheCounts:
    """Blocks since the mount began."""

    hits: int
    misses: int
    stored: int
    dropped: int
    """Not written: the queue or the disk was full, or the block too large."""
    damaged: int


class WriteBehindQueue:
    """Reads and writes blocks of a store. Made by `open_write_behind`, which runs its threads.

    The event loop and the writers have separate counters, so that the loop takes no lock.
    """

    def __init__(self, store: BlockStore, config: WriteBehindConfig) -> None:
        self._store = store
        self._config = config
        self._readers = trio.CapacityLimiter(config.readers)
        self._queue: SimpleQueue[_Item | None] = SimpleQueue()
        self._unwritten: dict[BlockKey, bytes | memoryview] = {}
        self._write_scope = trio.CancelScope(shield=True)
        self._is_closed = self._is_given_up = False
        self._hits = self._misses = self._refused = 0
        self._offered_bytes = 0
        self._writers = trio.CapacityLimiter(config.writers)
        self._counter_lock = threading.Lock()  # of the writers
        self._stored = self._not_stored = 0
        self._done_bytes = 0

    @property
    def counts(self) -> DiskCacheCounts:
        return DiskCacheCounts(
            hits=self._hits,
            misses=self._misses,
            stored=self._stored,
            dropped=self._refused + self._not_stored,
            damaged=self._store.damaged,
        )

    @property
    def queued_bytes(self) -> int:
        return self._offered_bytes - self._done_bytes

    async def read(self, keys: Sequence[BlockKey]) -> list[memoryview | None]:
        """Read blocks, many of them in several threads; None for each that is not there.

        Those that are still to be written are there, too.
        """
        queued = map(self._unwritten.get, keys)
        found = [None if data is None else memoryview(data).toreadonly() for data in queued]
        on_disk = [at for at, data in enumerate(found) if data is None]
        step = max(1, -(-len(on_disk) // self._config.readers))

        async def read_some(first: int) -> None:
            some = on_disk[first : first + step]
            read = partial(_read_all, self._store, [keys[at] for at in some])
            blocks = await trio.to_thread.run_sync(
                read, abandon_on_cancel=True, limiter=self._readers
            )
            for at, data in zip(some, blocks, strict=True):
                found[at] = data

        await run_all(*(partial(read_some, first) for first in range(0, len(on_disk), step)))
        hits = sum(block is not None for block in found)
        self._hits += hits
        self._misses += len(found) - hits
        return found

    def offer(self, key: BlockKey, data: bytes | memoryview) -> None:
        """Queue a block to be written; it is dropped when the queue is full. Never blocks.

        The bytes are not copied, and must not change any more.
        """
        if self._is_closed or self.queued_bytes + len(data) > self._config.queue_limit:
            self._refused += 1
            return
        self._offered_bytes += len(data)
        self._unwritten[key] = data
        self._queue.put((key, data))

    def touch(self, key: BlockKey) -> None:
        if not self._is_closed:
            self._queue.put((key, None))

    async def run(self) -> None:
        """Write what is queued until `finish`; its timeout holds also when this is cancelled.

        The writers are long-lived threads: a hop for each block would cost more than the block.
        """
        with self._write_scope:
            async with trio.open_nursery() as listing:
                listing.start_soon(self._make_room)
                async with trio.open_nursery() as nursery:
                    for _ in range(self._config.writers):
                        nursery.start_soon(self._run_writer)
                listing.cancel_scope.cancel()  # nobody waits for it
        if self._write_scope.cancelled_caught:
            self._is_given_up = True
            log.info("disk cache: %s not written in time", readable_size(self.queued_bytes))

    def finish(self) -> None:
        """Accept nothing more, and stop the writers when the queue is empty or time is up."""
        self._is_closed = True
        for _ in range(self._config.writers):
            self._queue.put(None)
        self._write_scope.deadline = trio.current_time() + self._config.finish_timeout

    async def _make_room(self) -> None:
        await trio.to_thread.run_sync(self._store.make_room, abandon_on_cancel=True)

    async def _run_writer(self) -> None:
        await trio.to_thread.run_sync(
            self._write_queued, abandon_on_cancel=True, limiter=self._writers
        )

    def _write_queued(self) -> None:
        while (item := self._queue.get()) is not None and not self._is_given_up:
            key, data = item
            if data is None:
                self._store.touch(key)
                continue
            try:
                is_stored = self._store.put(key, data)
            except Exception:  # a bug must not end the mount
                log.exception("%s: not kept on disk", key.skylink)
                is_stored = False
            with self._counter_lock:
                self._stored += is_stored
                self._not_stored += not is_stored
                self._done_bytes += len(data)
            self._unwritten.pop(key, None)
            del item, data  # do not hold the memory while the queue is empty
            if self._queue.empty():
                self._store.trim_buffers()


def _read_all(store: BlockStore, keys: Sequence[BlockKey]) -> list[memoryview | None]:
    return [store.get(key) for key in keys]


@asynccontextmanager
async def open_write_behind(
    store: BlockStore, config: WriteBehindConfig | None = None
) -> AsyncIterator[WriteBehindQueue]:
    """Run a queue; leaving the block waits a moment for queued writes."""
    queue = WriteBehindQueue(store, config or WriteBehindConfig())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(queue.run)
        try:
            yield queue
        finally:
            queue.finish()
