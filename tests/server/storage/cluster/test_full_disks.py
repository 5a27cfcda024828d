"""A database and an object store whose disks are full: real ones, on small file systems."""

from collections.abc import Iterator
from pathlib import Path
from subprocess import CalledProcessError

import pytest

from skymount.wire.skylink import SECTOR_SIZE
from tests.fakes.skyfiles import noise
from tests.mount.namespaces import Namespace, new_namespace, skip_without_root
from tests.server.http_client import Client, message_of
from tests.server.raw_connection import eventually
from tests.server.registry_entries import get, post, signed
from tests.server.storage.cluster.conftest import StartPortal
from tests.server.storage.cluster.load import Load
from tests.server.storage.cluster.servers import (
    Postgres,
    S3rver,
    Shared,
    postgres_programs,
    running_postgres,
)

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.timeout(180)]

_FORM = {"Content-Type": "text/plain"}


@pytest.fixture
def space() -> Iterator[Namespace]:
    skip_without_root()
    with new_namespace(network=False) as made:
        yield made


def mount_small(space: Namespace, place: Path, size: str, *options: str) -> None:
    place.mkdir()
    words = ",".join([f"size={size}", "mode=700", *options])
    space.do("mount", "-t", "tmpfs", "-o", words, "none", place)


def fill(space: Namespace, place: Path) -> Path:
    """Leave no room; return the file that takes it."""
    filler = place / "filler"
    done = space.run("dd", "if=/dev/zero", f"of={filler}", "bs=4k")
    assert "No space left" in done.stderr
    return filler


def upload(client: Client, content: bytes, name: str = "x", **more: str) -> tuple[int, str]:
    """Return the status, and the skylink or the message."""
    params = {"filename": name, **more}
    answer = client.post("/svc/skyfile", params=params, content=content, headers=_FORM)
    if answer.status_code != 200:
        return answer.status_code, message_of(answer)
    return 200, answer.json()["skylink"]


def test_a_database_whose_disk_is_full(
    space: Namespace, s3rver: str, start: StartPortal, tmp_path: Path
) -> None:
    """SP7: 507, and nothing of the upload is visible; when there is room again all works."""
    programs = postgres_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    with running_postgres(programs, space.prefix) as server:
        small = server.directory / "small"
        mount_small(space, small, "24m", f"uid={server.user or 0}")
        server.execute("postgres", f"CREATE TABLESPACE small LOCATION '{small}'")
        shared = Shared.new(s3rver, server, tmp_path)
        server.execute("postgres", f"ALTER DATABASE {shared.database} SET TABLESPACE small")
        with start(shared) as portal, Client(base_url=portal.url, timeout=60) as client:
            before = upload(client, b"before")[1]
            filler = fill(space, small)
            for number in range(500):
                content, name = b"%d" % number, f"{number}" + "n" * 200
                status, said = upload(client, content, name)
                if status != 200:
                    break
                assert client.get(f"/{said}").content == content
            assert status == 507
            assert "No space left on device" in said
            _, link = upload(client, content, name, dryrun="true")
            assert client.get(f"/{link}").status_code == 404
            assert client.get(f"/{before}").content == b"before"
            stored = 0
            for number in range(500):
                answer = post(client, signed(f"{number}", b"d" * 113))
                if answer.status_code != 204:
                    break
                stored += 1
            assert answer.status_code == 500
            assert get(client, f"{stored}") is None
            space.do("rm", filler)
            eventually(lambda: upload(client, content, name) == (200, link))
            assert client.get(f"/{link}").content == content
            assert post(client, signed(f"{stored}")).status_code == 204


def test_a_database_without_room_for_its_log(
    space: Namespace, s3rver: str, start: StartPortal, tmp_path: Path
) -> None:
    """SP7: PostgreSQL ends itself, because a standby that is gone has it keep its WAL. Then it is
    503 until it has room and was started again, and nothing is lost.
    """
    programs = postgres_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    with running_postgres(programs, space.prefix) as server:
        server.stop()
        small, log = server.directory / "small", server.directory / "data" / "pg_wal"
        mount_small(space, small, "40m", f"uid={server.user or 0}")
        space.do("cp", "-a", f"{log}/.", small)
        space.do("mount", "--bind", small, log)
        server.start()

        def outage() -> None:
            server.execute("postgres", "SELECT pg_create_physical_replication_slot('gone', true)")
            fill = "SELECT pg_logical_emit_message(false, '', repeat('x', 1000000))"
            with pytest.raises(CalledProcessError) as ended:
                server.execute("postgres", f"{fill} FROM generate_series(1, 60)")
            assert "No space left on device" in ended.value.stderr
            assert server.process is not None
            server.process.wait(60)
            refused = load.statuses[503]
            eventually(lambda: load.statuses[503] > refused)
            space.do("mount", "-o", "remount,size=100m", small)
            server.stop()
            server.start()

        shared = Shared.new(s3rver, server, tmp_path)
        with start(shared) as portal:
            load = Load(lambda: [portal.url], portal.url, frozenset({503}))
            load.assert_recovers(outage, portal.url)


def test_an_object_store_whose_disk_is_full(
    space: Namespace, s3rver: str, postgres: Postgres, start: StartPortal, tmp_path: Path
) -> None:
    """SP7: s3rver does not say that it is full, so it is 503; nothing of the upload is visible."""
    small = tmp_path / "store"
    mount_small(space, small, "20m")
    store = S3rver(small, space.prefix)
    store.start()
    try:
        shared = Shared.new(store.url, postgres, tmp_path)
        with start(shared) as portal, Client(base_url=portal.url, timeout=60) as client:
            _, before = upload(client, noise(SECTOR_SIZE))
            large = noise(7 * SECTOR_SIZE)
            assert upload(client, large)[0] == 503
            for number in range(50):  # it may still remove what it could not store
                filler = fill(space, small)
                content = b"small %d" % number
                if upload(client, content)[0] == 503:
                    break
                space.do("rm", filler)
            else:
                pytest.fail("there was always room")
            for each in (large, content):
                _, link = upload(client, each, dryrun="true")
                assert client.get(f"/{link}").status_code == 404
            assert client.get(f"/{before}").content == noise(SECTOR_SIZE)
            space.do("rm", filler)
            status, link = upload(client, content)
            assert status == 200
            assert client.get(f"/{link}").content == content
    finally:
        store.stop()
