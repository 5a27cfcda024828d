"""Small skyfiles in their database: all or none, durable, and nothing of files for them."""

import io
import json
import os
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from skymount.errors import StorageError
from skymount.server.backup.exporting import export
from skymount.server.storage.disk_errors import DiskFullError
from skymount.server.storage.local.small_skyfiles import SMALL_FILE, SmallSkyfiles
from skymount.server.storage.reading.local_reader import LocalReader
from skymount.server.storage.retention.verification import verify
from skymount.server.storage.skyfile_store import SkyfileStore
from skymount.server.storage.stored_range import read_range
from skymount.server.storage.stored_skyfile import SMALL_SIZE
from skymount.storage import sqlite
from skymount.wire import merkle
from skymount.wire.base_sector import build_inline
from skymount.wire.skylink import Skylink
from tests.fakes.skyfiles import noise
from tests.mount.namespaces import new_namespace, skip_without_root
from tests.portal_process import portal_command, portal_environment, portal_process
from tests.server.http_client import Client
from tests.server.raw_connection import eventually
from tests.server.storage.stored import (
    IN_FILES,
    METADATA,
    damage,
    directory_of,
    put,
    skylinks_of,
)
from tests.skymount_process import Sandbox


def small(content: bytes) -> tuple[Skylink, bytes]:
    base = build_inline(METADATA, content)
    return Skylink.v1(merkle.sector_root(base), len(base)), base


async def test_those_that_come_together_are_stored_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One transaction for all that came while another one was under way."""
    batches = list[int]()
    store_all = SmallSkyfiles.put

    def counting(self: SmallSkyfiles, skyfiles: list[tuple[Skylink, bytes]]) -> None:
        batches.append(len(skyfiles))
        store_all(self, skyfiles)

    monkeypatch.setattr(SmallSkyfiles, "put", counting)
    skyfiles = [small(bytes([number])) for number in range(100)]
    with closing(SkyfileStore.open(tmp_path)) as store:
        async with trio.open_nursery() as nursery:
            for each in skyfiles:
                nursery.start_soon(store.small.put, each)
        assert {link for link, _ in skyfiles} == set(skylinks_of(store))
        for link, base in skyfiles:
            found = store.find(link)
            assert found is not None
            assert read_range(found.base) == base
    assert sum(batches) == 100
    assert len(batches) < 10


def test_a_size_for_the_database_and_one_for_files(tmp_path: Path) -> None:
    """As much as is read with the layout; not a byte more."""
    room = SMALL_SIZE - len(build_inline(METADATA, b""))
    with closing(SkyfileStore.open(tmp_path)) as store:
        links = [put(store, noise(size)) for size in (0, room, room + 1)]
        assert [directory_of(tmp_path, link).exists() for link in links] == [False, False, True]
        found = [store.find(link) for link in links]
        assert [one and one.base.is_in_memory for one in found] == [True, True, False]
        assert [(store.sizes(link) or (0,))[0] for link in links] == [
            SMALL_SIZE - room,
            SMALL_SIZE,
            SMALL_SIZE + 1,
        ]


@pytest.mark.parametrize("size", [1, IN_FILES])
def test_old_ones_are_removed_by_their_time(tmp_path: Path, size: int) -> None:
    """Not one that was uploaded again meanwhile."""
    with closing(SkyfileStore.open(tmp_path)) as store:
        link = put(store, bytes(size))

        def stored() -> float:
            return (store.sizes(link) or (0, 0.0))[1]

        first = stored()
        assert not store.remove(link, first)
        eventually(lambda: put(store, bytes(size)) == link and stored() > first)
        assert not store.remove(link, first + 1e-6)
        assert store.find(link)
        assert store.remove(link, first + 1e6)
        assert not store.remove(link, first + 1e6)


async def test_a_full_disk_stores_none_and_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that came together are told, without the path of the database; then there is room."""
    failures = list[str]()
    connections = list[sqlite3.Connection]()
    connect = sqlite.connect

    def recorded(*args: Any, **options: Any) -> sqlite3.Connection:
        connections.append(connect(*args, **options))
        return connections[-1]

    def allow(pages: str) -> None:
        for connection in connections:
            with suppress(sqlite3.ProgrammingError):  # it is closed
                connection.execute(f"PRAGMA max_page_count = {pages}")

    monkeypatch.setattr(sqlite, "connect", recorded)
    with closing(SkyfileStore.open(tmp_path)) as store:
        before = put(store, b"before")

        async def fail(number: int) -> None:
            with pytest.raises(DiskFullError) as caught:
                await store.small.put(small(bytes([number]) * 20_000))
            failures.append(str(caught.value))

        allow("1")  # as many as there are
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(fail, number)
        assert set(failures) == {"cannot store an upload: database or disk is full"}
        assert skylinks_of(store) == [before]
        allow("1000000")
        await store.small.put(small(b"after"))
        assert len(skylinks_of(store)) == 2


def test_room_is_given_back(tmp_path: Path) -> None:
    """What is removed does not stay in the file."""
    path = tmp_path / "v1" / SMALL_FILE
    with closing(SkyfileStore.open(tmp_path)) as store:
        links = [put(store, noise(20_000) + bytes([number])) for number in range(50)]
    assert path.stat().st_size > 1_000_000
    with closing(SkyfileStore.open(tmp_path)) as store:
        for link in links:
            store.remove(link)
    assert path.stat().st_size < 100_000


def test_a_disk_that_uploads_have_filled_is_emptied(tmp_path: Path) -> None:
    """There is room to remove. SQLite needs some of it to remove rows."""
    skip_without_root()
    with new_namespace(network=False) as space:
        space.do("mount", "-t", "tmpfs", "-o", "size=24m,mode=700", "none", tmp_path)
        data = str(tmp_path / "d")
        command = portal_command("serve", "--listen", "127.0.0.1:0", "--data", data)
        process = space.start(*command, env=portal_environment())
        assert process.stdout is not None
        url = process.stdout.readline().decode().split()[-1]
        with Client(base_url=url, timeout=60) as client:
            contents = (os.urandom(30_000) for _ in range(1000))
            answers = (client.post("/svc/skyfile", files={"file": ("s", c)}) for c in contents)
            refused = next(answer for answer in answers if answer.status_code != 200)
            assert refused.status_code == 507
            assert "8 MiB of the disk are kept free" in refused.json()["message"]
            eventually(lambda: client.get("/svc/stats").json()["numfiles"] > 10)
            space.do(*portal_command("gc", "--keep", "0.01s", "--data", data))
            assert client.get("/svc/stats").json()["numfiles"] == 0
            assert client.post("/svc/skyfile", files={"file": ("s", b"s")}).status_code == 200
        process.terminate()
        process.wait(30)


def _damage_page(data: Path, kind: int) -> None:
    """Overwrite the first page of a kind: 10 has keys, 13 rows."""
    path = data / "v1" / SMALL_FILE
    pages = bytearray(path.read_bytes())
    at = next(at for at in range(4096, len(pages), 4096) if pages[at] == kind)
    pages[at + 1 : at + 4096] = b"\xff" * 4095
    path.write_bytes(pages)


def test_a_damaged_page_spoils_what_is_in_it(tmp_path: Path) -> None:
    """It is named, the rest is read, verified and exported, and the catalogue is made of it."""
    with closing(SkyfileStore.open(tmp_path)) as store:
        links = [put(store, b"%d" % number * 500) for number in range(100, 160)]
    _damage_page(tmp_path, 13)
    with closing(LocalReader(tmp_path)) as reader:
        damaged = {one.skylink for one in verify(reader) if one.problem}
        assert 0 < len(damaged) < 10
        archive = io.BytesIO()
        done = export(reader, archive, with_skykeys=False, progress=lambda _: None)
    assert done.skyfiles == 60 - len(damaged)
    assert {problem.split(":")[0] for problem in done.problems} == set(map(str, damaged))
    with portal_process(tmp_path) as portal, Client(base_url=portal.url, timeout=60) as client:
        statuses = {link: client.get(f"/{link}").status_code for link in links}
        eventually(lambda: client.get("/svc/stats").json()["numfiles"] == 60)
    assert statuses == {link: 500 if link in damaged else 200 for link in links}


async def test_what_fails_to_be_stored_fails_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not with what came at the same time. The log names the file and what to do."""
    skyfiles = [small(b"%d" % number * 500) for number in range(100, 160)]
    with closing(SkyfileStore.open(tmp_path)) as store:
        for each in skyfiles:
            store.put_small(*each)
    _damage_page(tmp_path, 13)
    failed = set[Skylink]()
    with closing(SkyfileStore.open(tmp_path)) as store:

        async def put_again(skyfile: tuple[Skylink, bytes]) -> None:
            try:
                await store.small.put(skyfile)
            except StorageError:
                failed.add(skyfile[0])

        async with trio.open_nursery() as nursery:
            for each in (*skyfiles, small(b"new")):
                nursery.start_soon(put_again, each)
        assert 0 < len(failed) < 10
        assert f"{tmp_path / 'v1' / SMALL_FILE}: " in caplog.text
        assert "restore it from a backup" in caplog.text
        for link, base in (*skyfiles, small(b"new")):
            if link not in failed:
                found = store.find(link)
                assert found is not None
                assert read_range(found.base) == base


def test_a_damaged_page_leaves_what_is_in_files(tmp_path: Path) -> None:
    """Nothing of the database is read for it."""
    with closing(SkyfileStore.open(tmp_path)) as store:
        for number in range(300):
            put(store, b"%d" % number)
        large = [put(store, noise(IN_FILES) + bytes([number])) for number in range(50)]
    _damage_page(tmp_path, 10)
    with closing(SkyfileStore.open(tmp_path)) as store:
        assert all(map(store.find, large))
        assert all(map(store.sizes, large))


def test_beside_a_portal_that_writes(tmp_path: Path) -> None:
    """What is stored meanwhile is seen; without a database there are none."""
    with closing(SkyfileStore.open(tmp_path)) as store:
        first = put(store, b"first")
        with closing(SkyfileStore.beside(tmp_path)) as beside:
            assert skylinks_of(beside) == [first]
            second = put(store, b"second")
            assert beside.find(second)
            store.remove(first)
            assert skylinks_of(beside) == [second]
    for file in (tmp_path / "v1").glob(f"{SMALL_FILE}*"):
        file.unlink()
    with closing(SkyfileStore.beside(tmp_path)) as beside:
        assert skylinks_of(beside) == []
        assert beside.find(second) is None


def test_a_damaged_database_is_refused(tmp_path: Path) -> None:
    """It is not made anew: it is all that there is of them. The lock is free again."""
    SkyfileStore.open(tmp_path).close()
    path = tmp_path / "v1" / SMALL_FILE
    sound = path.read_bytes()
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(StorageError, match=rf"{path}: .*: restore it from a backup, or move"):
        SkyfileStore.open(tmp_path)
    path.write_bytes(sound)
    SkyfileStore.open(tmp_path).close()


@pytest.mark.parametrize("damage_one", ["header", "index"])
def test_a_damaged_database_and_the_way_back(
    sandbox: Sandbox, tmp_path: Path, damage_one: str
) -> None:
    """RT4, RT6: commands name it and what to do. Moved away, all else is read, and a backup brings
    what is lost.
    """
    data, archive = tmp_path / "data", tmp_path / "backup.tar"
    with portal_process(data) as portal, Client(base_url=portal.url) as client:
        links = {client.upload_file("s", b"%d" % number) for number in range(300)}
        large = client.upload_file("large", noise(IN_FILES))
    sandbox.succeed("portal", "export", archive, "--data", data)
    path = data / "v1" / SMALL_FILE
    if damage_one == "index":
        _damage_page(data, 10)
    else:
        path.write_bytes(b"no database" * 1000)
    for command in (["verify"], ["export", tmp_path / "other.tar"]):
        said = sandbox.fail("portal", *command, "--data", data)
        assert f"{path}: " in said
        assert "restore it from a backup, or move it away and import one" in said
    path.rename(tmp_path / "damaged")
    assert "1 skyfile," in sandbox.succeed("portal", "verify", "--data", data)
    sandbox.succeed("portal", "import", archive, "--data", data)
    verified = json.loads(sandbox.succeed("portal", "verify", "--json", "--data", data))
    assert (verified["skyfiles"], verified["damaged"]) == (301, [])
    rows = json.loads(sandbox.succeed("portal", "list", "--limit", "999", "--json", "--data", data))
    assert {row["skylink"] for row in rows} == links | {large}


def test_killed_under_load_all_that_was_acknowledged_is_there(tmp_path: Path) -> None:
    """Whole, listed and verified; so is what was stored without an answer."""
    acknowledged = dict[str, bytes]()
    numbers, stopped = count(), threading.Event()

    def upload(url: str) -> None:
        with suppress(httpx.TransportError), Client(base_url=url, timeout=60) as client:
            while not stopped.is_set():
                content = b"%d " % next(numbers) + os.urandom(2000)
                acknowledged[client.upload_file("a", content)] = content

    for _ in range(3):
        enough = len(acknowledged) + 100
        with portal_process(tmp_path) as portal, ThreadPoolExecutor(8) as threads:
            for _ in range(8):
                threads.submit(upload, portal.url)
            eventually(lambda: len(acknowledged) >= enough)  # noqa: B023
            portal.kill()
    with portal_process(tmp_path) as portal, Client(base_url=portal.url, timeout=60) as client:
        for link, content in acknowledged.items():
            assert client.get(f"/{link}").content == content
        with closing(LocalReader(tmp_path)) as reader:
            found = list(verify(reader))
        assert not [one for one in found if one.problem]
        assert {str(one.skylink) for one in found} >= acknowledged.keys()
        eventually(lambda: client.get("/svc/stats").json()["numfiles"] == len(found))


def test_what_is_damaged_is_replaced_by_the_next_upload(tmp_path: Path) -> None:
    """As in files."""
    with closing(SkyfileStore.open(tmp_path)) as store:
        link = put(store, b"whole")
        damage(tmp_path, link, lambda base: base[:-1] + b"E")
        assert put(store, b"whole") == link
        found = store.find(link)
        assert found is not None
        assert read_range(found.payload) == b"whole"
