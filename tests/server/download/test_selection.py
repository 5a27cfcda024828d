"""What a path of a skyfile serves."""

import json

import pytest

from tests.server.http_client import Client, assert_same_headers, message_of, skylink_of

_PAGE = b"<h1>index</h1>"


_NAMES = {
    "index.html": _PAGE,
    "a b": b"space",
    "a+b": b"plus",
    "d/e": b"deep",
    "f g.txt": b"space",
    "my dir/c d": b"deep",
    "x+y z": b"mixed",
    "c++/a": b"plus",
    "c  /a": b"space",
}


@pytest.fixture(scope="module")
def names(client: Client) -> str:
    return client.upload(_NAMES, tryfiles='["/index.html"]')


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/a+b", b"plus"),
        ("/a%20b", b"space"),
        ("/a%2Bb", b"plus"),
        ("/d%2Fe", b"deep"),
        # A plus is a space where only that name is there: so encode some clients.
        ("/f+g.txt", b"space"),
        ("/my+dir/c+d", b"deep"),
        ("/my+dir/?format=concat", b"deep"),
        ("/f%2Bg.txt", _PAGE),  # the tryfile
        ("/not+there", _PAGE),
        ("/x+y+z", _PAGE),
        ("/c++/a", b"plus"),
        ("/c++?format=concat", b"plus"),
    ],
)
def test_paths_are_percent_decoded(client: Client, names: str, path: str, content: bytes) -> None:
    """A plus is a plus, before the tryfiles a space; %2F is a slash."""
    assert client.get(f"/{names}{path}").content == content


def test_paths_that_cannot_be(client: Client) -> None:
    link = client.upload({"e++/b+c": b"e", "b": b""})
    assert client.get(f"/{link}/%ff").status_code == 400
    missing = client.get(f"/{link}/e++/x")
    assert message_of(missing) == "failed to download contents for path: /e++/x"


# What a path serves: (upload parameters, path, status, content or Location).
_SITE = {
    "index.html": _PAGE,
    "about.html": b"about",
    "img/index.html": b"img index",
    "img/a.png": b"png",
    "raw/x": b"x",
    "raw/y": b"y",
    "404.html": b"custom 404",
    "data.json": b"{}",
}


_ZIP = b"PK\x03\x04"
_INDEX = b"<!DOCTYPE html>"  # what programs get of a directory with a slash at its end


_OLD = {"tryfiles": ""}  # as early portals: default path logic only


_SPA = {"tryfiles": '["index.html","/about.html"]'}


_PAGES = {"errorpages": '{"404":"/404.html"}'}


_TABLE = [
    # default try files: index.html in each directory
    ({}, "", 308, "{}/"),
    ({}, "/", 200, _PAGE),
    ({}, "/about.html", 200, b"about"),
    ({}, "/img", 308, "img/"),
    ({}, "/img/", 200, b"img index"),
    ({}, "/img/a.png", 200, b"png"),
    ({}, "/raw", 200, _ZIP),
    ({}, "/raw/", 200, _INDEX),
    ({}, "/raw/x", 200, b"x"),
    ({}, "/nope", 404, None),
    ({}, "/nope/", 404, None),
    ({}, "/about.html/", 404, None),
    ({}, "?format=concat", 200, b"".join(_SITE.values())),
    ({}, "/img?format=concat", 200, b"img indexpng"),
    ({}, "/img?format=zip", 200, _ZIP),
    ({}, "?attachment=true", 200, _PAGE),
    # no try files: index.html of the root only
    (_OLD, "", 308, "{}/"),
    (_OLD, "/", 200, _PAGE),
    (_OLD, "/img", 200, _ZIP),
    ({"disabledefaultpath": "true"}, "", 200, _ZIP),
    ({"disabledefaultpath": "true"}, "/", 200, _INDEX),
    ({"disabledefaultpath": "true"}, "/?format=zip", 200, _ZIP),
    ({"disabledefaultpath": "true"}, "/?attachment=true", 200, _ZIP),
    ({"disabledefaultpath": "true"}, "/img", 200, _ZIP),
    # a default path of one's own
    ({"defaultpath": "about.html"}, "", 308, "{}/"),
    ({"defaultpath": "/about.html"}, "/", 200, b"about"),
    ({"defaultpath": "data.json"}, "", 200, b"{}"),
    ({"defaultpath": "about.html"}, "/img/", 200, _INDEX),
    # try files of one's own
    (_SPA, "/", 200, _PAGE),
    (_SPA, "/img/", 200, b"img index"),
    (_SPA, "/raw/", 200, b"about"),
    (_SPA, "/nope/deep", 200, b"about"),
    (_SPA, "/raw/x", 200, b"x"),
    (_SPA, "/raw?format=concat", 200, b"xy"),
    ({"tryfiles": '["data.json"]'}, "", 200, b"{}"),
    # error pages
    (_PAGES, "/nope", 404, b"custom 404"),
    (_PAGES, "/nope/", 404, b"custom 404"),
    (_PAGES, "/about.html", 200, b"about"),
    (_PAGES, "/nope?format=zip", 404, b"custom 404"),
]


@pytest.fixture(scope="module")
def sites(client: Client) -> dict[str, str]:
    """The site uploaded with each set of parameters, by these."""
    links: dict[str, str] = {}
    for params, *_ in _TABLE:
        key = json.dumps(params)
        if key not in links:
            links[key] = client.upload(_SITE, **params)
    return links


@pytest.mark.parametrize(
    ("params", "path", "status", "expected"),
    _TABLE,
    ids=[f"{'+'.join(p) or 'default'}:{path or '-'}" for p, path, *_ in _TABLE],
)
def test_what_a_path_serves(
    client: Client,
    sites: dict[str, str],
    params: dict[str, str],
    path: str,
    status: int,
    expected: str | bytes | None,
) -> None:
    """The rules of default path, try files, error pages and archives (docs/wire.md 4.3)."""
    link = sites[json.dumps(params)]
    answer = client.get(f"/{link}{path}", headers={"Accept-Encoding": "identity"})
    assert answer.status_code == status
    if isinstance(expected, str):
        assert answer.headers["Location"] == expected.format(link)
        assert_same_headers(client.head(f"/{link}{path}"), answer)
    elif expected is None:
        message_of(answer)
    elif expected == _INDEX:
        assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
        assert answer.content.startswith(_INDEX)
        agent = client.get(f"/{link}{path}", headers={"User-Agent": "Sia-Agent"})
        assert agent.content.startswith(_ZIP)
    elif expected == _ZIP:
        assert answer.headers["Content-Type"] == "application/zip"
        assert answer.content.startswith(_ZIP)
    else:
        assert answer.content == expected
    if status == 200:
        assert_same_headers(client.head(f"/{link}{path}"), answer)


def test_a_redirect_keeps_the_query(client: Client, sites: dict[str, str]) -> None:
    """And is relative, so that it holds behind any prefix."""
    link = sites["{}"]
    answer = client.get(f"/svc/skylink/{link}?timeout=5")
    assert (answer.status_code, answer.headers["Location"]) == (308, f"{link}/?timeout=5")
    assert client.get(f"/svc/skylink/{link}", follow_redirects=True).content == _PAGE


def test_a_redirect_stays_on_the_portal(client: Client) -> None:
    """A directory whose name looks like a scheme does not become one."""
    link = client.upload({"javascript:x/index.html": b"1", "b": b"2"})
    answer = client.get(f"/{link}/javascript:x")
    assert answer.headers["Location"] == "./javascript:x/"


def test_an_index_carries_the_metadata_of_the_whole(client: Client, sites: dict[str, str]) -> None:
    """And the name of the whole."""
    answer = client.get(f"/{sites['{}']}/")
    assert json.loads(answer.headers["svc-metadata"])["filename"] == "site"
    assert answer.headers["Content-Disposition"] == 'inline; filename="site"'
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"


def test_a_single_page_is_not_redirected(client: Client) -> None:
    """Only a site of several files needs the slash."""
    link = client.upload_file("index.html", _PAGE)
    assert client.get(f"/{link}").content == _PAGE
    assert client.get(f"/{link}/index.html").content == _PAGE


def test_a_raw_upload_has_no_paths(client: Client) -> None:
    """It is its content and nothing inside."""
    answer = client.post(
        "/svc/skyfile?filename=raw.txt", content=b"raw", headers={"Content-Type": "x/y"}
    )
    link = skylink_of(answer)
    served = client.get(f"/{link}")
    assert served.content == b"raw"
    assert served.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert client.get(f"/{link}/raw.txt").status_code == 404
