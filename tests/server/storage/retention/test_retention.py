"""What is old and not pinned leaves; nothing else does."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from skymount.errors import StorageError
from skymount.server.storage.catalogue_rows import NewSkyfile
from skymount.server.storage.local_catalogue import LocalCatalogue, catalogue_path
from skymount.server.storage.retention.pin_store import PinStore
from skymount.server.storage.retention.retention import Retention
from skymount.server.storage.skyfile_store import SkyfileStore
from skymount.wire.skylink import Skylink
from tests.portal_process import portal_process
from tests.server.http_client import Client
from tests.server.raw_connection import eventually
from tests.server.storage.stored import put, set_time


@dataclass(frozen=True, slots=True)
class Kept:
    """All that decides what leaves."""

    store: SkyfileStore
    catalogue: LocalCatalogue
    retention: Retention

    async def put(self, payload: bytes) -> Skylink:
        link = put(self.store, payload)
        await self.catalogue.add(
            NewSkyfile(link, "a", 0, len(payload), is_encrypted=False, is_small=True)
        )
        return link


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    with (
        closing(SkyfileStore.open(tmp_path)) as store,
        closing(LocalCatalogue.open(tmp_path, store)) as catalogue,
        closing(PinStore.open(tmp_path)) as pins,
    ):
        yield Kept(store, catalogue, Retention(store, catalogue, pins))


async def test_the_sweep_leaves_what_is_pinned_or_new(kept: Kept) -> None:
    """RT1: a time before everything removes nothing."""
    await kept.catalogue.repair()
    links = [await kept.put(bytes([number])) for number in range(120)]
    assert await kept.retention.pin(links[7], "why not")
    assert (await kept.retention.sweep(time.time() - 3600)).skyfiles == 0
    forgotten: list[Skylink] = []
    kept.retention.on_change(forgotten.append)
    swept = await kept.retention.sweep(time.time() + 1)
    assert swept.skyfiles == 119
    assert [link for link in links if kept.store.find(link)] == [links[7]]
    assert kept.catalogue.totals()[0] == 1
    assert set(forgotten) == set(links) - {links[7]}


async def test_what_is_uploaded_again_is_new(kept: Kept) -> None:
    """RT1: also if the upload is not yet in the catalogue."""
    await kept.catalogue.repair()
    link = await kept.put(b"x")
    cutoff = time.time() + 0.05
    while time.time() < cutoff + 0.05:
        pass
    put(kept.store, b"x")
    assert (await kept.retention.sweep(cutoff)).skyfiles == 0
    assert kept.store.find(link)


async def test_what_cannot_be_removed_is_passed_over(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RT1: one skyfile that is in the way does not keep all younger ones."""
    await kept.catalogue.repair()
    links = [await kept.put(bytes([number])) for number in range(3)]
    remove = kept.store.remove

    def fail_once(skylink: Skylink, stored_before: float | None = None) -> bool:
        if skylink == links[0]:
            raise StorageError("no")
        return remove(skylink, stored_before)

    monkeypatch.setattr(kept.store, "remove", fail_once)
    with pytest.raises(StorageError, match="removed 2 skyfiles, 1 could not be removed: no"):
        await kept.retention.sweep(time.time() + 1)
    assert [link for link in links if kept.store.find(link)] == links[:1]


async def test_a_damaged_row_is_an_error(kept: Kept, tmp_path: Path) -> None:
    """RT1: of the kind that the sweep logs; the portal goes on."""
    await kept.catalogue.repair()
    await kept.put(b"x")
    with closing(sqlite3.connect(catalogue_path(tmp_path))) as database, database:
        database.execute("UPDATE skyfiles SET skylink = X'00'")
    with pytest.raises(StorageError, match="damaged"):
        await kept.retention.sweep(time.time() + 1)


async def test_what_is_pinned_is_removed_only_on_purpose(kept: Kept) -> None:
    """RT2: then its pin goes too."""
    link = await kept.put(b"x")
    assert await kept.retention.pin(link)
    assert await kept.retention.remove(link) == "pinned"
    assert await kept.retention.remove(link, even_pinned=True) == "removed"
    assert await kept.retention.remove(link) == "absent"
    assert not await kept.retention.pin(link)
    assert not await kept.retention.unpin(link)


def test_a_portal_sweeps_by_itself(tmp_path: Path) -> None:
    """RT1: `--keep`; what POST pin names stays, and what is gone is a 404, also from memory."""
    with (
        portal_process(tmp_path, "--keep", "2s") as portal,
        Client(base_url=portal.url) as client,
    ):

        def upload(name: str) -> str:
            return client.upload_file(name, name.encode())

        old, pinned = upload("old"), upload("pinned")
        # On a busy machine either may be swept before the next request.
        eventually(
            lambda: upload("pinned") and client.post(f"/svc/pin/{pinned}").status_code == 204
        )
        eventually(lambda: upload("old") and client.get(f"/{old}").content == b"old")
        eventually(lambda: client.get(f"/{old}").status_code == 404)
        assert client.get(f"/{pinned}").content == b"pinned"
        assert client.post(f"/svc/pin/{old}").status_code == 404
        assert client.get("/svc/stats").json()["numfiles"] == 1


def test_pins_survive_a_damaged_catalogue(tmp_path: Path) -> None:
    """RT2: they are not in it."""
    with portal_process(tmp_path) as portal, Client(base_url=portal.url) as client:
        link = client.upload_file("a", b"a")
        assert client.post(f"/svc/pin/{link}").status_code == 204
    (tmp_path / "v1/catalogue.sqlite3").write_bytes(b"damaged" * 1000)
    set_time(tmp_path, link, 1)
    with (
        portal_process(tmp_path, "--keep", "1s") as portal,
        Client(base_url=portal.url) as client,
    ):
        other = client.upload_file("b", b"b")
        eventually(lambda: client.get(f"/{other}").status_code == 404)
        assert client.get(f"/{link}").content == b"a"
