"""Portals on shared storage that have an upstream portal."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from skymount.wire.skylink import SECTOR_SIZE
from tests.fakes.skyfiles import noise
from tests.portal_process import PortalProcess, portal_process
from tests.server.http_client import Client
from tests.server.registry_entries import get, put, signed
from tests.server.storage.cluster.conftest import StartPortal, running
from tests.server.storage.cluster.servers import Shared

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.timeout(180)]

LARGE = noise(2 * SECTOR_SIZE + 12_345)


@pytest.fixture
def origin(tmp_path: Path) -> Iterator[PortalProcess]:
    with portal_process(tmp_path / "origin") as portal:
        yield portal


def connected(portal: PortalProcess) -> Client:
    return Client(base_url=portal.url, timeout=60)


def test_what_only_upstream_has(
    shared: Shared, origin: PortalProcess, start: StartPortal, tmp_path: Path
) -> None:
    """SP10: two processes read it, and keep it in one directory; entries and pins are for all."""
    mirror = running(shared, tmp_path, "--upstream", origin.url, "--workers", "2")
    with connected(origin) as client:
        large = client.upload({"large.bin": LARGE})
        small, many = client.upload_file("small.txt", b"small"), {f"{n}" * 1000: b"" for n in "abc"}
        key = client.post("/svc/createskykey", data={"name": "k", "type": "public-id"})
        locked = client.upload_file("locked.bin", LARGE[:5_000_000], skykeyname="k")
        folder = client.upload({**many, "large.bin": LARGE})
        put(client, signed("seen", bytes(34), 3))
    with start(shared) as plain, mirror as portal, connected(plain) as other:
        for _ in range(4):  # either process
            with connected(portal) as client:
                assert client.get(f"/{large}/large.bin").content == LARGE
                assert client.get(f"/{small}").content == b"small"
                assert get(client, "seen") == signed("seen", bytes(34), 3)
        with connected(portal) as client:
            client.post("/svc/addskykey", data={"skykey": key.json()["skykey"]})
            own = client.upload_file("own", b"own")
            assert other.get(f"/{own}").content == b"own"
            assert other.get(f"/{small}").status_code == 404
            assert get(other, "seen") == signed("seen", bytes(34), 3)
            for link in (small, locked, folder):
                assert client.post(f"/svc/pin/{link}").status_code == 204
            origin.kill()
            assert client.get(f"/{large}/large.bin").content == LARGE
        assert other.get(f"/{small}").content == b"small"
        assert other.get(f"/{locked}").content == LARGE[:5_000_000]
        assert other.get(f"/{folder}/large.bin").content == LARGE
        assert other.get(f"/{large}/large.bin").status_code == 404
