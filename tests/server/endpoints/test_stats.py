"""What the portal tells about itself."""

from pathlib import Path

import pytest

import skymount
from skymount.wire.skylink import Skylink
from tests.portal_process import portal_process
from tests.server.http_client import Client, message_of
from tests.server.registry_entries import link_of, put, signed


def test_statistics(tmp_path: Path) -> None:
    """They follow uploads and updates, and are right after a restart."""
    with portal_process(tmp_path) as portal, Client(base_url=portal.url) as client:
        first = client.get("/svc/stats").json()
        assert list(first) == ["version", "uptime", "numfiles", "totalsize", "numentries"]
        assert first["version"] == skymount.__version__
        assert first["uptime"] >= 0
        assert [first[name] for name in ("numfiles", "totalsize", "numentries")] == [0, 0, 0]
        for _ in range(2):
            link = client.upload_file("small", b"x")
        small = len(client.get(f"/svc/basesector/{link}").content.rstrip(b"\0"))
        client.upload_file("large", bytes(5 << 20))
        for revision in range(2):
            put(client, signed("a", b"x", revision))
        put(client, signed("b"))
        found = client.get("/skynet/stats").json()
    with portal_process(tmp_path) as portal, Client(base_url=portal.url) as client:
        again = client.get("/svc/stats").json()
    sizes = [
        path.stat().st_size for path in (tmp_path / "v1/skyfiles").rglob("*") if path.is_file()
    ]
    sizes.append(small)
    for stats in (found, again):
        assert (stats["numfiles"], stats["numentries"]) == (2, 2)
        assert stats["totalsize"] == sum(sizes) > 5 << 20


@pytest.mark.parametrize("prefix", ["svc", "skynet"])
def test_pinning(client: Client, prefix: str) -> None:
    """204 for what is here, of either version; 404 for what is not."""
    content = client.upload_file("pinned", b"pinned")
    put(client, signed(f"pin {prefix}", bytes(Skylink(content))))
    for link in (content, link_of(f"pin {prefix}")):
        answer = client.post(f"/{prefix}/pin/{link}")
        assert (answer.status_code, answer.content) == (204, b"")
        assert answer.headers["skynet-skylink"] == content
    absent = client.post(f"/{prefix}/pin/{Skylink.v1(bytes(32), 4096)}")
    assert absent.status_code == 404
    assert message_of(absent) == "failed to fetch skylink: root not found"
    assert client.post(f"/{prefix}/pin/{link_of('absent')}").status_code == 404
    assert client.post(f"/{prefix}/pin/nonsense").status_code == 400
    assert client.get(f"/{prefix}/pin/{content}").status_code == 405


@pytest.mark.parametrize("prefix", ["svc", "skynet"])
def test_the_lists_of_an_administrator_are_empty(client: Client, prefix: str) -> None:
    """They can be read and not changed."""
    assert client.get(f"/{prefix}/blocklist").json() == {"blacklist": None, "blocklist": []}
    assert client.get(f"/{prefix}/portals").json() == {"portals": []}
    for name in ("blocklist", "portals", "stats"):
        answer = client.post(f"/{prefix}/{name}", json={"add": [], "remove": []})
        assert answer.status_code == 405
        assert answer.headers["allow"] == "GET, HEAD"


def test_other_paths_stay_unknown(client: Client) -> None:
    """Routes of one name do not take those below it."""
    for path in ("/svc/stats/x", "/svc/registry/x", "/svc/resolve", "/svc/pin", "/svc/nothing"):
        assert client.get(path).status_code == 404
