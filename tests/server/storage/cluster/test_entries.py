"""The shared registry does what the one on a disk does, and what the codec's rule says."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skymount.errors import BadSignatureError, MalformedError, RevisionError
from skymount.server.storage.cluster.database import Database
from skymount.server.storage.cluster.entries import SharedEntries
from skymount.server.storage.cluster.migrations import Tables
from skymount.server.storage.disk_errors import StorageUnavailableError
from skymount.server.storage.entry_store import EntryStore
from skymount.server.storage.interfaces import Entries
from skymount.wire.registry_entry import MAX_REVISION, SignedEntry, check_update
from tests.server.registry_entries import OWNER, signed
from tests.server.storage.cluster.servers import Postgres

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.timeout(180)]

REVISIONS = st.sampled_from([0, 1, 2, 255, 256, (1 << 63) - 1, 1 << 63, MAX_REVISION])
UPDATES = st.lists(
    st.builds(signed, st.sampled_from("ab"), st.binary(max_size=2), REVISIONS), max_size=12
)


@pytest.fixture(scope="module")
def url(postgres: Postgres) -> str:
    return postgres.url(postgres.new_database())


@pytest.fixture(scope="module")
def database(url: str) -> Iterator[Database]:
    with closing(Database.open(url, Tables.UPDATE)) as opened:
        yield opened


async def verdict(store: Entries, update: SignedEntry) -> str:
    try:
        await store.update(update)
    except MalformedError as error:
        return str(error)
    return ""


async def listing(store: Entries) -> list[object]:
    """Return all that the store says of the owner."""
    found = [each for each in [await store.find(signed(key).id) for key in "abc"] if each]
    of_key = await store.entries_of(OWNER.public_key, b"", 10)
    second = await store.entries_of(OWNER.public_key, of_key[0].entry.tweak, 1) if of_key else []
    keys = await store.keys(b"", 10), await store.keys(OWNER.public_key, 10)
    return [found, of_key, second, *keys, await store.count()]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(updates=UPDATES)
def test_both_stores_decide_alike(
    database: Database, tmp_path_factory: pytest.TempPathFactory, updates: list[SignedEntry]
) -> None:
    """SP3: the same verdict on every update, and the same entries in the end."""
    database.write("empty it", lambda connection: connection.execute("DELETE FROM entries"))

    async def compare(directory: Path) -> None:
        shared, model = SharedEntries(database), dict[bytes, SignedEntry]()
        with closing(EntryStore.open(directory)) as local:
            for update in updates:
                stored = model.get(update.id)
                expected = ""
                try:
                    check_update(stored.entry if stored else None, update.entry)
                    model[update.id] = update
                except MalformedError as error:
                    expected = str(error)
                assert await verdict(local, update) == expected
                assert await verdict(shared, update) == expected
            assert await listing(shared) == await listing(local)

    trio.run(compare, tmp_path_factory.mktemp("entries"))


async def test_a_bad_signature_stores_nothing(database: Database) -> None:
    store = SharedEntries(database)
    good = signed("forged")
    with pytest.raises(BadSignatureError):
        await store.update(SignedEntry(good.public_key, good.entry, bytes(64)))
    assert await store.find(good.id) is None


async def test_updates_whose_connection_is_lost(
    database: Database, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """SP5: all of them fail, and the library says nothing more in the log."""
    store, failed = SharedEntries(database), list[str]()

    async def update(key: str) -> None:
        try:
            await store.update(signed(f"lost {key}"))
        except StorageUnavailableError:
            failed.append(key)

    with psycopg.connect(url, autocommit=True) as other, other.transaction():
        other.execute("LOCK TABLE entries IN EXCLUSIVE MODE")
        async with trio.open_nursery() as nursery:
            for key in "abcdefgh":
                nursery.start_soon(update, key)
            ended = 0
            with trio.fail_after(60):
                while len(failed) < 8:
                    await trio.sleep(0.05)
                    found = other.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_locks"
                        " WHERE NOT granted AND relation = 'entries'::regclass"
                    ).fetchall()
                    ended += len(found)
    assert ended
    assert sorted(failed) == list("abcdefgh")
    assert not [record.name for record in caplog.records if "psycopg" in record.name]


async def test_updates_at_the_same_time_share_transactions(database: Database) -> None:
    """SP3: also those of one entry; each gets its own verdict."""
    store, refused = SharedEntries(database), list[int]()

    async def update(key: str, revision: int) -> None:
        try:
            await store.update(signed(f"together {key}", b"data", revision))
        except RevisionError:
            refused.append(revision)

    async with trio.open_nursery() as nursery:
        for key in "abc":
            for revision in range(8):
                nursery.start_soon(update, key, revision)
    found = list[SignedEntry | None]()

    async def find(key: str) -> None:
        found.append(await store.find(signed(f"together {key}").id))

    async with trio.open_nursery() as nursery:
        for key in "abcd":
            nursery.start_soon(find, key)
    assert sorted(each.entry.revision if each else -1 for each in found) == [-1, 7, 7, 7]
    assert 7 not in refused
    ((transactions,),) = database.rows(
        "look",
        "SELECT count(DISTINCT xmin::text) FROM entries WHERE id = ANY(%s)",
        ([signed(f"together {key}").id for key in "abc"],),
    )
    assert transactions == 1
