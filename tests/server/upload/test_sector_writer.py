"""An upload as it is cut into sectors: the skylink is that of the network, in whatever pieces."""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trio
import trio.testing

from skymount.errors import StorageError
from skymount.server.http_error import HttpError
from skymount.server.storage.local.skyfile_files import LocalUpload
from skymount.server.storage.skyfile_store import SkyfileStore
from skymount.server.storage.stored_range import read_range
from skymount.server.upload.sector_writer import PART_SIZE, UploadLimits, open_sector_writer
from skymount.wire import merkle
from skymount.wire.base_sector import build_fanned_out, build_inline
from skymount.wire.skylink import SECTOR_SIZE, Skylink
from tests.fakes.skyfiles import noise
from tests.server.http_client import stored_files

METADATA = b'{"filename":"f"}'


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SkyfileStore]:
    opened = SkyfileStore.open(tmp_path)
    yield opened
    opened.close()


async def written(store: SkyfileStore, content: bytes, piece: int, *, keep: bool = True) -> Skylink:
    """Write content in pieces of so many bytes; return its skylink."""
    limits = UploadLimits()
    async with open_sector_writer(store, limits, keep=keep) as writer:
        for at in range(0, len(content), piece):
            await writer.write(content[at : at + piece])
        assert writer.size == len(content)
        built, skylink = await writer.build(METADATA)
        if keep:
            await writer.publish(built, skylink)
        return skylink


def skylink_of(content: bytes) -> Skylink:
    """Return the skylink that every portal issues."""
    if len(content) < SECTOR_SIZE:
        base = build_inline(METADATA, content)
    else:
        places = range(0, len(content), SECTOR_SIZE)
        roots = [merkle.sector_root(content[at : at + SECTOR_SIZE]) for at in places]
        base, _ = build_fanned_out(len(content), b"".join(roots), METADATA)
    return Skylink.v1(merkle.sector_root(base), len(base))


@pytest.mark.parametrize(
    ("size", "piece"),
    [
        (0, 1),
        (1000, 7),
        (2 * PART_SIZE, PART_SIZE),
        (3 * PART_SIZE + 5, 700_000),
        (SECTOR_SIZE, 100_000),
        (SECTOR_SIZE + 1, SECTOR_SIZE),
        (3 * SECTOR_SIZE, 2 * SECTOR_SIZE + 5),
    ],
)
async def test_content_is_stored(store: SkyfileStore, size: int, piece: int) -> None:
    """Small or large, in pieces of any size: it has its skylink, and is there whole."""
    content = noise(size)
    link = await written(store, content, piece)
    assert link == skylink_of(content)
    found = store.find(link)
    assert found is not None
    assert read_range(found.payload) == content
    assert read_range(found.metadata) == METADATA


async def test_only_what_is_short_is_hashed_on_the_loop(
    store: SkyfileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metadata counts: a directory of many empty files has nothing else."""
    threads = list[int]()
    sector_root = merkle.sector_root

    def recorded(data: bytes) -> bytes:
        threads.append(threading.get_ident())
        return sector_root(data)

    monkeypatch.setattr(merkle, "sector_root", recorded)
    for metadata in (METADATA, b'{"filename":"%s"}' % (b"f" * 70_000)):
        async with open_sector_writer(store, UploadLimits(), keep=False) as writer:
            await writer.build(metadata)
    assert [one == threading.get_ident() for one in threads] == [True, False]


@pytest.mark.parametrize("fails", [False, True])
async def test_few_are_whole_in_memory(store: SkyfileStore, fails: bool) -> None:
    """Skyfiles of up to 4 MiB that wait for the disk; each makes room in the end."""
    limits = UploadLimits(whole=trio.Semaphore(1))
    with suppress(ZeroDivisionError):
        async with open_sector_writer(store, limits, keep=True) as writer:
            await writer.write(noise(2 * PART_SIZE))
            built, skylink = await writer.build(METADATA)
            assert limits.whole.value == 0
            if fails:
                raise ZeroDivisionError
            await writer.publish(built, skylink)
    assert limits.whole.value == 1


@pytest.mark.parametrize("size", [1000, SECTOR_SIZE + 1])
async def test_dry_run(tmp_path: Path, store: SkyfileStore, size: int) -> None:
    """The skylink is the same, and nothing is written."""
    before = stored_files(tmp_path)
    assert await written(store, noise(size), 1 << 20, keep=False) == skylink_of(noise(size))
    assert stored_files(tmp_path) == before


@pytest.mark.parametrize("size", [1000, 2 * SECTOR_SIZE])
async def test_upload_that_is_broken_off(tmp_path: Path, store: SkyfileStore, size: int) -> None:
    """Without its end nothing of it is kept, whatever ended it."""
    before = stored_files(tmp_path)

    async def broken_off(error: Exception) -> None:
        async with open_sector_writer(store, UploadLimits(), keep=True) as writer:
            await writer.write(noise(size))
            raise error

    for error in (StorageError("full"), RuntimeError("a bug")):
        with pytest.raises(type(error)):
            await broken_off(error)
        assert stored_files(tmp_path) == before


async def test_disk_that_fails(tmp_path: Path, store: SkyfileStore) -> None:
    """It is one error of ours, not a group of what failed at the same time."""
    (tmp_path / "v1" / "incoming").rmdir()
    with pytest.raises(StorageError):
        await written(store, noise(3 * SECTOR_SIZE), SECTOR_SIZE)


class Held(LocalUpload):
    """An upload to a store that takes its time: it has whole sectors until it is told to go on."""

    def __init__(self, store: SkyfileStore, held: list[Callable[[], None]]) -> None:
        super().__init__(store)
        self._held = held

    def put_sector(
        self,
        index: int,
        root: bytes,
        sector: bytes | bytearray,
        stored: Callable[[], None] | None = None,
    ) -> None:
        assert stored is not None
        self._held.append(stored)


@pytest.fixture
def held(store: SkyfileStore, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Have the store hold sectors; what is called when each is stored."""
    found: list[Callable[[], None]] = []
    monkeypatch.setattr(store, "begin_in_parts", lambda: None)
    monkeypatch.setattr(store, "begin", lambda: Held(store, found))
    return found


async def test_sectors_in_memory(store: SkyfileStore, held: list[Callable[[], None]]) -> None:
    """Those of all uploads are bounded until they are stored; others wait, and small ones not."""
    limits = UploadLimits(sectors=trio.Semaphore(2))
    received = dict.fromkeys(range(3), 0)

    async def upload(number: int) -> None:
        async with open_sector_writer(store, limits, keep=True) as writer:
            for _ in range(12):
                await writer.write(noise(SECTOR_SIZE // 4))
                received[number] += SECTOR_SIZE // 4

    async with trio.open_nursery() as nursery:
        for number in received:
            nursery.start_soon(upload, number)
        for count in range(1, 10):
            with trio.fail_after(30):
                while len(held) < min(count + 1, 9):
                    await trio.sleep(0.01)
            await trio.testing.wait_all_tasks_blocked()
            assert sum(received.values()) <= (count + 1) * SECTOR_SIZE
            async with open_sector_writer(store, limits, keep=True) as small:
                await small.write(b"small")
            held[count - 1]()
    assert sum(received.values()) == 9 * SECTOR_SIZE
    with trio.fail_after(30):
        while limits.sectors.value < 2:
            await trio.sleep(0.01)


@pytest.mark.parametrize("ends", ["broken off", "as a small one", "as a large one"])
async def test_room_for_sectors_is_given_back(store: SkyfileStore, ends: str) -> None:
    """However the upload ends, and where nothing is kept."""
    limits = UploadLimits()
    count = limits.sectors.value
    size = SECTOR_SIZE // 2 if ends == "as a small one" else SECTOR_SIZE * 5 // 2
    with suppress(ZeroDivisionError):
        async with open_sector_writer(store, limits, keep=False) as writer:
            await writer.write(noise(size))
            assert limits.sectors.value < count
            if ends == "broken off":
                raise ZeroDivisionError
            await writer.build(METADATA)
    assert limits.sectors.value == count


async def test_a_slow_client_that_keeps_others_waiting(store: SkyfileStore) -> None:
    """It is dropped when its sector has not filled in time. Alone it may be as slow as it likes."""
    limits = UploadLimits(sectors=trio.Semaphore(1), fill_time=0.0)

    async def upload(pieces: int) -> None:
        async with open_sector_writer(store, limits, keep=False) as writer:
            for _ in range(pieces):
                await writer.write(noise(PART_SIZE))
                await trio.sleep(0.01)

    await upload(3)
    async with (
        trio.open_nursery() as nursery,
        open_sector_writer(store, limits, keep=False) as slow,
    ):
        await slow.write(noise(PART_SIZE))
        nursery.start_soon(upload, 3)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(HttpError) as refused:
            await slow.write(b"more")
        assert refused.value.status == 408
    assert limits.sectors.value == 1
