"""The catalogue: complete after a clean end, repaired after any other, made anew when damaged."""

import os
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from skymount.errors import StorageError
from skymount.server.storage.catalogue_database import CatalogueDatabase
from skymount.server.storage.catalogue_mark import MARK_FILE
from skymount.server.storage.catalogue_rows import CatalogueRow, NewSkyfile, Recorded
from skymount.server.storage.local_catalogue import CATALOGUE_FILE, LocalCatalogue
from skymount.server.storage.skyfile_store import SkyfileStore
from skymount.server.storage.stored_skyfile import StoredSkyfile
from skymount.storage import sqlite
from skymount.wire.skylink import Skylink
from tests.portal_process import portal_process
from tests.server.http_client import Client, message_of
from tests.server.pages.page_client import listed_names, page
from tests.server.raw_connection import eventually
from tests.server.storage.stored import (
    IN_FILES,
    damage,
    directory_of,
    remove_by_hand,
    set_time,
)


@pytest.fixture(params=[0, IN_FILES], ids=["small", "in files"])
def size(request: pytest.FixtureRequest) -> int:
    """The size of the first file that a portal has stored."""
    found: int = request.param
    return found


@pytest.fixture
def links(tmp_path: Path, size: int) -> list[str]:
    """What a portal has stored in `tmp_path`, the oldest first."""
    with portal_process(tmp_path) as portal, Client(base_url=portal.url) as client:
        uploaded = [client.upload_file(f"file {at}", bytes(size + at)) for at in range(4)]
    trio.run(listed, tmp_path)  # until it is complete
    return uploaded


def remove_catalogue(data: Path) -> None:
    for file in (data / "v1").glob(f"{CATALOGUE_FILE}*"):
        file.unlink()


def end_uncleanly(data: Path) -> None:
    """As a portal that was killed."""
    (data / "v1" / MARK_FILE).unlink()


@contextmanager
def opened(data: Path, store_type: type[SkyfileStore] = SkyfileStore) -> Iterator[LocalCatalogue]:
    store = store_type.open(data)
    try:
        found = LocalCatalogue.open(data, store)
        try:
            yield found
        finally:
            found.close()
    finally:
        store.close()


async def listed(data: Path) -> list[tuple[str, str, int]]:
    """Return the list after it was repaired."""
    with opened(data) as found:
        await found.repair()
        page = await found.page("", 0, 100)
        assert page.is_complete
        assert page.unread == 0
        return [(str(row.skylink), row.name, row.size) for row in page.rows]


async def test_what_the_list_lacks_is_read(tmp_path: Path, links: list[str], size: int) -> None:
    """B2: with its time; so is everything if there is no list."""
    before = await listed(tmp_path)
    assert [link for link, _, _ in before] == links[::-1]
    remove_catalogue(tmp_path)
    for at, link in enumerate(links):
        set_time(tmp_path, link, at)
    assert await listed(tmp_path) == before
    assert before[0] == (links[3], "file 3", size + 3)


async def test_what_is_gone_is_dropped(tmp_path: Path, links: list[str]) -> None:
    """B2: a skyfile that was removed while no portal ran."""
    remove_by_hand(tmp_path, links[1])
    end_uncleanly(tmp_path)
    assert [link for link, _, _ in await listed(tmp_path)] == [links[3], links[2], links[0]]


async def test_a_damaged_list_is_made_anew(
    tmp_path: Path, links: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """B2: nothing is lost with it."""
    remove_catalogue(tmp_path)
    (tmp_path / "v1" / CATALOGUE_FILE).write_bytes(b"no database" * 1000)
    assert sorted(link for link, _, _ in await listed(tmp_path)) == sorted(links)
    assert "made anew" in caplog.text


async def test_a_damaged_skyfile_is_listed_without_its_name(
    tmp_path: Path, links: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """B2: the others are listed as ever."""
    remove_catalogue(tmp_path)
    damage(tmp_path, links[2], lambda base: base[:99] + b"{broken")
    found = {link: name for link, name, _ in await listed(tmp_path)}
    assert found == {links[0]: "file 0", links[1]: "file 1", links[2]: "", links[3]: "file 3"}
    assert links[2] in caplog.text


@pytest.mark.parametrize("place", [1, 9, 17], ids=["filesize", "metadata", "fanout"])
def test_a_damaged_layout_does_not_end_the_portal(
    tmp_path: Path, links: list[str], place: int
) -> None:
    """B2: sizes beyond those of files; it starts and lists the others. This one is a 500."""
    remove_catalogue(tmp_path)
    number = struct.pack("<Q", (1 << 64) - 1)
    damage(tmp_path, links[1], lambda base: base[:place] + number + base[place + 8 :])
    with portal_process(tmp_path) as portal, Client(base_url=portal.url, timeout=60) as client:
        expected = ["No name", "file 0", "file 2", "file 3"]
        eventually(lambda: sorted(listed_names(page(client, "/"))) == expected)
        answer = client.get(f"/{links[1]}")
        assert answer.status_code == 500
        assert "damaged" in message_of(answer)


class _BrokenStore(SkyfileStore):
    """Fails in a way that nobody foresaw."""

    def find(self, skylink: Skylink) -> StoredSkyfile | None:
        raise ZeroDivisionError(skylink)


async def test_a_bug_while_it_is_repaired_is_logged(
    tmp_path: Path, links: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """B2: a list for display never ends the portal, whatever goes wrong."""
    remove_catalogue(tmp_path)
    with opened(tmp_path, _BrokenStore) as found:
        with trio.move_on_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(found.repair)
                while "not complete" not in caplog.text:
                    await trio.sleep(0.01)
                nursery.cancel_scope.cancel()
        assert (await found.page("", 0, 9)).unread == len(links)
        await found.add(NewSkyfile(Skylink(links[0]), "a", 0, 1, False, is_small=False))
    assert "is missing in the catalogue" in caplog.text


class _StoreThatFailsOnce(SkyfileStore):
    has_failed = False

    def find(self, skylink: Skylink) -> StoredSkyfile | None:
        if not self.has_failed:
            self.has_failed = True
            raise ZeroDivisionError(skylink)
        return super().find(skylink)


async def test_a_repair_that_failed_is_tried_again(
    tmp_path: Path, links: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """B2: one attempt says that it failed."""
    remove_catalogue(tmp_path)
    with opened(tmp_path, _StoreThatFailsOnce) as found:
        assert not await found.repair()
        assert await found.repair()
        page = await found.page("", 0, 9)
    assert "not complete" in caplog.text
    assert (len(page.rows), page.unread) == (len(links), 0)


async def test_a_list_with_a_damaged_page_is_made_anew(
    tmp_path: Path, links: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """B2: not only one whose beginning is damaged."""
    path = tmp_path / "v1" / CATALOGUE_FILE
    with closing(sqlite3.connect(path)) as database, database:
        rows = [(b"%34d" % number, "name" * 25) for number in range(2000)]
        database.executemany(
            "INSERT INTO skyfiles (skylink, name, folded, size, disk, files, is_encrypted, stored)"
            " VALUES (?, ?, 'name', 0, 0, 0, 0, 0)",
            rows,
        )
    end_uncleanly(tmp_path)
    with open(path, "r+b") as file:
        file.seek(4096 * 5)
        file.write(b"damaged!" * 512 * 20)
    assert sorted(link for link, _, _ in await listed(tmp_path)) == sorted(links)
    assert "made anew" in caplog.text


async def test_a_list_from_which_nothing_can_be_removed_is_shown(
    tmp_path: Path, links: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """B2: as on a full disk."""
    with closing(sqlite3.connect(tmp_path / "v1" / CATALOGUE_FILE)) as database:
        database.execute(
            "CREATE TRIGGER full BEFORE DELETE ON skyfiles"
            " BEGIN SELECT RAISE(FAIL, 'database or disk is full'); END"
        )
    remove_by_hand(tmp_path, links[1])
    end_uncleanly(tmp_path)
    with opened(tmp_path) as found:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(found.repair)
            with trio.fail_after(60):
                while "disk is full" not in caplog.text:
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        page = await found.page("", 0, 9)
    assert [str(row.skylink) for row in page.rows] == links[::-1]
    assert not page.is_complete
    assert not (tmp_path / "v1" / MARK_FILE).exists()


def test_a_list_that_cannot_be_read_is_a_note(tmp_path: Path) -> None:
    """B2: the rest of the page is as ever, and uploads are stored."""
    with portal_process(tmp_path) as portal, Client(base_url=portal.url) as client:
        with closing(sqlite3.connect(tmp_path / "v1" / CATALOGUE_FILE)) as database:
            database.execute("DROP TABLE skyfiles")
        link = client.upload_file("a", b"x")
        assert client.get(f"/{link}").content == b"x"
        shown = page(client, f"/?stored={link}").text
        assert "The list cannot be read" in shown
        assert f"skymount download {link}" in shown


@pytest.mark.parametrize("size", [IN_FILES], indirect=True)
async def test_after_a_clean_end_nothing_is_walked(tmp_path: Path, links: list[str]) -> None:
    """B2: it is complete at once, but for the directories that were changed meanwhile."""
    disk = sum((directory_of(tmp_path, link) / "base").stat().st_size for link in links)
    with opened(tmp_path) as found:
        assert found.is_complete
        assert found.totals() == (4, disk)
    remove_by_hand(tmp_path, links[1])
    with opened(tmp_path) as found:
        assert not found.is_complete
        await found.repair()
        assert found.is_complete
        assert found.totals()[0] == 3


async def test_another_database_of_small_skyfiles_is_compared(tmp_path: Path) -> None:
    """B2: as after an older backup of it was put back."""
    with portal_process(tmp_path) as portal, Client(base_url=portal.url) as client:
        link = client.upload_file("a", b"x")
    await listed(tmp_path)  # until it is complete
    older = (tmp_path / "v1/small.sqlite3").read_bytes()
    with portal_process(tmp_path) as portal, Client(base_url=portal.url) as client:
        client.upload_file("b", b"y")
    with opened(tmp_path) as found:
        assert found.is_complete
        assert found.totals()[0] == 2
    (tmp_path / "v1/small.sqlite3").write_bytes(older)
    assert [name for name, _, _ in await listed(tmp_path)] == [link]


async def test_after_a_kill_everything_is_compared(tmp_path: Path) -> None:
    """B2: what was acknowledged is there, and nothing is twice."""
    with portal_process(tmp_path) as portal, Client(base_url=portal.url) as client:
        link = client.upload_file("a", b"x")
        portal.process.kill()
        portal.process.wait()
    assert not (tmp_path / "v1" / MARK_FILE).exists()
    with opened(tmp_path) as found:
        assert not found.is_complete
        assert await found.find(Skylink(link))
        await found.repair()
        assert found.totals()[0] == 1


async def test_a_mark_of_another_catalogue_does_not_count(tmp_path: Path, links: list[str]) -> None:
    """B2: as after a backup was put back in part."""
    with closing(sqlite3.connect(tmp_path / "v1" / CATALOGUE_FILE)) as database, database:
        database.execute("DELETE FROM skyfiles WHERE name = 'file 2'")
    assert sorted(link for link, _, _ in await listed(tmp_path)) == sorted(links)


async def test_a_portal_starts_without_a_catalogue(
    tmp_path: Path, links: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """B2: where it cannot be made, as on a full disk; it is made once that is possible."""
    remove_catalogue(tmp_path)
    (tmp_path / "v1" / f"{CATALOGUE_FILE}.new").mkdir()
    with opened(tmp_path) as found:
        assert "runs without its catalogue" in caplog.text
        with pytest.raises(StorageError):
            found.totals()
        (tmp_path / "v1" / f"{CATALOGUE_FILE}.new").rmdir()
        await found.repair()
        assert found.totals()[0] == len(links)


class _UnreadableStore(SkyfileStore):
    """Its directories cannot be read, as on a disk that fails."""

    def shard_times(self) -> list[int]:
        raise StorageError("cannot list stored content")


async def test_a_catalogue_that_cannot_be_compared_is_closed(
    tmp_path: Path, links: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """B2: nothing of it stays open until it is tried again, and then all is compared."""

    def open_files() -> list[str]:
        found = list[str]()
        for name in os.listdir("/proc/self/fd"):
            with suppress(FileNotFoundError):  # it was closed meanwhile
                found.append(os.readlink(f"/proc/self/fd/{name}"))
        return [file for file in found if str(tmp_path / "v1" / CATALOGUE_FILE) in file]

    with opened(tmp_path, _UnreadableStore):
        assert "runs without its catalogue" in caplog.text
        assert open_files() == []
        assert not (tmp_path / "v1" / MARK_FILE).exists()
    with opened(tmp_path):
        assert open_files()


async def test_what_could_not_be_recorded_is_read_later(
    tmp_path: Path, links: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """B2: an upload is stored whether the catalogue takes it or not."""
    with opened(tmp_path) as found:
        found.note_missing(Skylink(links[0]).root[0])
        assert not found.is_complete
        await found.repair()
        assert found.is_complete


async def test_names_are_searched_within_their_bound(tmp_path: Path) -> None:
    """B2: beyond what is shown, up to 4,096 characters."""
    name = "a" * 4000 + "Needle" + "b" * 100 + "beyond"
    with portal_process(tmp_path) as portal, Client(base_url=portal.url) as client:
        link = client.upload_file(name, b"x")
        client.upload_file("other", b"x")
    with opened(tmp_path) as found:
        assert [str(row.skylink) for row in (await found.page("nEEDLE", 0, 9)).rows] == [link]
        assert (await found.page("beyond", 0, 9)).total == 0


def test_uploads_during_the_check_are_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B2: here one comes before each statement of the check."""
    connections = list[sqlite3.Connection]()
    connect = sqlite.connect

    def recorded(*args: Any, **options: Any) -> sqlite3.Connection:
        connections.append(connect(*args, **options))
        return connections[-1]

    monkeypatch.setattr(sqlite, "connect", recorded)
    numbers = count()

    def upload(_: str) -> None:
        skylink = Skylink.v1(b"%32d" % next(numbers), 100)
        row = CatalogueRow(skylink, "a", 1, 1, 0, is_encrypted=False, stored=1.0)
        database.put([Recorded(row, [])])

    with closing(CatalogueDatabase.open(tmp_path / CATALOGUE_FILE)) as database:
        connections[-2].set_trace_callback(upload)  # of the one that searches and checks
        assert database.problem() == ""
        assert database.totals[0] > 3


async def test_maintenance_goes_on_after_a_failure_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """By itself; one that did not is not."""
    store = SkyfileStore.open(tmp_path)
    catalogue = LocalCatalogue.open(tmp_path, store)
    results, tried = [False, False, True], list[float]()

    async def repair() -> bool:
        tried.append(trio.current_time())
        return results.pop(0)

    with closing(store), closing(catalogue):
        monkeypatch.setattr(catalogue, "repair", repair)
        with trio.move_on_after(24 * 3600):
            await catalogue.maintain()
    assert len(tried) == 3
    assert tried[-1] < 3600
