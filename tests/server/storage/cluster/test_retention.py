"""Shared content: pins, removals and sweeps of several portals at once."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from skymount.errors import StorageError
from skymount.server.storage.cluster import skyfile_removal, skyfile_rows
from skymount.server.storage.cluster.catalogue import SharedCatalogue
from skymount.server.storage.cluster.content_store import SharedContent
from skymount.server.storage.cluster.database import Database
from skymount.server.storage.cluster.skyfile_object import skyfile_name
from skymount.server.storage.cluster.sweeper import sweep
from skymount.server.storage.retention.retention import Retention
from skymount.server.storage.retention.shared_pins import SharedPins
from skymount.wire.skylink import SECTOR_SIZE, Skylink
from tests.fakes.skyfiles import noise
from tests.server.http_client import Client, message_of
from tests.server.raw_connection import eventually
from tests.server.storage.cluster.conftest import StartPortal, opened_content
from tests.server.storage.cluster.servers import Shared
from tests.server.storage.stored import put

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.timeout(180)]

WAIT = 60.0  # seconds


@dataclass(frozen=True)
class Portal:
    """What decides at one of several portals."""

    content: SharedContent
    pins: SharedPins
    retention: Retention

    @classmethod
    def of(cls, content: SharedContent) -> "Portal":
        pins = SharedPins(content.database)
        catalogue = SharedCatalogue(content.database, content)
        return cls(content, pins, Retention(content, catalogue, pins))

    def has(self, link: Skylink) -> bool:
        """Whether the object is there; not what is in a cache."""
        return self.content.objects.get(skyfile_name(link)) is not None


@pytest.fixture
def one(content: SharedContent) -> Portal:
    return Portal.of(content)


@pytest.fixture
def two(shared: Shared) -> Iterator[Portal]:
    with opened_content(shared) as content:
        yield Portal.of(content)


async def test_a_pin_of_one_portal_holds_at_all(one: Portal, two: Portal) -> None:
    """RT7: neither a sweep nor a removal at another portal takes what is pinned."""
    links = [put(one.content, bytes([number])) for number in range(120)]
    assert await one.retention.pin(links[7], "why not")
    assert not await one.retention.pin(Skylink.v1(b"\7" * 32, 9)), "it is not there"
    assert (await two.retention.sweep(time.time() - 3600)).skyfiles == 0
    assert await two.retention.remove(links[7]) == "pinned"
    assert not two.content.remove(links[7]), "the store itself refuses"
    swept = await two.retention.sweep(time.time() + 1)
    assert swept.skyfiles == 119
    assert swept.bytes > 119
    assert [link for link in links if one.has(link)] == [links[7]]
    (pin,) = two.pins.all()
    assert (pin.skylink, pin.reason) == (links[7], "why not")
    assert await one.retention.unpin(links[7])
    assert not await two.retention.unpin(links[7])
    assert await two.retention.pin(links[7], "again")
    assert await one.retention.remove(links[7], even_pinned=True) == "removed"
    assert await two.retention.remove(links[7]) == "absent"
    assert not list(two.pins.all())
    assert skyfile_rows.totals(one.content.database) == (0, 0)


def test_what_is_uploaded_again_is_not_swept(one: Portal, two: Portal) -> None:
    """RT7: whichever comes first, as long as the upload is newer than what the sweep may take."""
    payload = noise(SECTOR_SIZE + 5)
    link = put(one.content, payload)
    with ThreadPoolExecutor(1) as thread:
        for delay in range(12):
            limit = time.time()
            removing = thread.submit(two.content.remove, link, limit)
            time.sleep(delay / 1000)
            assert put(one.content, payload) == link
            removing.result(WAIT)
            assert one.has(link)
            assert skyfile_rows.find(one.content.database, link)


async def test_clocks_that_are_wrong(
    one: Portal, two: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RT7: neither a portal that stores nor one that sweeps loses anything by its clock."""
    now, year = time.time(), 365 * 86400.0
    for wrong in (now - year, now + year):
        monkeypatch.setattr(time, "time", lambda wrong=wrong: wrong)
        link = put(one.content, b"x")
        row = skyfile_rows.find(one.content.database, link)
        assert row is not None
        assert abs(row.stored - now) < 3600
        assert (await two.retention.sweep(time.time() - 7200)).skyfiles == 0
        sweep(two.content)
        assert (await two.retention.sweep(time.time() + 7200)).skyfiles == 1


def begin_removal(
    portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> tuple[threading.Event, threading.Event]:
    """Have removals tell that they have begun, and wait before they remove the object."""
    begun, go_on = threading.Event(), threading.Event()
    delete = portal.content.objects.delete

    def wait(names: list[str]) -> None:
        begun.set()
        assert go_on.wait(WAIT)
        delete(names)

    monkeypatch.setattr(portal.content.objects, "delete", wait)
    return begun, go_on


def test_an_upload_waits_for_a_removal(
    one: Portal, two: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RT7: then it stores all of it again. A pin finds nothing."""
    link = put(one.content, b"x")
    begun, go_on = begin_removal(two, monkeypatch)
    with ThreadPoolExecutor(3) as threads:
        removing = threads.submit(two.content.remove, link)
        assert begun.wait(WAIT)
        pinning = threads.submit(one.pins.pin, link)
        time.sleep(0.05)
        putting = threads.submit(put, one.content, b"x")
        time.sleep(0.2)
        assert not pinning.done()
        assert not putting.done()
        go_on.set()
        assert removing.result(WAIT)
        assert pinning.result(WAIT) is one.pins.is_pinned(link)
        assert putting.result(WAIT) == link
    assert one.has(link)
    assert skyfile_rows.find(one.content.database, link)


def test_a_removal_that_broke_off(
    one: Portal, two: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RT7: its request may still arrive, so nobody stores it before the lease has ended."""
    link, other = put(one.content, b"x"), put(one.content, b"y")

    def fail(_: list[str]) -> None:
        raise StorageError("not now")

    with monkeypatch.context() as failing:
        failing.setattr(two.content.objects, "delete", fail)
        with pytest.raises(StorageError, match="not now"):
            two.content.remove(link)
        absent = Skylink.v1(b"\7" * 32, 9)
        assert not two.content.remove(absent), "no removal is begun"
    with pytest.raises(StorageError, match="upload it again in five minutes"):
        put(one.content, b"x")
    with pytest.raises(StorageError, match="being removed already"):
        one.content.remove(link)
    with pytest.raises(StorageError, match="pin it in five minutes"):
        one.pins.pin(link)
    assert not one.pins.is_pinned(link)
    assert put(one.content, b"y") == other
    assert skyfile_rows.find(one.content.database, link)
    one.content.database.write(
        "end the lease",
        lambda connection: connection.execute("UPDATE removals SET until = clock_timestamp()"),
    )
    assert put(one.content, b"x") == link
    assert one.pins.pin(link)
    assert one.pins.unpin(link)
    assert two.content.remove(link)
    assert put(one.content, b"x") == link


def test_a_removal_in_the_middle_of_an_upload(
    one: Portal, two: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RT7: the upload stores all of it again, so what it acknowledges can be listed and pinned."""
    link = put(one.content, b"x")
    store, removed = one.content.objects.put, list[bool]()

    def remove_before(name: str, data: bytes) -> None:
        if not removed:
            removed.append(two.content.remove(link))
        store(name, data)

    monkeypatch.setattr(one.content.objects, "put", remove_before)
    assert put(one.content, b"x") == link
    assert removed == [True]
    assert one.has(link)
    assert skyfile_rows.find(one.content.database, link)
    assert one.pins.pin(link)


def test_a_removal_of_what_is_not_there(
    one: Portal, two: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RT7: it removes nothing, as another portal may store and pin the same at that moment."""
    link = put(one.content, b"x")
    assert one.content.remove(link)
    exists, deleted = two.content.objects.exists, list[str]()
    monkeypatch.setattr(two.content.objects, "delete", deleted.extend)
    assert not two.content.remove(link)

    def store_then(name: str) -> bool:
        was_here = exists(name)
        put(one.content, b"x")
        assert one.pins.pin(link)
        return was_here

    monkeypatch.setattr(two.content.objects, "exists", store_then)
    assert not two.content.remove(link)
    assert not deleted


def test_a_removal_whose_lock_was_lost(
    one: Portal, two: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RT7: what was uploaded since stays. The database closed the connection, as in a restart."""
    link = put(one.content, b"x")
    begin = skyfile_removal._begin

    def begin_late(database: Database, name: str) -> None:
        ended = """
SELECT pg_terminate_backend(pid) FROM pg_locks JOIN pg_database ON pg_database.oid = database
WHERE relation = 'skyfiles'::regclass AND mode = 'RowShareLock' AND datname = current_database()
"""
        one.content.database.rows("end the connection", ended)
        assert put(one.content, b"x") == link
        begin(database, name)

    monkeypatch.setattr(skyfile_removal, "_begin", begin_late)
    with pytest.raises(StorageError):
        two.content.remove(link)
    assert one.has(link)


def test_what_is_pinned_meanwhile_is_not_swept(one: Portal, two: Portal) -> None:
    """RT7: a pin that was acknowledged holds; else there was nothing to pin."""
    with ThreadPoolExecutor(1) as thread:
        for delay in range(12):
            link = put(one.content, bytes([delay]))
            removing = thread.submit(two.content.remove, link, time.time() + 1)
            time.sleep(delay / 1000)
            is_pinned = one.pins.pin(link)
            assert removing.result(WAIT) is not is_pinned
            assert one.has(link) is is_pinned


def test_old_content_leaves_running_portals(shared: Shared, start: StartPortal) -> None:
    """RT1, RT7: `--keep` with `--store`; one of the portals sweeps for both."""
    with (
        start(shared, "--keep", "2s") as first,
        start(shared, "--keep", "2s") as second,
        Client(base_url=first.url, timeout=60) as client,
        Client(base_url=second.url, timeout=60) as other,
    ):
        kept = client.upload_file("kept", b"kept")

        def pin() -> int:  # it may be swept before, on a busy machine
            assert client.upload_file("kept", b"kept") == kept
            return other.post(f"/svc/pin/{kept}").status_code

        eventually(lambda: pin() == 204)
        gone = client.upload_file("gone", b"gone")
        with opened_content(shared) as content:
            eventually(lambda: [str(link) for link in content.skylinks()] == [kept])
        eventually(lambda: other.get("/svc/stats").json()["numfiles"] == 1)
        assert client.get(f"/{kept}").content == b"kept"
        assert client.upload_file("gone", b"gone") == gone


def test_the_limit_holds_for_all_portals(shared: Shared, start: StartPortal) -> None:
    """RT8: what one stores leaves less room at the others; what is removed gives it back."""
    limit = ("--max-storage", "10M")
    plain = {"Content-Type": "text/plain"}
    with (
        start(shared, *limit) as first,
        start(shared, *limit) as second,
        Client(base_url=first.url, timeout=60) as client,
        Client(base_url=second.url, timeout=60) as other,
    ):
        link = client.upload_file("a", bytes(9 << 20))
        refused = other.post("/svc/skyfile?filename=b", content=bytes(2 << 20), headers=plain)
        assert refused.status_code == 507, refused.text
        assert "at most 10 MiB" in message_of(refused)
        assert other.get("/svc/stats").json()["numfiles"] <= 1
        other.upload_file("c", bytes(1 << 10))
        with opened_content(shared) as content:
            content.remove(Skylink(link))
        eventually(
            lambda: (
                other.post(
                    "/svc/skyfile?filename=b", content=bytes(2 << 20), headers=plain
                ).status_code
                == 200
            )
        )
