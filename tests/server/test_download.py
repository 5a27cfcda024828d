"""Downloads: headers, ranges, conditions, and what a path serves."""

import email
import json

import httpx
import pytest

from skymount.wire.multipart import PartHeader
from skymount.wire.skylink import Skylink
from tests.server.http_client import Client, message_of, skylink_of

_CONTENT = bytes(range(256)) * 8
_PAGE = b"<h1>index</h1>"


@pytest.fixture(scope="module")
def blob(client: Client) -> str:
    """A file of 2 KiB."""
    return client.upload_file("blob.bin", _CONTENT, "application/x-blob")


@pytest.fixture(scope="module")
def large(client: Client) -> tuple[str, bytes]:
    """A file of 9 MiB, which lies behind a fan-out."""
    content = b"".join(n.to_bytes(4, "little") for n in range(9 << 18))
    return client.upload_file("large.bin", content), content


@pytest.mark.parametrize(
    "form", ["/{}", "/{}/", "/svc/skylink/{}", "/skynet/skylink/{}", "/skynet/skylink/{}/"]
)
def test_every_download_url_serves_the_same(client: Client, blob: str, form: str) -> None:
    """Both dialects and the bare form, base64 and base32, GET and HEAD with the same headers."""
    for link in (blob, Skylink.parse(blob).base32, Skylink.parse(blob).base32.upper()):
        answer = client.get(form.format(link))
        assert (answer.status_code, answer.content) == (200, _CONTENT)
        assert answer.headers["Content-Type"] == "application/x-blob"
        assert answer.headers["Content-Length"] == str(len(_CONTENT))
        assert answer.headers["Content-Disposition"] == 'inline; filename="blob.bin"'
        assert answer.headers["Accept-Ranges"] == "bytes"
        for name in ("Svc-Skylink", "Skynet-Skylink"):
            assert answer.headers[name] == blob
        stored = client.get(f"/svc/metadata/{blob}").content
        for name in (b"svc-metadata", b"skynet-file-metadata"):
            assert dict(answer.headers.raw)[name] == stored
        _assert_same_headers(client.head(form.format(link)), answer)


def _assert_same_headers(head: httpx.Response, answer: httpx.Response) -> None:
    """HEAD gives the headers of GET and no body."""
    assert head.status_code == answer.status_code
    assert head.content == b""
    assert _without_date(head) == _without_date(answer)


def _without_date(answer: httpx.Response) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in answer.headers.raw if name != b"date"]


def test_a_file_inside_carries_its_own_metadata(client: Client) -> None:
    """As in the example of wire notes 4.5."""
    link = client.upload({"a/1": b"xx", "a/2": b"yyy"})
    answer = client.get(f"/{link}/a/2")
    assert answer.content == b"yyy"
    assert answer.headers["svc-metadata"] == (
        '{"filename":"/a/2","length":3,"subfiles":{"a/2":{"filename":"a/2","len":3}}}'
    )
    assert answer.headers["Content-Disposition"] == 'inline; filename="2"'
    _assert_same_headers(client.head(f"/{link}/a/2"), answer)


def test_headers_can_be_chosen(client: Client, blob: str) -> None:
    """Without metadata, with the layout, as an attachment."""
    answer = client.get(f"/{blob}?no-response-metadata=true")
    assert "svc-metadata" not in answer.headers
    assert "skynet-file-metadata" not in answer.headers
    layout = client.get(f"/svc/basesector/{blob}").content[:99].hex()
    answer = client.get(f"/{blob}?include-layout=1")
    assert answer.headers["Svc-File-Layout"] == answer.headers["Skynet-File-Layout"] == layout
    for url in (f"/{blob}?attachment=true", f"/file/{blob}", f"/file/{blob}?attachment=0"):
        answer = client.get(url)
        assert answer.headers["Content-Disposition"] == 'attachment; filename="blob.bin"'


_SIZE = len(_CONTENT)


@pytest.mark.parametrize(
    ("asked", "start", "stop"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=5-9", 5, 10),
        ("bytes=2000-", 2000, _SIZE),
        ("bytes=-7", _SIZE - 7, _SIZE),
        ("bytes=-999999", 0, _SIZE),
        ("bytes=2040-99999", 2040, _SIZE),
        ("bytes=0-", 0, _SIZE),
    ],
)
def test_a_single_range(client: Client, blob: str, asked: str, start: int, stop: int) -> None:
    """206 with Content-Range, for GET and HEAD."""
    answer = client.get(f"/{blob}", headers={"Range": asked})
    assert (answer.status_code, answer.content) == (206, _CONTENT[start:stop])
    assert answer.headers["Content-Range"] == f"bytes {start}-{stop - 1}/{_SIZE}"
    _assert_same_headers(client.head(f"/{blob}", headers={"Range": asked}), answer)


@pytest.mark.parametrize("asked", ["bytes=2048-", "bytes=9-3", "bytes=x", "bytes=-0", "bytes="])
def test_an_impossible_range(client: Client, blob: str, asked: str) -> None:
    """416, and the size."""
    answer = client.get(f"/{blob}", headers={"Range": asked})
    assert answer.status_code == 416
    assert answer.headers["Content-Range"] == f"bytes */{_SIZE}"
    assert "range" in message_of(answer)


@pytest.mark.parametrize("asked", ["lines=0-1", "bytes=0-2047,0-2047", "bytes=" + "0-0," * 99])
def test_ranges_that_are_not_worth_it(client: Client, blob: str, asked: str) -> None:
    """Another unit, more than the whole, or very many: everything is sent."""
    answer = client.get(f"/{blob}", headers={"Range": asked})
    assert (answer.status_code, answer.content) == (200, _CONTENT)


def test_several_ranges(client: Client, large: tuple[str, bytes]) -> None:
    """multipart/byteranges, in the order asked, with a true Content-Length."""
    link, content = large
    size = len(content)
    asked = {"Range": "bytes=10-19,-5,5000000-5000002"}
    answer = client.get(f"/{link}", headers=asked)
    assert answer.status_code == 206
    assert answer.headers["Content-Length"] == str(len(answer.content))
    head = f"Content-Type: {answer.headers['Content-Type']}\r\n\r\n".encode()
    parts = email.message_from_bytes(head + answer.content).get_payload()
    assert isinstance(parts, list)
    expected = [(10, 20), (size - 5, size), (5_000_000, 5_000_003)]
    assert len(parts) == len(expected)
    for part, (start, stop) in zip(parts, expected, strict=True):
        assert part["Content-Range"] == f"bytes {start}-{stop - 1}/{size}"
        assert part["Content-Type"] == "application/octet-stream"
        assert part.get_payload(decode=True) == content[start:stop]
    _assert_same_headers(client.head(f"/{link}", headers=asked), answer)


def test_ranges_of_large_content(client: Client, large: tuple[str, bytes]) -> None:
    """Across the borders of sectors and of the pieces that are sent."""
    link, content = large
    assert client.get(f"/{link}").content == content
    for start, stop in [(4194300, 4194310), (1048575, 8388609), (9437183, 9437184)]:
        answer = client.get(f"/{link}", headers={"Range": f"bytes={start}-{stop - 1}"})
        assert answer.content == content[start:stop]


def test_a_range_in_the_query(client: Client, blob: str) -> None:
    """start and end, both or neither, not with a Range header."""
    answer = client.get(f"/{blob}?start=3&end=5")
    assert (answer.status_code, answer.content) == (206, _CONTENT[3:6])
    for query in ("start=3", "end=3", "start=5&end=3", "start=x&end=3"):
        assert client.get(f"/{blob}?{query}").status_code == 400
    answer = client.get(f"/{blob}?start=1&end=2", headers={"Range": "bytes=0-1"})
    assert answer.status_code == 400


def test_an_empty_file_ignores_ranges(client: Client) -> None:
    """There is nothing to divide."""
    link = client.upload_file("empty", b"")
    answer = client.get(f"/{link}", headers={"Range": "bytes=0-10"})
    assert (answer.status_code, answer.content) == (200, b"")


def test_conditional_requests(client: Client, blob: str) -> None:
    """304, 412 and If-Range by the entity tag."""
    whole = client.get(f"/{blob}")
    tag = whole.headers["ETag"]
    for given in (tag, f'"x", {tag}', "*", f"W/{tag}"):
        answer = client.get(f"/{blob}", headers={"If-None-Match": given})
        assert (answer.status_code, answer.content) == (304, b"")
        assert answer.headers["ETag"] == tag
    assert client.get(f"/{blob}", headers={"If-None-Match": '"x"'}).status_code == 200
    assert client.get(f"/{blob}", headers={"If-Match": '"x"'}).status_code == 412
    assert client.get(f"/{blob}", headers={"If-Match": tag}).status_code == 200
    ranged = {"Range": "bytes=0-1", "If-Range": tag}
    assert client.get(f"/{blob}", headers=ranged).status_code == 206
    ranged["If-Range"] = '"other"'
    assert client.get(f"/{blob}", headers=ranged).status_code == 200


def test_tags_differ_by_path_and_format(client: Client) -> None:
    """But not by method."""
    link = client.upload({"a": b"1", "b": b"2"})
    urls = [f"/{link}/a", f"/{link}/b", f"/{link}?format=tar", f"/{link}?format=zip"]
    tags = [client.get(url).headers["ETag"] for url in urls]
    assert len(set(tags)) == len(tags)
    assert [client.head(url).headers["ETag"] for url in urls] == tags


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("format=rar", "allowed values are: 'concat', 'tar', 'targz' and 'zip'"),
        ("timeout=901", "'timeout' parameter too high, maximum allowed timeout is 900s"),
        ("timeout=x", "unable to parse 'timeout' parameter"),
        ("timeout=-1", "unable to parse 'timeout' parameter"),
        ("attachment=yes", "unable to parse 'attachment' parameter"),
        ("timeout=%ff", "failed to parse query params"),
    ],
)
def test_bad_parameters(client: Client, blob: str, query: str, message: str) -> None:
    """400 with the message that portals give."""
    answer = client.get(f"/{blob}?{query}")
    assert answer.status_code == 400
    assert message in message_of(answer)


def test_timeouts_in_bounds_are_taken(client: Client, blob: str) -> None:
    """They mean nothing on a local disk."""
    for value in ("0", "30", "900", ""):
        assert client.get(f"/{blob}?timeout={value}").status_code == 200


def test_what_is_not_there(client: Client, blob: str) -> None:
    """404 for unknown content and paths, 400 for what is no skylink, all as JSON."""
    unknown = "A" * 46
    for url in (f"/{unknown}", f"/svc/skylink/{unknown}", f"/svc/basesector/{unknown}"):
        answer = client.get(url)
        assert answer.status_code == 404
        assert message_of(answer) == "failed to fetch skylink: root not found"
    answer = client.get(f"/{blob}/nothing/here")
    assert answer.status_code == 404
    assert message_of(answer) == "failed to download contents for path: /nothing/here"
    for url in ("/svc/skylink/short", f"/{'_' * 46}", f"/{'z' * 55}"):
        answer = client.get(url)
        assert answer.status_code == 400
        assert message_of(answer).startswith("error parsing skylink: ")
    assert client.get(f"/{Skylink.v2(bytes(32))}").status_code == 404


@pytest.mark.parametrize(
    "url", ["/", "/favicon.ico", "/svc", "/svc/", "/svc/unknown", "/foo/bar", "//", "/%"]
)
def test_unknown_urls(client: Client, url: str) -> None:
    """404 as JSON."""
    answer = client.get(url)
    assert answer.status_code == 404
    message_of(answer)


def test_wrong_methods(client: Client, blob: str) -> None:
    """405 as JSON, with what is allowed; bodies are read and dropped."""
    for method, url, allowed in (
        ("POST", f"/{blob}", "GET, HEAD"),
        ("DELETE", f"/svc/skylink/{blob}", "GET, HEAD"),
        ("PUT", "/svc/skyfile", "POST"),
        ("GET", "/svc/skyfile", "POST"),
        ("POST", "/skynet/root", "GET, HEAD"),
    ):
        answer = client.request(method, url, content=b"x" * 300_000)
        assert answer.status_code == 405
        assert answer.headers["Allow"] == allowed
        message_of(answer)


def test_types_are_stored_guessed_or_sniffed(client: Client) -> None:
    """In that order; a stored type holds for files inside too."""
    link = client.upload({"a.css": b"x", "noext": b"\x89PNG\r\n\x1a\nxx", "text": b"hello"})
    assert client.get(f"/{link}/a.css").headers["Content-Type"] == "text/css; charset=utf-8"
    assert client.get(f"/{link}/noext").headers["Content-Type"] == "image/png"
    assert client.get(f"/{link}/text").headers["Content-Type"] == "text/plain; charset=utf-8"
    link = skylink_of(
        client.post_form(
            [(PartHeader("files[]", "a.css", "x/stored"), b"x"), (PartHeader("files[]", "b"), b"")],
            {"filename": "d"},
        )
    )
    assert client.get(f"/{link}/a.css").headers["Content-Type"] == "x/stored"


def test_paths_are_decoded_like_a_query(client: Client) -> None:
    """A plus is a space, %2B a plus, %2F a slash; bad UTF-8 is refused."""
    link = client.upload({"a b": b"space", "a+b": b"plus", "d/e": b"deep"})
    assert client.get(f"/{link}/a+b").content == b"space"
    assert client.get(f"/{link}/a%20b").content == b"space"
    assert client.get(f"/{link}/a%2Bb").content == b"plus"
    assert client.get(f"/{link}/d%2Fe").content == b"deep"
    assert client.get(f"/{link}/%ff").status_code == 400


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
    ({}, "/raw/", 200, _ZIP),
    ({}, "/raw/x", 200, b"x"),
    ({}, "/nope", 404, None),
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
    ({"disabledefaultpath": "true"}, "/", 200, _ZIP),
    ({"disabledefaultpath": "true"}, "/img", 200, _ZIP),
    # a default path of one's own
    ({"defaultpath": "about.html"}, "", 308, "{}/"),
    ({"defaultpath": "/about.html"}, "/", 200, b"about"),
    ({"defaultpath": "data.json"}, "", 200, b"{}"),
    ({"defaultpath": "about.html"}, "/img/", 200, _ZIP),
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
    """The rules of default path, try files, error pages and archives (wire notes 4.3)."""
    link = sites[json.dumps(params)]
    answer = client.get(f"/{link}{path}", headers={"Accept-Encoding": "identity"})
    assert answer.status_code == status
    if isinstance(expected, str):
        assert answer.headers["Location"] == expected.format(link)
        _assert_same_headers(client.head(f"/{link}{path}"), answer)
    elif expected is None:
        message_of(answer)
    elif expected == _ZIP:
        assert answer.headers["Content-Type"] == "application/zip"
        assert answer.content.startswith(_ZIP)
    else:
        assert answer.content == expected
    if status == 200:
        _assert_same_headers(client.head(f"/{link}{path}"), answer)


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
