"""Shared content: what the sweeper removes and what it must not, and stores that are full."""

import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from skymount.errors import StorageError
from skymount.server.storage.catalogue_rows import CatalogueRow
from skymount.server.storage.cluster import skyfile_rows
from skymount.server.storage.cluster.content_store import SharedContent
from skymount.server.storage.cluster.database import SWEEP_LOCK
from skymount.server.storage.cluster.sector_reader import Fetching, SectorReader, sector_name
from skymount.server.storage.cluster.skyfile_object import skyfile_name
from skymount.server.storage.cluster.sweeper import sweep
from skymount.server.storage.disk_errors import DiskFullError
from skymount.server.storage.stored_range import read_range
from skymount.server.storage.stored_skyfile import BuiltSkyfile, list_sectors
from skymount.wire import merkle
from skymount.wire.base_sector import build_fanned_out
from skymount.wire.skylink import SECTOR_SIZE, Skylink
from tests.fakes.skyfiles import noise
from tests.portal_process import PortalProcess
from tests.server.http_client import Client, message_of
from tests.server.raw_connection import eventually
from tests.server.storage.cluster.conftest import opened_content, running
from tests.server.storage.cluster.servers import BUCKET, Postgres, Shared
from tests.server.storage.stored import METADATA, put

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.timeout(180)]

NO_AGE = -1000.0  # seconds: everything is old


def sectors(content: SharedContent) -> set[str]:
    return {found.name for found in content.objects.list("sectors")}


def test_all_sectors_have_the_root_that_is_claimed(content: SharedContent) -> None:
    """SP2: of base, payload, and metadata that did not fit."""
    metadata = b'{"filename":"' + b"m" * (2 * SECTOR_SIZE) + b'"}'
    payload = noise(SECTOR_SIZE) + b"p"
    link = put(content, payload, metadata)
    found = content.find(link)
    assert found is not None
    assert read_range(found.metadata) == metadata
    assert read_range(found.payload) == payload
    for root, stored in list_sectors(found):
        assert merkle.sector_root(read_range(stored)) == root
        assert skyfile_rows.with_sector(content.database, root) == [link]
    row = skyfile_rows.find(content.database, link)
    assert row is not None
    assert row.name == "m" * 256


def test_only_unused_sectors_are_swept(content: SharedContent) -> None:
    """SP2: those of an upload that was broken off, and of skyfiles that were removed."""
    shared_sector, own = noise(SECTOR_SIZE), b"own"
    kept = put(content, shared_sector + own)
    removed = put(content, shared_sector + b"other")
    with closing(content.begin()) as upload:
        upload.put_sector(0, merkle.sector_root(b"half"), b"half")
        eventually(lambda: len(sectors(content)) == 4)
    assert sweep(content) == 0, "too young"
    assert sweep(content, NO_AGE) == 1
    assert content.remove(removed)
    assert not content.remove(removed)
    assert content.find(removed) is None
    assert sweep(content, NO_AGE) == 1
    found = content.find(kept)
    assert found is not None
    assert read_range(found.payload) == shared_sector + own
    assert list(content.skylinks()) == [kept]


def test_an_upload_whose_sector_was_swept_is_refused(content: SharedContent) -> None:
    """SP2: it is never half there; the next attempt succeeds."""
    sector = noise(SECTOR_SIZE)
    root = merkle.sector_root(sector)
    base, _ = build_fanned_out(SECTOR_SIZE, root, METADATA)
    skylink = Skylink.v1(merkle.sector_root(base), len(base))
    built = BuiltSkyfile(base, (), root)
    with closing(content.begin()) as upload:
        upload.put_sector(0, root, sector)
        eventually(lambda: len(sectors(content)) == 1)
        assert sweep(content, NO_AGE) == 1
        with pytest.raises(StorageError, match="upload it again"):
            upload.publish(skylink, built)
    assert content.find(skylink) is None
    with closing(content.begin()) as upload:
        upload.put_sector(0, root, sector)
        upload.publish(skylink, built)
    assert sweep(content, NO_AGE) == 0
    found = content.find(skylink)
    assert found is not None
    assert read_range(found.payload) == sector


def test_rows_follow_the_objects(content: SharedContent) -> None:
    """SP2: the database may be older than the store, as after its backup was put back."""
    link = put(content, noise(SECTOR_SIZE + 5))
    before = skyfile_rows.find(content.database, link)
    skyfile_rows.remove(content.database, [str(link)])
    assert sweep(content, NO_AGE) == 0
    after = skyfile_rows.find(content.database, link)
    assert before is not None
    assert after is not None
    assert (after.name, after.size, after.disk) == (before.name, before.size, before.disk)
    content.objects.delete([f"skyfiles/{link}"])
    assert sweep(content, NO_AGE) == 2
    assert skyfile_rows.totals(content.database) == (0, 0)


def test_an_object_that_is_no_skyfile(content: SharedContent) -> None:
    """SP2: whatever is in the bucket under such a name, the sweep goes on."""
    link, foreign = put(content, b"x"), Skylink.v1(b"f" * 32, 99)
    content.objects.put(skyfile_name(foreign), bytes(65 << 20))
    content.objects.put("skyfiles/other/directory", b"")
    content.objects.put("sectors/other", b"")
    skyfile_rows.remove(content.database, [str(link)])
    content.objects.put(sector_name(bytes(32)), b"unused")
    assert sweep(content, NO_AGE) == 1
    assert skyfile_rows.find(content.database, link)
    with pytest.raises(StorageError, match="too large"):
        content.find(foreign)


def test_an_object_whose_name_has_an_empty_part(
    moto: str, postgres: Postgres, tmp_path: Path
) -> None:
    """SP2: the client of the store lists nothing then; the message says why."""
    shared = Shared.new(moto, postgres, tmp_path)
    httpx.put(f"{moto}/{BUCKET}/{shared.prefix}/sectors//x", content=b"x").raise_for_status()
    with (
        opened_content(shared) as content,
        pytest.raises(StorageError, match="an empty part in its name"),
    ):
        sweep(content)


def refuse(*_: object) -> None:
    raise StorageError("not now")


def test_nothing_is_swept_while_the_store_cannot_be_read(
    content: SharedContent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SP2: the sectors of a skyfile whose row is missing stay."""
    link = put(content, noise(SECTOR_SIZE + 5))
    skyfile_rows.remove(content.database, [str(link)])
    with monkeypatch.context() as failing:
        failing.setattr(content.objects, "get", refuse)
        with pytest.raises(StorageError, match="not now"):
            sweep(content, NO_AGE)
    assert len(sectors(content)) == 2
    assert sweep(content, NO_AGE) == 0


def test_a_sweep_that_breaks_off_blocks_no_upload(
    content: SharedContent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SP2: what it was about to remove can be stored again once its lease has ended."""
    sector = noise(SECTOR_SIZE)
    with closing(content.begin()) as upload:
        upload.put_sector(0, merkle.sector_root(sector), sector)
        eventually(lambda: len(sectors(content)) == 1)
    with monkeypatch.context() as failing:
        failing.setattr(content.objects, "delete", refuse)
        with pytest.raises(StorageError, match="not now"):
            sweep(content, NO_AGE)
    with pytest.raises(StorageError, match="upload it again"):
        put(content, sector)
    assert sweep(content, NO_AGE) == 0, "the first one may still remove it"
    content.database.write(
        "end the lease",
        lambda connection: connection.execute("UPDATE swept SET removed = clock_timestamp()"),
    )
    link = put(content, sector)
    assert sweep(content, NO_AGE) == 0
    found = content.find(link)
    assert found is not None
    assert read_range(found.payload) == sector


def test_an_upload_into_a_full_store_leaves_no_row(
    content: SharedContent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SP7: nothing of it is visible; what was stored before stays."""

    def full(*_: object) -> None:
        raise DiskFullError("full")

    here = put(content, b"here")
    with monkeypatch.context() as failing:
        failing.setattr(content.objects, "put", full)
        for payload in (b"here", b"new"):
            with pytest.raises(DiskFullError):
                put(content, payload)
    assert [row.skylink for row in skyfile_rows.page(content.database, "", 0, 9)[0]] == [here]


def test_pages_of_the_list(content: SharedContent) -> None:
    """SP1: newest first, from each start, and of a search."""
    links = [Skylink.v1(bytes([number]) * 32, 9) for number in range(23)]
    for number, link in enumerate(links):
        stored = 1.0 + number // 2  # two at a time
        name = f"N{number}_100%"
        row = CatalogueRow(link, name, 7, 9, 0, False, stored)
        assert skyfile_rows.put(content.database, row, [], None)
    ordered = sorted(links, key=lambda link: (-(links.index(link) // 2), str(link)))
    for start in range(25):
        rows, total = skyfile_rows.page(content.database, "", start, 5)
        assert ([row.skylink for row in rows], total) == (ordered[start : start + 5], 23)
    for search, found in (("n1_", [1]), (str(links[4]), [4]), ("00%", range(23)), ("%n", [])):
        rows, total = skyfile_rows.page(content.database, search, 0, 50)
        assert total == len(found)
        assert {row.skylink for row in rows} == {links[number] for number in found}
    assert skyfile_rows.totals(content.database) == (23, 23 * 9)


def test_one_sweep_in_a_while(content: SharedContent) -> None:
    assert sweep(content, pause=60) == 0
    assert sweep(content, pause=60) is None
    assert sweep(content) == 0


def test_many_readers(content: SharedContent) -> None:
    """Those for which there is no room read in smaller pieces."""
    payload = noise(2 * SECTOR_SIZE + 5)
    found = content.find(put(content, payload))
    assert found is not None
    opened = content.open_sectors(content.load_known(found.skylink).payload_roots)
    assert isinstance(opened, SectorReader)
    crowded = SectorReader(Fetching(content.objects, 1, 1), opened.roots)
    other = SectorReader(crowded.fetching, opened.roots)
    with closing(crowded.fetching), closing(crowded), closing(other):
        for reader in (crowded, other):
            reader.announce(7, len(payload) - 7)
        for at in range(7, len(payload), 1 << 20):
            for reader in (crowded, other):
                piece = reader.read(
                    at, min(1 << 20, SECTOR_SIZE - at % SECTOR_SIZE, len(payload) - at)
                )
                assert piece == payload[at : at + len(piece)]
                assert piece


def test_a_download_begins_with_a_small_piece(content: SharedContent) -> None:
    """Its client does not wait for a whole sector."""
    payload = noise(SECTOR_SIZE + 9)
    found = content.find(put(content, payload))
    assert found is not None
    for start in (5, SECTOR_SIZE - 9):
        with closing(found.payload.source.open()) as opened:
            assert isinstance(opened, SectorReader)
            opened.announce(start, len(payload) - start)
            piece = opened.read(start, 1 << 20)
            assert 0 < len(piece) <= 256 << 10
            while start + len(piece) < len(payload):
                at = start + len(piece)
                piece += opened.read(at, min(1 << 20, len(payload) - at))
            assert piece == payload[start:]


def test_one_process_sweeps(content: SharedContent) -> None:
    with content.database.alone(SWEEP_LOCK) as is_alone:
        assert is_alone
        assert sweep(content) is None
    assert sweep(content) == 0


class _FullStore(BaseHTTPRequestHandler):
    """An object store with room for two objects."""

    protocol_version = "HTTP/1.1"
    left = 2
    names: list[str] = []  # noqa: RUF012 - of all requests

    def do_GET(self) -> None:
        self._answer(200, b'<?xml version="1.0"?><ListBucketResult></ListBucketResult>')

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.left <= 0:
            code = b"<?xml version='1.0'?><Error><Code>QuotaExceeded</Code></Error>"
            self._answer(403, code)
            return
        type(self).left -= 1
        self.names.append(self.path)
        self._answer(200, b"")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"x"')
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def full_portal(postgres: Postgres, tmp_path: Path) -> Iterator[PortalProcess]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _FullStore)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        shared = Shared.new(f"http://127.0.0.1:{server.server_port}", postgres, tmp_path)
        with running(shared, tmp_path) as portal:
            yield portal
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_store_that_is_full(full_portal: PortalProcess) -> None:
    """SP7: 507 in the middle of an upload, and no skyfile."""
    with Client(base_url=full_portal.url, timeout=60) as client:
        parts = {"Content-Type": "text/plain"}
        answer = client.post(
            "/svc/skyfile?filename=x", content=noise(3 * SECTOR_SIZE), headers=parts
        )
        assert answer.status_code == 507, answer.text
        assert "full" in message_of(answer)
        assert "s3:" not in message_of(answer), "where the store is concerns no client"
    assert not [name for name in _FullStore.names if "skyfiles" in name]
