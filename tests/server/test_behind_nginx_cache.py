"""A portal behind nginx as docs/scaling.md configures it: what is kept, and what never is."""

from collections.abc import Iterator

import pytest

from tests.nginx import cache_before, needs_nginx_cache
from tests.portal_process import PortalProcess
from tests.server.http_client import Client
from tests.server.pages.page_client import page
from tests.server.registry_entries import get, link_of, put, question, signed

pytestmark = needs_nginx_cache

_SLICE = 1 << 20
_HIT = "x-cache-status"
_LARGE = b"".join(n.to_bytes(4, "big") for n in range(5 * _SLICE // 8))  # two slices and a half


@pytest.fixture(scope="module")
def cached(portal: PortalProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of nginx in front of the shared portal."""
    root = tmp_path_factory.mktemp("nginx") / "nginx"
    with cache_before(portal.url, root) as url, Client(base_url=url, timeout=60) as client:
        yield client


def test_ranges_come_from_slices(client: Client, cached: Client) -> None:
    """Any range, once its slices are kept; so does the whole."""
    link = client.upload_file("large", _LARGE)
    url = f"/{link}?format=concat&no-response-metadata=true"
    ranges = [(0, 0), (_SLICE - 1, _SLICE), (9, 9), (2 * _SLICE + 7, len(_LARGE) - 1)]
    for start, last in ranges:
        answer = cached.get(url, headers={"Range": f"bytes={start}-{last}"})
        assert (answer.status_code, answer.content) == (206, _LARGE[start : last + 1])
        assert answer.headers["content-range"] == f"bytes {start}-{last}/{len(_LARGE)}"
        hit = cached.get(url, headers={"Range": f"bytes={start}-{last}"})
        assert (hit.headers[_HIT], hit.content) == ("HIT", answer.content)
    whole = cached.get(url)
    assert (whole.status_code, whole.content) == (200, _LARGE)
    assert whole.headers[_HIT] == "HIT"
    tag = whole.headers["etag"]
    assert cached.get(url, headers={"If-None-Match": tag}).status_code == 304
    ranged = {"Range": "bytes=1-2", "If-Range": '"x"'}
    assert cached.get(url, headers=ranged).content == _LARGE
    assert cached.get(url, headers={**ranged, "If-Range": tag}).content == _LARGE[1:3]
    assert cached.get(f"/{link}?start=1&end=2").content == _LARGE[1:3]
    head = cached.head(f"/{link}?format=concat")
    assert head.headers["content-length"] == str(len(_LARGE))
    assert head.headers["svc-metadata"] == client.head(f"/{link}").headers["svc-metadata"]
    assert cached.get(url, headers={"Range": f"bytes={len(_LARGE)}-"}).status_code == 416


def test_small_answers_are_kept_whole(client: Client, cached: Client) -> None:
    link = client.upload_file("small", b"small")
    for url in (f"/svc/metadata/{link}", f"/skynet/basesector/{link}", f"/{link}/small"):
        first, second = cached.get(url), cached.get(url)
        assert (first.headers[_HIT], second.headers[_HIT]) == ("MISS", "HIT")
        assert first.content == second.content == client.get(url).content
        assert second.headers["svc-portal-api"] == str(cached.base_url)
    empty = client.upload_file("empty", b"")
    assert cached.get(f"/{empty}").content == b""
    later = client.upload_file("later", b"later", dryrun="true")
    assert [cached.get(f"/{later}").status_code for _ in range(2)] == [404, 404]
    client.upload_file("later", b"later")
    assert cached.get(f"/{later}").content == b"later"


def test_each_client_gets_its_own_variant(client: Client, cached: Client) -> None:
    """Pages and content of one URL, names of metadata headers, CORS headers, hosts."""
    link = client.upload({"a": b"1", "b": b"2"}, disabledefaultpath="true")
    for _ in range(2):
        assert cached.get(f"/{link}").headers["content-type"] == "application/zip"
        assert "1 byte" in page(cached, f"/{link}").text
        for agent, header in (("svc-agent", "svc-metadata"), ("Sia-Agent", "skynet-file-metadata")):
            answer = cached.get(f"/{link}/a", headers={"User-Agent": agent})
            assert [name for name in answer.headers if name.endswith("metadata")] == [header]
        named = cached.get(f"/{link}/a", headers={"Host": "localhost"})
        assert named.headers["svc-portal-api"] == "http://localhost"
        worker = cached.get(f"/{link}/a", headers={"Service-Worker": "script"})
        assert worker.status_code == 403


def test_what_changes_is_seen_at_once(client: Client, cached: Client) -> None:
    """A revision that is posted, what it leads to, and content that comes."""
    links = [client.upload_file("f", content) for content in (b"one", b"another")]
    moving = link_of("behind a cache")
    assert get(cached, "behind a cache") is None
    assert cached.get(f"/{moving}").status_code == 404
    for revision, (link, content) in enumerate(zip(links, (b"one", b"another"), strict=True)):
        entry = signed("behind a cache", link.encode(), revision)
        put(cached, entry)
        assert get(cached, "behind a cache") == entry
        for _ in range(2):
            assert cached.get(f"/{moving}").content == content
            resolved = cached.get(f"/svc/resolve/{moving}").json()
            assert resolved == {"skylink": link}
    assert _HIT not in cached.get("/svc/registry", params=question("behind a cache")).headers


def test_a_deleted_skykey_locks_its_content(cached: Client) -> None:
    made = cached.post("/svc/createskykey", data={"name": "nginx", "type": "private-id"})
    link = cached.upload_file("secret", _LARGE, skykeyname="nginx")
    urls = [f"/{link}", f"/{link}/secret", f"/svc/metadata/{link}"]
    for url in urls:
        assert [cached.get(url).status_code for _ in range(2)] == [200, 200]
    assert cached.get(urls[0], headers={"Range": "bytes=0-9"}).content == _LARGE[:10]
    assert cached.post("/svc/deleteskykey", data={"name": "nginx"}).status_code == 204
    for url in urls:
        assert cached.get(url).status_code == 500
        assert cached.get(url, headers={"Range": "bytes=0-9"}).status_code == 500
    key = made.json()["skykey"]
    assert cached.post("/svc/addskykey", data={"skykey": key}).status_code == 204
    assert cached.get(urls[0]).content == _LARGE
