"""The database and the object store are away, or accept requests and do not answer them."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import httpx
import pytest

from skymount.server.storage.cluster.objects import WAITING
from skymount.wire.skylink import SECTOR_SIZE
from tests.fakes.skyfiles import noise
from tests.portal_process import PortalProcess
from tests.server.http_client import Client, message_of
from tests.server.raw_connection import eventually
from tests.server.registry_entries import get, post, put, signed
from tests.server.storage.cluster.conftest import StartPortal
from tests.server.storage.cluster.load import Load
from tests.server.storage.cluster.servers import Postgres, S3rver, Shared, frozen

pytestmark = [pytest.mark.xdist_group("outages"), pytest.mark.timeout(240)]

_AWAY = 6.0  # seconds; longer than a pool of connections tries to connect again
_BOUND = 60.0  # seconds for an answer about what does not answer: half of it, and a busy machine
_FORM = {"Content-Type": "text/plain"}


@pytest.fixture
def store(tmp_path: Path, s3rver: str) -> Iterator[S3rver]:
    """An object store of its own; `s3rver` is what skips the test without it."""
    directory = tmp_path / "store"
    directory.mkdir()
    server = S3rver(directory)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def connected(url: str) -> Client:
    return Client(base_url=url, timeout=_BOUND)


def test_a_database_that_restarts(shared: Shared, start: StartPortal) -> None:
    """SP5: as its administrator restarts it, as after a crash, and away for longer."""
    server = shared.postgres

    def outage() -> None:
        server.stop(signal.SIGINT)
        server.start()
        server.stop()
        time.sleep(_AWAY)
        server.start()

    with start(shared) as one, start(shared) as two:
        load = Load(lambda: [one.url, two.url], two.url, frozenset({503}))
        load.assert_recovers(outage, one.url)


def test_an_object_store_that_restarts(
    store: S3rver, postgres: Postgres, start: StartPortal, tmp_path: Path
) -> None:
    """SP5: what needs it is 503, or cut off; the registry goes on."""
    shared = Shared.new(store.url, postgres, tmp_path)

    def outage() -> None:
        store.stop()
        before = dict(load.revisions)
        time.sleep(_AWAY)
        eventually(lambda: all(load.revisions[key] > before[key] for key in before))
        store.start()

    with start(shared) as one, start(shared) as two:
        load = Load(lambda: [one.url, two.url], two.url, frozenset({503}), may_break=True)
        load.assert_recovers(outage, one.url)


def upload(client: Client, size: int = 1000) -> httpx.Response:
    return client.post("/svc/skyfile?filename=x", content=noise(size), headers=_FORM)


Answers = list[httpx.Response | None]


def in_threads(
    count: int, ask: Callable[[int], httpx.Response | None]
) -> tuple[Answers, list[threading.Thread]]:
    """Ask so many times at once; return the answers, which come later, and the threads."""
    answers: Answers = []
    threads = [
        threading.Thread(target=lambda number=number: answers.append(ask(number)))
        for number in range(count)
    ]
    for thread in threads:
        thread.start()
    return answers, threads


def threads_of(portal: PortalProcess) -> int:
    return len([*Path(f"/proc/{portal.process.pid}/task").iterdir()])


def test_an_object_store_that_does_not_answer(
    store: S3rver, postgres: Postgres, start: StartPortal, tmp_path: Path
) -> None:
    """SP5: 503 after a while for what needs it; all else goes on; SIGTERM ends the portal."""
    shared = Shared.new(store.url, postgres, tmp_path)
    with start(shared) as portal, connected(portal.url) as client:
        known = client.upload_file("known", b"known")
        assert client.get(f"/{known}").content == b"known"
        with frozen(store.process):
            answers, threads = in_threads(70, partial(ask_store, portal))
            time.sleep(1)  # they all wait
            assert client.get(f"/{known}").content == b"known"
            put(client, signed("meanwhile"))
            assert get(client, "meanwhile") is not None
            for path in ("/svc/stats", "/svc/skykeys", "/-/assets/style.css", "/svc/blocklist"):
                assert client.get(path).status_code == 200, path
            assert client.get("/", headers={"Accept": "text/html"}).status_code == 200
            assert not answers, "none of these had to wait for the store"
            assert threads_of(portal) < WAITING
            for thread in threads:
                thread.join()
            assert {answer.status_code for answer in answers if answer} == {503}
            assert len(answers) == 70
            assert {message_of(answer).partition(": ")[2] for answer in answers if answer} == {
                "it cannot be reached"
            }
        eventually(lambda: client.get(f"/AA{0:044}").status_code == 404)
        eventually(lambda: upload(client).status_code == 200)
        with frozen(store.process):
            assert_ends(portal, in_threads(4, partial(ask_store, portal))[1])


def ask_store(portal: PortalProcess, number: int) -> httpx.Response | None:
    """Ask for what only the object store knows; None if the connection ends."""
    with connected(portal.url) as client, suppress(httpx.TransportError):
        if number % 8:
            return client.get(f"/AA{number:044}")
        return upload(client, SECTOR_SIZE * 2 if number % 16 else 1000)
    return None


def assert_ends(portal: PortalProcess, waiting: list[threading.Thread]) -> None:
    """SP5: SIGTERM ends it, whatever its requests wait for."""
    time.sleep(1)
    began = time.monotonic()
    portal.process.terminate()
    assert portal.process.wait(_BOUND) == 0
    assert time.monotonic() - began < 20
    for thread in waiting:
        thread.join()


def test_a_database_that_does_not_answer(shared: Shared, start: StartPortal) -> None:
    """SP5: 503 after a while for what needs it; what is stored is served; then all works again."""
    with start(shared) as portal, connected(portal.url) as client:
        small = client.upload_file("small", b"small")
        large = client.upload_file("large", noise(2 * SECTOR_SIZE))
        put(client, signed("held", b"1", 1))
        with frozen(shared.postgres.process):
            answers, threads = in_threads(60, partial(ask_database, portal))
            time.sleep(1)
            assert client.get(f"/{small}").content == b"small"
            assert client.get(f"/{large}").content == noise(2 * SECTOR_SIZE)
            assert len(answers) < 60, "none of these had to wait for the database"
            for thread in threads:
                thread.join()
            assert {answer.status_code for answer in answers if answer} == {503}
            assert len(answers) == 60
            assert "database" in message_of(upload(client))
        eventually(lambda: upload(client).status_code == 200)
        put(client, signed("held", b"3", 1000))
        with frozen(shared.postgres.process):
            assert_ends(portal, in_threads(4, partial(ask_database, portal))[1])


def ask_database(portal: PortalProcess, number: int) -> httpx.Response | None:
    """Ask for what needs the database; None if the connection ends."""
    with connected(portal.url) as client, suppress(httpx.TransportError):
        if number % 3 == 0:
            return upload(client)
        if number % 3 == 1:
            return post(client, signed("held", b"2", number))
        return client.get("/svc/skykeys")
    return None
