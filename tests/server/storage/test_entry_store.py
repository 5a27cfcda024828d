"""The store of registry entries: what it keeps, refuses, survives."""

import itertools
import os
import resource
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from skymount.errors import BadSignatureError, RevisionError, StorageError
from skymount.server.storage.entry_store import ENTRIES_FILE, EntryStore, peek_entries
from skymount.storage import sqlite
from skymount.wire.registry_entry import MAX_REVISION, Entry, SignedEntry, entry_id
from tests.server.registry_entries import OWNER, signed


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Connection]:
    """The connections that stores open from now on, the writing one of a store first."""
    opened: list[sqlite3.Connection] = []
    connect = sqlite.connect

    def recorded(*args: Any, **options: Any) -> sqlite3.Connection:
        opened.append(connect(*args, **options))
        return opened[-1]

    monkeypatch.setattr(sqlite, "connect", recorded)
    return opened


@pytest.fixture
async def entries(
    tmp_path: Path, connections: list[sqlite3.Connection]
) -> AsyncIterator[EntryStore]:
    with closing(EntryStore.open(tmp_path)) as opened:
        yield opened


@contextmanager
def _database(directory: Path) -> Iterator[sqlite3.Connection]:
    """The file itself, past the store."""
    with closing(sqlite3.connect(directory / ENTRIES_FILE)) as connection, connection:
        yield connection


async def test_an_entry_is_found_by_its_id(entries: EntryStore) -> None:
    """Nothing else is."""
    entry = signed("a", b"\0\xff", 7)
    assert await entries.find(entry.id) is None
    await entries.update(entry)
    assert await entries.find(entry_id(OWNER.public_key, entry.entry.tweak)) == entry
    assert await entries.find(signed("b").id) is None
    assert await entries.find(entry_id(bytes(32), entry.entry.tweak)) is None


async def test_an_entry_that_is_read_again_is_in_memory(
    tmp_path: Path, entries: EntryStore
) -> None:
    """Until an update replaces it."""
    for revision in (1, 2):
        await entries.update(signed("a", b"x", revision))
        assert await entries.find(signed("a").id) == signed("a", b"x", revision)
    with _database(tmp_path) as database:
        database.execute("DELETE FROM entries")
    assert await entries.find(signed("a").id) == signed("a", b"x", 2)


async def test_an_entry_that_is_replaced_while_it_is_read(entries: EntryStore) -> None:
    """The old one is not kept in memory, whichever comes first."""
    for revision in range(20):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(entries.find, signed("a").id)
            nursery.start_soon(entries.update, signed("a", b"x", revision))
            for _ in range(3):
                nursery.start_soon(entries.find, signed("a").id)
        assert await entries.find(signed("a").id) == signed("a", b"x", revision)


async def test_a_higher_revision_replaces_and_a_lower_one_does_not(entries: EntryStore) -> None:
    """Up to the highest of 64 bits, which nothing replaces."""
    for revision in (5, 6, 2**63, MAX_REVISION):
        await entries.update(signed("a", b"x", revision))
        with pytest.raises(RevisionError, match="provided revision number is invalid"):
            await entries.update(signed("a", b"y", revision - 1))
    with pytest.raises(RevisionError):
        await entries.update(signed("a", b"x", MAX_REVISION))
    found = await entries.find(signed("a").id)
    assert found is not None
    assert found.entry == signed("a", b"x", MAX_REVISION).entry


async def test_of_one_revision_the_lower_hash_stays(entries: EntryStore) -> None:
    """Whichever comes first; the same once more is refused."""
    low, high = sorted((signed("a", b"x"), signed("a", b"y")), key=lambda one: one.entry.work)
    await entries.update(high)
    await entries.update(low)
    for late in (low, high):
        with pytest.raises(RevisionError, match="provided revision number is already registered"):
            await entries.update(late)
    assert await entries.find(low.id) == low


async def test_a_bad_signature_stores_nothing(entries: EntryStore) -> None:
    """Whatever the revision."""
    good = signed("a")
    forged = SignedEntry(good.public_key, Entry(good.entry.tweak, b"other", 1), good.signature)
    with pytest.raises(BadSignatureError):
        await entries.update(forged)
    assert await entries.find(good.id) is None
    assert await entries.count() == 0


async def test_writers_of_one_entry_have_one_order(entries: EntryStore) -> None:
    """Of many at once the highest revision stays, and those below the winner may be refused."""
    refused: list[int] = []

    async def write(revision: int) -> None:
        try:
            await entries.update(signed("a", b"%d" % revision, revision))
        except RevisionError:
            refused.append(revision)

    async with trio.open_nursery() as nursery:
        for revision in range(40):
            nursery.start_soon(write, revision)
    found = await entries.find(signed("a").id)
    assert found is not None
    assert found.entry.revision == 39
    assert 39 not in refused
    assert await entries.count() == 1


async def test_a_refused_update_does_not_hinder_others(entries: EntryStore) -> None:
    """Those that wait for the disk together have an outcome each."""
    await entries.update(signed("held", b"x", 9))
    outcomes: dict[str, str] = {}

    async def write(key: str, revision: int) -> None:
        try:
            await entries.update(signed(key, b"new", revision))
            outcomes[key] = "stored"
        except RevisionError:
            outcomes[key] = "refused"

    async with trio.open_nursery() as nursery:
        for key, revision in (("first", 0), ("held", 8), ("last", 0)):
            nursery.start_soon(write, key, revision)
    assert outcomes == {"first": "stored", "held": "refused", "last": "stored"}
    assert await entries.count() == 3


async def test_an_update_given_up_does_not_hinder_others(entries: EntryStore) -> None:
    """A client that goes away while others wait with it."""
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            scope.cancel()
            await entries.update(signed("given up"))
        for key in "abc":
            nursery.start_soon(entries.update, signed(key))
    for key in "abc":
        assert await entries.find(signed(key).id) == signed(key)


async def test_entries_outlive_the_store(tmp_path: Path) -> None:
    """They are there when it is opened again."""
    for number in range(3):
        with closing(EntryStore.open(tmp_path)) as entries:
            assert await entries.count() == number
            await entries.update(signed(str(number)))
            assert await entries.count() == number + 1
            assert await entries.find(signed("0").id) == signed("0")
    assert [path.name for path in tmp_path.iterdir()] == [ENTRIES_FILE]


async def test_a_copy_taken_while_it_runs_has_what_was_answered(
    tmp_path: Path, entries: EntryStore
) -> None:
    """As after a crash: what is on disk is the database and its log."""
    keys = [str(number) for number in range(50)]
    async with trio.open_nursery() as nursery:
        for key in keys:
            nursery.start_soon(entries.update, signed(key))
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    for suffix in ("", "-wal"):
        (crashed / f"{ENTRIES_FILE}{suffix}").write_bytes(
            (tmp_path / f"{ENTRIES_FILE}{suffix}").read_bytes()
        )
    with closing(EntryStore.open(crashed)) as found:
        for key in keys:
            assert await found.find(signed(key).id) == signed(key)


async def test_a_commit_waits_for_the_disk(
    entries: EntryStore, connections: list[sqlite3.Connection]
) -> None:
    """Each commit syncs the log, or a power cut could lose an acknowledged entry."""
    settings = [
        connections[0].execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("journal_mode", "synchronous")
    ]
    assert settings == ["wal", 2]


async def test_its_files_are_private(tmp_path: Path, entries: EntryStore) -> None:
    """Those that SQLite adds as well."""
    await entries.update(signed("a"))
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {
        ENTRIES_FILE: 0o600,
        f"{ENTRIES_FILE}-wal": 0o600,
        f"{ENTRIES_FILE}-shm": 0o600,
    }


async def test_a_full_disk_stores_nothing_and_passes(
    entries: EntryStore, connections: list[sqlite3.Connection]
) -> None:
    """All that waited together fail, and all can be stored once there is room."""
    await entries.update(signed("before"))
    (pages,) = connections[0].execute("PRAGMA page_count").fetchone()
    keys = [str(number) for number in range(40)]
    failed: dict[str, str] = {}

    async def write(key: str) -> None:
        try:
            await entries.update(signed(key, b"x" * 113))
        except StorageError as error:
            failed[key] = str(error)

    for limit in (pages, 1_000_000):
        connections[0].execute(f"PRAGMA max_page_count = {limit}")
        count = await entries.count()
        failed.clear()
        async with trio.open_nursery() as nursery:
            for key in keys:
                nursery.start_soon(write, key)
        assert await entries.count() == count + len(keys) - len(failed)
        for key in keys:
            assert (await entries.find(signed(key).id) is None) == (key in failed)
        assert bool(failed) == (limit == pages)
        reasons = set(failed.values())
        assert reasons <= {"cannot write to the registry: database or disk is full"}
        keys = list(failed)
    assert await entries.find(signed("before").id) == signed("before")


async def test_damage_is_an_error_and_not_absence(tmp_path: Path, entries: EntryStore) -> None:
    """A row that makes no entry does not hinder others."""
    for key in "ab":
        await entries.update(signed(key))
    with _database(tmp_path) as database:
        database.execute("UPDATE entries SET kind = 7 WHERE id = ?", (signed("a").id,))
    with pytest.raises(StorageError, match="stored registry entry is damaged"):
        await entries.find(signed("a").id)
    with pytest.raises(StorageError, match="stored registry entry is damaged"):
        await entries.update(signed("a", b"x", 1))
    await entries.update(signed("b", b"x", 1))


@pytest.mark.parametrize("content", [b"no database" * 1000, None])
def test_what_is_no_database_is_refused(tmp_path: Path, content: bytes | None) -> None:
    """A foreign file or a directory in its place."""
    if content is None:
        (tmp_path / ENTRIES_FILE).mkdir()
    else:
        (tmp_path / ENTRIES_FILE).write_bytes(content)
    with pytest.raises(StorageError, match="cannot use the registry") as caught:
        EntryStore.open(tmp_path)
    assert not _open_below(tmp_path), caught


def test_nothing_stays_open_of_what_fails(tmp_path: Path) -> None:
    """However far it came: here each descriptor in turn is one too many."""
    EntryStore.open(tmp_path).close()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    failures = []
    for room in range(1024):
        resource.setrlimit(resource.RLIMIT_NOFILE, (room, limits[1]))
        try:
            EntryStore.open(tmp_path).close()
            break
        except StorageError as error:
            failures.append(error)  # with its frames and all that they hold
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert not _open_below(tmp_path)
    assert len({str(error) for error in failures}) > 1


async def test_counting_does_not_hold_up_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first count reads the whole table; entries are found meanwhile."""
    counting, go_on = threading.Event(), threading.Event()
    connect = sqlite.connect

    def traced(*args: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*args, **options)

        def trace(statement: str) -> None:
            if "count(*)" in statement:
                counting.set()
                go_on.wait(60)

        connection.set_trace_callback(trace)
        return connection

    monkeypatch.setattr(sqlite, "connect", traced)
    with closing(EntryStore.open(tmp_path)) as entries:
        await entries.update(signed("a"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(entries.count)
            await trio.to_thread.run_sync(counting.wait)
            try:
                with trio.fail_after(5):
                    assert await entries.find(signed("a").id) == signed("a")
            finally:
                go_on.set()
        assert await entries.count() == 1


def _open_below(directory: Path) -> list[str]:
    """Return the files in a directory that this process has open."""
    paths = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    files = [os.readlink(path) for path in paths if os.path.lexists(path)]
    return [file for file in files if file.startswith(f"{directory}/")]


@pytest.mark.parametrize("version", [1, 3])
def test_another_version_is_refused(tmp_path: Path, version: int) -> None:
    """RT9: a later or an earlier skymount has written it."""
    EntryStore.open(tmp_path).close()
    with _database(tmp_path) as database:
        database.execute(f"PRAGMA user_version = {version}")
    with pytest.raises(
        StorageError, match=rf"{ENTRIES_FILE}: it is of version {version}; .*export"
    ):
        EntryStore.open(tmp_path)
    with pytest.raises(StorageError, match=rf"{ENTRIES_FILE}: it is of version {version}, "):
        list(peek_entries(tmp_path))


async def test_reads_go_on_while_another_program_looks_into_the_file(
    tmp_path: Path, entries: EntryStore
) -> None:
    """A backup does not stop the portal."""
    await entries.update(signed("a"))
    with _database(tmp_path) as database:
        database.execute("BEGIN")
        assert database.execute("SELECT count(*) FROM entries").fetchone() == (1,)
        for revision in itertools.islice(itertools.count(1), 5):
            await entries.update(signed("a", b"x", revision))
        assert await entries.find(signed("a").id) == signed("a", b"x", 5)
