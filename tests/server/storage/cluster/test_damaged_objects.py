"""Objects of the store that are not what was put there: they are never served as if they were."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

import httpx
import pytest

from skymount.errors import StorageError
from skymount.server.storage.cluster.content_store import SharedContent
from skymount.server.storage.cluster.objects import Objects
from skymount.server.storage.cluster.sector_reader import sector_name
from skymount.server.storage.stored_range import read_range
from skymount.server.storage.stored_skyfile import list_sectors
from skymount.wire import merkle
from skymount.wire.skylink import SECTOR_SIZE
from tests.fakes.skyfiles import noise
from tests.portal_process import PortalProcess
from tests.server.http_client import Client, message_of
from tests.server.storage.cluster.conftest import StartPortal
from tests.server.storage.cluster.servers import Shared
from tests.server.storage.stored import put

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.timeout(180)]

_KEPT = 3 << 20  # bytes that are left of a sector
_ZEROS = 1 << 20  # at the end of a sector, which are not stored


@contextmanager
def _client(portal: PortalProcess) -> Iterator[Client]:
    with Client(base_url=portal.url, timeout=60) as client:
        yield client


def _cut(content: SharedContent, sector: bytes, size: int) -> str:
    name = sector_name(merkle.sector_root(sector))
    content.objects.put(name, sector[:size])
    return name


def _until_broken_off(answer: httpx.Response) -> bytes:
    received = bytearray()
    try:
        for piece in answer.iter_raw():
            received += piece
    except httpx.RemoteProtocolError:
        return bytes(received)
    pytest.fail("the response came to its end")


def test_sectors_that_are_cut_short(
    content: SharedContent, shared: Shared, start: StartPortal, capfd: pytest.CaptureFixture[str]
) -> None:
    """SP9: 500 if that is seen at once, else the connection is closed before the end."""
    first, second = noise(SECTOR_SIZE), noise(SECTOR_SIZE)
    payload = first + second + bytes(_ZEROS)
    link = put(content, payload)
    with start(shared) as portal, _client(portal) as client:
        assert client.get(f"/{link}").content == payload

        cut = _cut(content, second, _KEPT)
        missing = {"Range": f"bytes={SECTOR_SIZE + _KEPT}-"}
        refused = client.get(f"/{link}", headers=missing)
        assert refused.status_code == 500
        assert cut in message_of(refused)
        root = f"/svc/root?root={cut.rpartition('/')[2]}&length=9&offset="
        assert client.get(f"{root}0").content == second[:9]
        assert client.get(f"{root}{_KEPT - 1}").status_code == 500
        capfd.readouterr()
        with client.stream("GET", f"/{link}") as answer:
            received = _until_broken_off(answer)
        assert answer.status_code == 200
        assert payload.startswith(received)
        assert len(received) <= SECTOR_SIZE + _KEPT

        content.objects.put(cut, second)
        assert client.get(f"/{link}").content == payload
    (logged,) = capfd.readouterr().err.splitlines()
    assert cut in logged


@pytest.mark.parametrize("size", [1, SECTOR_SIZE - _ZEROS, SECTOR_SIZE])
def test_zeros_at_the_end_of_a_sector(
    content: SharedContent, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """SP9: they are not stored and are served all the same. The hash is checked once, not for
    each read, and again when the object has changed.
    """
    sector = noise(size).ljust(SECTOR_SIZE, b"\0")
    found = content.find(put(content, sector + bytes(SECTOR_SIZE) + b"end"))
    assert found is not None
    wholes: list[str] = []
    get = Objects.get

    def counted(objects: Objects, name: str) -> bytes | None:
        wholes.append(name)
        return get(objects, name)

    monkeypatch.setattr(Objects, "get", counted)
    assert read_range(found.payload) == sector + bytes(SECTOR_SIZE) + b"end"
    for root, stored in list_sectors(found):
        assert merkle.sector_root(read_range(stored)) == root
    with closing(found.payload.source.open()) as opened:
        for at in (1, size - 1, size, size + 1, SECTOR_SIZE - 1, SECTOR_SIZE + 5):
            length = min(4096, 2 * SECTOR_SIZE - at)
            piece = opened.read(at, length)
            assert piece == (sector + bytes(SECTOR_SIZE))[at : at + len(piece)]
            assert piece
        assert len(wholes) <= 1
        if size > 1:
            _cut(content, sector, size // 2)
            with pytest.raises(StorageError, match="cut short"):
                opened.read(size - 9, 9)


def test_spilled_metadata_that_is_cut_short(content: SharedContent) -> None:
    """SP9: it is an error, too."""
    metadata = b'{"filename":"' + b"m" * (2 * SECTOR_SIZE) + b'"}'
    link = put(content, noise(SECTOR_SIZE + 1), metadata)
    for root in content.load_known(link).spilled_roots:
        content.objects.put(sector_name(root), b"m" * 7)
    found = content.find(link)
    assert found is not None
    with pytest.raises(StorageError, match="cut short"):
        read_range(found.metadata)


def test_the_object_of_a_skyfile_that_is_cut_short(
    content: SharedContent, shared: Shared, start: StartPortal
) -> None:
    """SP9: nothing of it is served."""
    link = put(content, noise(100))
    whole = content.objects.get(f"skyfiles/{link}")
    assert whole is not None
    content.objects.put(f"skyfiles/{link}", whole[:-1])
    with start(shared) as portal, _client(portal) as client:
        for path in (f"/{link}", f"/svc/basesector/{link}", f"/svc/metadata/{link}"):
            refused = client.get(path)
            assert refused.status_code == 500
            assert str(link) in message_of(refused)
