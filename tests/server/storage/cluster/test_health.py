"""Health of portals on shared storage, whose database or object store is away or silent."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.portal_process import PortalProcess
from tests.server.raw_connection import eventually
from tests.server.storage.cluster.conftest import StartPortal
from tests.server.storage.cluster.servers import Postgres, S3rver, Shared, frozen

pytestmark = [pytest.mark.xdist_group("outages"), pytest.mark.timeout(240)]

_BAD = (503, "what is stored cannot be read\n")


def health(portal: PortalProcess, query: str = "") -> tuple[int, str]:
    answer = httpx.get(f"{portal.url}/-/health{query}")
    return answer.status_code, answer.text


def is_well(portal: PortalProcess) -> bool:
    return health(portal, "?ready") == (200, "ready\n")


def backends(postgres: Postgres, database: str) -> int:
    asked = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{database}'"
    return int(postgres.execute("postgres", asked))


def test_a_database_that_is_away_or_silent(shared: Shared, start: StartPortal) -> None:
    """H2: 503 at once when it is away; well again without a restart. Many cost one connection."""
    server = shared.postgres
    with start(shared) as portal, ThreadPoolExecutor(50) as asking:
        eventually(lambda: is_well(portal))
        before = backends(server, shared.database)
        list(asking.map(lambda _: health(portal), range(200)))
        assert backends(server, shared.database) <= before + 1
        server.stop()
        try:
            assert set(asking.map(lambda _: health(portal), range(200))) == {_BAD}
            assert health(portal, "?ready") == (503, "nothing can be stored\n")
        finally:
            server.start()
        eventually(lambda: is_well(portal))
        with frozen(server.process):
            threads = len([*Path(f"/proc/{portal.process.pid}/task").iterdir()])
            eventually(lambda: health(portal) == _BAD)
            assert set(asking.map(lambda _: health(portal), range(200))) == {_BAD}
            grown = len([*Path(f"/proc/{portal.process.pid}/task").iterdir()]) - threads
            assert grown < 10
        eventually(lambda: is_well(portal))


def test_a_database_that_takes_no_changes(shared: Shared, start: StartPortal) -> None:
    """Healthy, and not ready: a standby, or one that its provider has locked."""
    server, name = shared.postgres, shared.database
    with start(shared) as portal:
        eventually(lambda: is_well(portal))
        server.execute("postgres", f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        ended = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        server.execute("postgres", ended)
        eventually(lambda: health(portal, "?ready") == (503, "nothing can be stored\n"))
        eventually(lambda: health(portal) == (200, "ok\n"))


def test_an_object_store_that_is_away(
    s3rver: str, postgres: Postgres, start: StartPortal, tmp_path: Path
) -> None:
    """`s3rver` is what skips the test without one."""
    directory = tmp_path / "store"
    directory.mkdir()
    store = S3rver(directory)
    store.start()
    try:
        with start(Shared.new(store.url, postgres, tmp_path)) as portal:
            eventually(lambda: is_well(portal))
            store.stop()
            eventually(lambda: health(portal) == _BAD)
            store.start()
            eventually(lambda: is_well(portal))
            with frozen(store.process):
                eventually(lambda: health(portal) == _BAD)
    finally:
        store.stop()
