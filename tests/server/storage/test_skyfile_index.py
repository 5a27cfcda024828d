"""What is stored is found by skylink and by root; what is damaged does not hide the rest."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from skymount.errors import StorageError
from skymount.server.http_error import HttpError
from skymount.server.storage.catalogue_rows import NewSkyfile
from skymount.server.storage.local_catalogue import LocalCatalogue
from skymount.server.storage.skyfile_index import SkyfileIndex
from skymount.server.storage.skyfile_store import SkyfileStore
from skymount.server.storage.skykey_store import SkykeyStore
from skymount.server.storage.stored_range import fetch_range, read_range
from skymount.wire import merkle
from skymount.wire.skylink import SECTOR_SIZE, Skylink
from tests.server.storage.stored import METADATA, damage, put, remove_by_hand

ABSENT = Skylink.v1(b"\7" * 32, 4096)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SkyfileStore]:
    opened = SkyfileStore.open(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def catalogue(tmp_path: Path, store: SkyfileStore) -> Iterator[LocalCatalogue]:
    opened = LocalCatalogue.open(tmp_path, store)
    yield opened
    opened.close()


@pytest.fixture
def index(tmp_path: Path, store: SkyfileStore, catalogue: LocalCatalogue) -> SkyfileIndex:
    return SkyfileIndex(store, catalogue, SkykeyStore.open(tmp_path), header_limit=len(METADATA))


async def test_skyfile(store: SkyfileStore, index: SkyfileIndex) -> None:
    """It comes with its metadata, which is kept: it is read once."""
    link = put(store, b"hi")
    found = await index.load(link)
    assert (found.raw, found.header) == (METADATA, METADATA)
    assert found.metadata.filename == "a"
    assert read_range(found.stored.payload) == b"hi"
    assert await index.load(link) is found


async def test_small_skyfiles_are_kept_in_memory(
    tmp_path: Path, store: SkyfileStore, index: SkyfileIndex
) -> None:
    """They are read once; larger ones are read each time."""
    small, large = put(store, b"hi"), put(store, bytes(100_000))
    assert (await index.find(small)).payload.is_in_memory
    assert not (await index.find(large)).payload.is_in_memory
    for link in (small, large):
        remove_by_hand(tmp_path, link)
    assert await fetch_range((await index.find(small)).payload) == b"hi"
    with pytest.raises(HttpError, match="root not found"):
        await index.find(large)


async def test_what_others_may_remove_is_in_memory_for_a_time(
    tmp_path: Path,
    store: SkyfileStore,
    catalogue: LocalCatalogue,
    index: SkyfileIndex,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RT7: where several processes share a store."""
    monkeypatch.setattr(store, "memory_time", 0.05)
    shared = SkyfileIndex(store, catalogue, SkykeyStore.open(tmp_path), 1000)
    link = put(store, b"hi")
    for each in (index, shared):
        assert (await each.load(link)).raw == METADATA
    store.remove(link)
    await trio.sleep(0.1)
    assert (await index.load(link)).raw == METADATA, "on one disk, the portal itself removes"
    with pytest.raises(HttpError, match="root not found"):
        await shared.load(link)


async def test_metadata_that_is_too_long_for_a_header(
    store: SkyfileStore, index: SkyfileIndex
) -> None:
    """It is known all the same, and left out of the header."""
    longer = METADATA.replace(b'"a"', b'"ab"')
    found = await index.load(put(store, b"hi", longer))
    assert (found.raw, found.header) == (longer, None)


async def test_what_was_replaced_is_read_again(
    tmp_path: Path, store: SkyfileStore, index: SkyfileIndex
) -> None:
    """Also if it was being read meanwhile."""
    link = put(store, b"hi")
    damage(tmp_path, link, lambda base: base[:-1] + b"o")
    assert await fetch_range((await index.load(link)).stored.payload) == b"ho"
    damage(tmp_path, link, lambda base: base[:-1] + b"i")
    index.forget(link)
    assert await fetch_range((await index.load(link)).stored.payload) == b"hi"
    index.forget(link)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(index.load, link)
        await trio.testing.wait_all_tasks_blocked()
        index.forget(link)
    remove_by_hand(tmp_path, link)
    with pytest.raises(HttpError):
        await index.load(link)


async def test_what_is_not_there(index: SkyfileIndex, catalogue: LocalCatalogue) -> None:
    """It is a 404, whatever it is asked for by."""
    await catalogue.repair()
    for asked in (index.find(ABSENT), index.load(ABSENT), index.sector(ABSENT.root)):
        with pytest.raises(HttpError, match="root not found") as refused:
            await asked
        assert refused.value.status == 404


async def test_sectors(store: SkyfileStore, catalogue: LocalCatalogue, index: SkyfileIndex) -> None:
    """Those that were there at the start, and those that are added later."""
    content = b"z" * (SECTOR_SIZE + 5)
    first = put(store, content)
    await catalogue.repair()
    assert read_range(await index.sector(merkle.sector_root(content[:SECTOR_SIZE])))
    second = put(store, b"second")
    with pytest.raises(HttpError):
        await index.sector(second.root)
    await catalogue.add(NewSkyfile(second, "a", 0, 6, False, is_small=True))
    third = put(store, b"y" + content)
    await catalogue.add(NewSkyfile(third, "a", 0, len(content) + 1, False, is_small=False))
    assert read_range(await index.sector(merkle.sector_root((b"y" + content)[:SECTOR_SIZE])))
    for link in (first, second, third):
        assert merkle.sector_root(read_range(await index.sector(link.root))) == link.root


async def test_a_sector_is_asked_for_while_the_catalogue_is_made(
    store: SkyfileStore, catalogue: LocalCatalogue, index: SkyfileIndex
) -> None:
    """The answer waits until it is known: 404 would be wrong."""
    link = put(store, b"hi")
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def ask() -> None:
            assert read_range(await index.sector(link.root))

        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(catalogue.repair)


async def test_totals_follow_what_is_added(
    store: SkyfileStore, catalogue: LocalCatalogue, index: SkyfileIndex
) -> None:
    """The number of skyfiles and their bytes, each counted once."""
    await catalogue.repair()
    assert index.totals() == (0, 0)
    link = put(store, b"hi")
    for _ in range(2):
        await catalogue.add(NewSkyfile(link, "a", 0, 2, False, is_small=True))
        assert index.totals() == (1, 99 + len(METADATA) + 2)


async def test_damaged_skyfile(
    tmp_path: Path,
    store: SkyfileStore,
    catalogue: LocalCatalogue,
    index: SkyfileIndex,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is found damaged, with a word in the log; the others are found."""
    bad, good = put(store, b"bad"), put(store, b"good")
    damage(tmp_path, bad, lambda _: b"\x09" * 200)
    await catalogue.repair()
    assert merkle.sector_root(read_range(await index.sector(good.root))) == good.root
    assert f"skyfile {bad} is damaged" in caplog.text
    with pytest.raises(StorageError):
        await index.load(bad)
    with pytest.raises(StorageError):
        await index.sector(bad.root)


async def test_metadata_that_is_none(store: SkyfileStore, index: SkyfileIndex) -> None:
    """What another program stored is an error of the store, not of who asks."""
    link = put(store, b"hi", b"no metadata")
    with pytest.raises(StorageError, match=f"{link} is damaged"):
        await index.load(link)
