"""Blocks on their way to and from the disk: nobody waits for a write, and the end waits briefly."""

import logging
import threading
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from skymount.content.cache.block_format import BlockKey, file_name
from skymount.content.cache.block_store import BlockStore, BlockStoreConfig
from skymount.content.cache.buffer_pool import BufferPool
from skymount.content.cache.write_behind import (
    DiskCacheCounts,
    WriteBehindConfig,
    open_write_behind,
)

MIB = 1 << 20


def key(index: int) -> BlockKey:
    return BlockKey("a link", MIB, 1 << 40, index)


class HeldStore(BlockStore):
    """Reads and writes when it is let to."""

    def __init__(
        self,
        root: Path,
        size: int,
        buffers: BufferPool | None = None,
        config: BlockStoreConfig | None = None,
    ) -> None:
        super().__init__(root, size, buffers, config)
        self.entered = threading.Event()
        self.may_go = threading.Event()
        self.left = threading.Event()

    def get(self, key: BlockKey) -> memoryview | None:
        self.entered.set()
        assert self.may_go.wait(60)
        return super().get(key)

    def put(self, key: BlockKey, data: bytes | memoryview) -> bool:
        self.entered.set()
        assert self.may_go.wait(60)
        try:
            return super().put(key, data)
        finally:
            self.left.set()


async def until(event: threading.Event) -> None:
    """Wait for a thread."""
    assert await trio.to_thread.run_sync(event.wait, 60)


@pytest.fixture
def store(tmp_path: Path) -> BlockStore:
    return BlockStore.open(tmp_path, 64 * MIB)


@pytest.fixture
def held(tmp_path: Path) -> HeldStore:
    """An empty store that works when it is let to."""
    return HeldStore.open(tmp_path, 64 * MIB)


async def test_what_is_offered_is_there_after_the_end(store: BlockStore) -> None:
    """K1: what was read is kept, also when the mount ends."""
    async with open_write_behind(store) as queue:
        for index in range(20):
            queue.offer(key(index), bytes([index]) * 50_000)
    assert queue.counts == DiskCacheCounts(hits=0, misses=0, stored=20, dropped=0, damaged=0)
    assert queue.queued_bytes == 0
    async with open_write_behind(BlockStore.open(store.root.parent.parent, store.size)) as again:
        found = await again.read([key(19), key(20), *map(key, range(3))])
        assert [None if each is None else bytes(each[:1]) for each in found] == [
            *(b"\x13", None, b"\x00", b"\x01", b"\x02")
        ]
        assert again.counts == DiskCacheCounts(hits=4, misses=1, stored=0, dropped=0, damaged=0)


class ListedStore(HeldStore):
    """Is listed when it is let to."""

    def make_room(self) -> None:
        self.entered.set()
        assert self.may_go.wait(60)

    get, put = BlockStore.get, BlockStore.put


async def test_nobody_waits_for_the_list_of_blocks(tmp_path: Path) -> None:
    """K3: blocks are read and written while a thread lists them, as at the start of a mount, and
    the mount ends without it.
    """
    store = ListedStore.open(tmp_path, 64 * MIB)
    async with open_write_behind(store) as queue:
        await until(store.entered)
        for index in range(5):
            queue.offer(key(index), b"x")
        with trio.fail_after(60):
            while queue.queued_bytes:
                await trio.sleep(0.01)
        assert await queue.read([key(4)]) == [b"x"]
    store.may_go.set()


class MeetingStore(BlockStore):
    """Reads when three threads do so at once."""

    def get(self, key: BlockKey) -> memoryview | None:
        meeting.wait(60)
        return super().get(key)


meeting = threading.Barrier(3)


async def test_many_blocks_are_read_at_once(tmp_path: Path) -> None:
    """The blocks of one read are shared among the threads, and come back in order."""
    store = MeetingStore.open(tmp_path, 64 * MIB)
    for index in range(6):
        store.put(key(index), bytes([index]) * 1000)
    async with open_write_behind(store, WriteBehindConfig(readers=3)) as queue:
        found = await queue.read(list(map(key, range(6))))
        assert [bytes(each[:1]) for each in found if each is not None] == [
            bytes([index]) for index in range(6)
        ]


async def test_what_is_not_written_yet_can_be_read(held: HeldStore) -> None:
    """Another reader may want it before the disk has it."""
    async with open_write_behind(held) as queue:
        queue.offer(key(1), b"one")
        queue.offer(key(2), bytearray(b"two"))
        found = await queue.read([key(2), key(1)])
        assert [bytes(block) for block in found if block is not None] == [b"two", b"one"]
        assert queue.counts.hits == 2
        held.may_go.set()
        await until(held.left)


async def test_damage_is_counted(store: BlockStore) -> None:
    """K2: a damaged block is a miss."""
    store.put(key(0), bytes(1000))
    store.root.joinpath(*file_name(key(0).identity)).write_bytes(b"")
    async with open_write_behind(store) as queue:
        assert await queue.read([key(0)]) == [None]
        assert queue.counts == DiskCacheCounts(hits=0, misses=1, stored=0, dropped=0, damaged=1)


async def test_what_is_too_much_is_dropped(held: HeldStore) -> None:
    """K1: while the disk is slow the newest are dropped; nobody waits."""
    async with open_write_behind(held, WriteBehindConfig(queue_limit=10_000)) as queue:
        for index in range(5):
            queue.offer(key(index), bytes(3000))
        assert queue.queued_bytes == 9000
        assert queue.counts.dropped == 2
        queue.offer(key(5), bytes(1000))
        assert queue.queued_bytes == 10_000
        held.may_go.set()
    assert queue.counts == DiskCacheCounts(hits=0, misses=0, stored=4, dropped=2, damaged=0)
    assert [index for index in range(6) if held.get(key(index)) is not None] == [0, 1, 2, 5]


async def test_the_end_does_not_wait_for_a_disk_that_hangs(
    held: HeldStore, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """K1: two seconds; what was not written then is given up."""
    with caplog.at_level(logging.INFO):
        async with open_write_behind(held) as queue:
            queue.offer(key(0), bytes(3000))
            queue.offer(key(1), bytes(1500))
            queue.offer(key(2), bytes(500))
            await until(held.entered)
            before = trio.current_time()
        assert trio.current_time() - before == pytest.approx(2, abs=0.1)
    assert "4.9 KiB not written in time" in caplog.text
    held.may_go.set()
    await until(held.left)
    assert held.get(key(2)) is None


async def test_a_mount_that_is_told_to_stop_writes_as_well(store: BlockStore) -> None:
    """K1: what was read is kept when the mount ends, however it does."""
    with trio.CancelScope() as scope:
        async with open_write_behind(store) as queue:
            queue.offer(key(0), b"x")
            scope.cancel()
            await trio.sleep_forever()
    assert store.get(key(0)) == b"x"


async def test_nothing_is_taken_after_the_end(store: BlockStore) -> None:
    async with open_write_behind(store) as queue:
        pass
    queue.offer(key(0), b"x")
    assert queue.counts.dropped == 1


async def test_a_reader_that_goes_away_does_not_wait(held: HeldStore) -> None:
    """R2: nobody waits for a disk that hangs; who asks later gets the block."""
    held.may_go.set()
    held.put(key(0), b"x")
    held.may_go.clear()
    held.entered.clear()
    async with open_write_behind(held) as queue:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(queue.read, [key(0)])
            await until(held.entered)
            nursery.cancel_scope.cancel()
        assert queue.counts.hits == 0
        held.may_go.set()
        assert await queue.read([key(0)]) == [b"x"]


async def test_what_nobody_foresaw_ends_nothing(
    store: BlockStore, caplog: pytest.LogCaptureFixture
) -> None:
    """K4: a block that cannot be written for whatever reason costs that block."""
    async with open_write_behind(store) as queue:
        queue.offer(key(0), "no bytes")  # type: ignore[arg-type]
        queue.offer(key(1), b"bytes")
    assert "a link: not kept on disk" in caplog.text
    assert queue.counts == DiskCacheCounts(hits=0, misses=0, stored=1, dropped=1, damaged=0)
    assert store.get(key(1)) == b"bytes"
