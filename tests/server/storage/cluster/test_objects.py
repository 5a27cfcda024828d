"""Objects of a store that fails now and then, and lists of many pages."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from skymount.errors import StorageError
from skymount.server.config import ClusterSettings
from skymount.server.storage.cluster.objects import Objects
from skymount.server.storage.disk_errors import StorageUnavailableError
from tests.fakes.skyfiles import noise
from tests.server.storage.cluster.faulty_store import CUT, RESET, FaultyStore, faulty_store
from tests.server.storage.cluster.servers import BUCKET, CREDENTIALS

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.timeout(180)]

ATTEMPTS = 4


@pytest.fixture
def store(s3rver: str) -> Iterator[FaultyStore]:
    with faulty_store(s3rver) as made:
        yield made


@pytest.fixture
def objects(store: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> Objects:
    return objects_of(store, monkeypatch)


def objects_of(store: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> Objects:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    return Objects(ClusterSettings(BUCKET, "faulty", "", store.url))


@pytest.mark.parametrize("fault", [503, 429, RESET, CUT])
def test_requests_that_fail_at_first(fault: int, objects: Objects, store: FaultyStore) -> None:
    """SP5: they are repeated, and what they bring is right."""
    store.decide = lambda request: fault if store.requests[request] == 1 else 0
    large, small = noise(300_000), b"small"
    name = f"skyfiles/{fault}"
    objects.put(name, large)
    assert objects.get(name) == large
    objects.put(name, small)
    assert objects.get(name) == small
    assert objects.read(name, 1, 3) == b"mal"
    assert objects.exists(name)
    if fault != CUT:  # an error then: the library does not repeat it
        objects.delete([name])
        assert not objects.exists(name)
        assert objects.get(name) is None


@pytest.mark.parametrize("fault", [500, CUT])
def test_requests_that_always_fail(fault: int, objects: Objects, store: FaultyStore) -> None:
    """SP5: they are repeated a few times, and the error says that this may pass."""
    name = f"sectors/{fault}"
    objects.put(name, noise(1000))
    store.requests.clear()
    store.decide = lambda request: fault
    with pytest.raises(StorageUnavailableError, match="cannot read the object store"):
        objects.get(name)
    assert max(store.requests.values()) == ATTEMPTS


@pytest.mark.parametrize("status", [400, 403])
def test_requests_that_are_refused(status: int, objects: Objects, store: FaultyStore) -> None:
    """They are not repeated."""
    store.decide = lambda request: status
    with pytest.raises(StorageError, match=f"the store answers .*{status}"):
        objects.put("skyfiles/x", b"x")
    assert [*store.requests.values()] == [1]


def test_lists_of_many_pages(moto: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each name comes once, in order, and no page before it is needed."""
    with faulty_store(moto) as store:
        objects = objects_of(store, monkeypatch)
        names = [f"{number:03}" for number in range(200)]
        with ThreadPoolExecutor(8) as threads:
            [*threads.map(lambda name: objects.put(f"lists/{name}", b""), names)]
        store.page_size = 20
        store.decide = lambda request: 503 if store.requests[request] == 1 else 0
        assert [found.name for found in objects.list("lists")] == names
        store.decide = lambda request: 0
        store.requests.clear()
        listed = objects.list("lists")
        assert next(listed).name == "000"
        assert store.requests.total() < 10
        listed.close()
