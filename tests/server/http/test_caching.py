"""What caches are told about answers."""

import pytest

from skymount.wire.dialect import SVC
from skymount.wire.skylink import Skylink
from tests.server.http_client import Client, assert_same_headers
from tests.server.registry_entries import link_of, put, question, signed

_IMMUTABLE = "public, max-age=31536000, immutable"
_FILES = {"a": b"1", "b": b"2"}


@pytest.fixture(scope="module")
def link(client: Client) -> str:
    """The skylink of a directory."""
    return client.upload(_FILES)


@pytest.fixture(scope="module")
def root(link: str) -> str:
    """A request for bytes of its base sector."""
    return f"/svc/root?root={Skylink(link).root.hex()}&offset=0&length=99"


def _urls(link: str) -> list[str]:
    return [
        f"/{link}?format=concat",
        f"/{link}/a",
        f"/file/{link}/a",
        f"/svc/metadata/{link}",
        f"/svc/basesector/{link}",
    ]


def test_what_never_changes_is_kept(client: Client, link: str, root: str) -> None:
    """In full, in part, and when it has not changed."""
    for url in [*_urls(link), root]:
        answer = client.get(url, headers={"Authorization": "Basic Onh4"})
        assert answer.status_code == 200
        assert answer.headers["cache-control"] == _IMMUTABLE
        assert_same_headers(client.head(url), answer)
        tag = answer.headers["etag"]
        for line in (tag, f"W/{tag}", f'"x",{tag}', "*"):
            answer = client.get(url, headers={"If-None-Match": line, "Range": "bytes=0-0"})
            assert (answer.status_code, answer.content) == (304, b"")
            assert answer.headers["cache-control"] == _IMMUTABLE
            assert answer.headers["etag"] == tag
        for name, value, status in (
            ("If-None-Match", '"x"', 200),
            ("If-None-Match", '"x,*"', 200),
            ("If-None-Match", tag[:-1], 200),
            ("If-Match", f'"x", {tag}', 200),
            ("If-Match", f"W/{tag}", 412),  # strong comparison
            ("If-Match", '"*,"', 412),
        ):
            assert client.get(url, headers={name: value}).status_code == status
        lines = [("If-None-Match", '"x"'), ("If-None-Match", tag)]
        assert client.get(url, headers=lines).status_code == 304
        both = client.get(url, headers={"If-Match": '"x"', "If-None-Match": tag})
        assert (both.status_code, both.headers["cache-control"]) == (412, "no-store")
    part = client.get(f"/{link}/a", headers={"Range": "bytes=0-0"})
    assert (part.status_code, part.headers["cache-control"]) == (206, _IMMUTABLE)


def test_what_leads_elsewhere_is_asked_about(client: Client, link: str) -> None:
    """The tag of a v2 skylink is that of what it leads to."""
    put(client, signed("caching", link.encode()))
    moving, tags = link_of("caching"), list[str]()
    for url, fixed in zip(_urls(str(moving)), _urls(link), strict=True):
        answer = client.get(url)
        assert answer.headers["cache-control"] == "no-cache"
        tags.append(answer.headers["etag"])
        assert client.get(fixed).headers["etag"] == tags[-1]
        assert client.get(url, headers={"If-None-Match": tags[-1]}).status_code == 304
    other = client.upload({"a": b"3", "b": b"4"})
    put(client, signed("caching", other.encode(), 1))
    for url, tag in zip(_urls(str(moving)), tags, strict=True):
        assert client.get(url, headers={"If-None-Match": tag}).status_code == 200


def test_each_variant_has_a_tag_of_its_own(client: Client, link: str, root: str) -> None:
    urls = [
        *_urls(link),
        f"/{link}/b",
        f"/{link}?format=tar",
        f"/{link}?format=zip",
        root,
        f"{root}0",
    ]
    tags = {client.get(url).headers["etag"] for url in urls}
    assert len(tags) == len(urls) - 1  # an attachment has the same content


def test_what_changes_is_not_stored(client: Client, link: str) -> None:
    """Nor are errors, and error pages of sites."""
    put(client, signed("stored in no cache", link.encode()))
    page = client.upload({"404.html": b"gone", "x": b""}, errorpages='{"404":"/404.html"}')
    url = "/svc/registry?publickey={publickey}&datakey={datakey}"
    here, absent = question("stored in no cache"), question("absent")
    for path, status in [
        ("/svc/stats", 200),
        (url.format(**here), 200),
        (url.format(**absent), 404),
        (f"/svc/resolve/{link_of('stored in no cache')}", 200),
        (f"/{page}/nothing", 404),
        (f"/{link}/nothing", 404),
        ("/hnsres/nobody.example", 404),
    ]:
        answer = client.get(path)
        assert (answer.status_code, answer.headers["cache-control"]) == (status, "no-store"), path
    beyond = client.get(f"/{link}/a", headers={"Range": "bytes=9-"})
    assert (beyond.status_code, beyond.headers["cache-control"]) == (416, "no-store")


def test_decrypted_content_is_not_stored(client: Client) -> None:
    """Its skykey may be deleted. Its sectors are sent as they are stored, and stay the same."""
    made = client.post("/svc/createskykey", data={"name": "caching", "type": "public-id"})
    assert made.headers["cache-control"] == "no-store"
    link = client.upload(_FILES, skykeyname="caching")
    *decrypted, base = _urls(link)
    for url in decrypted:
        answer = client.get(url)
        assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
    assert client.get(base).headers["cache-control"] == _IMMUTABLE


def test_vary_names_what_an_answer_depends_on(client: Client, link: str, root: str) -> None:
    html = {"Accept": "text/html", "User-Agent": "x"}
    agent = {"User-Agent": SVC.agent}
    shown = "Accept, Origin, Sec-Fetch-Mode, Service-Worker"
    url = f"/{link}/a"
    bare = f"{url}?no-response-metadata=true"
    fetched = {"Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"}
    for asked, headers, vary in (
        *(
            (asked, each, "Origin")
            for asked in (f"/svc/metadata/{link}", root)
            for each in ({}, html)
        ),
        *((url, each, f"{shown}, User-Agent") for each in ({}, html, agent)),
        (bare, {}, shown),
        (bare, html, f"{shown}, User-Agent"),
        ("/nonsense", {}, "Accept, Origin, Sec-Fetch-Mode"),
        (url, {"Sec-Fetch-Mode": "no-cors"}, "Origin, Sec-Fetch-Mode, Service-Worker"),
        (url, fetched, "Origin, Sec-Fetch-Dest, Sec-Fetch-Mode, Service-Worker, User-Agent"),
    ):
        assert client.get(asked, headers=headers).headers["vary"] == vary, (asked, headers)
