"""Which URLs there are, which endpoint a path leads to, and what is answered elsewhere."""

import pytest

from skymount.server.http.messages import Request, Response
from skymount.server.http_error import HttpError
from skymount.server.routes import Router
from skymount.wire.http.multipart import PartHeader
from tests.server.http_client import Client, message_of, request_of, skylink_of


@pytest.mark.parametrize(
    "url",
    ["/favicon.ico", "/svc", "/svc/", "/svc/unknown", "/svc/stats/x", "/svc/pin", "/foo/bar", "/%"],
)
def test_unknown_urls(client: Client, url: str) -> None:
    """404 as JSON."""
    answer = client.get(url)
    assert answer.status_code == 404
    message_of(answer)


def test_wrong_methods(client: Client) -> None:
    """405 as JSON, with what is allowed; bodies are read and dropped."""
    blob = client.upload_file("f", b"x")
    for method, url, allowed in (
        ("POST", f"/{blob}", "GET, HEAD"),
        ("DELETE", f"/svc/skylink/{blob}", "GET, HEAD"),
        ("PUT", "/svc/skyfile", "POST"),
        ("GET", "/svc/skyfile", "POST"),
        ("POST", "/skynet/root", "GET, HEAD"),
        ("POST", "/svc/blocklist", "GET, HEAD"),
    ):
        answer = client.request(method, url, content=b"x" * 300_000)
        assert answer.status_code == 405
        assert answer.headers["Allow"] == allowed
        message_of(answer)


@pytest.mark.parametrize("prefix", ["/svc", "/skynet"])
def test_endpoints_of_every_dialect(client: Client, prefix: str) -> None:
    """Each is known below the names of either family of portals."""
    link = client.upload_file("f", b"x")
    paths = ["stats", "blocklist", "portals", "skykeys"]
    paths += [f"{name}/{link}" for name in ("skylink", "metadata", "basesector")]
    for path in (*paths, f"trustless/basesector/{link}"):
        assert client.get(f"{prefix}/{path}").status_code == 200, path
    assert client.get(f"{prefix}/blocklist").json() == {"blacklist": None, "blocklist": []}
    assert client.get(f"{prefix}/portals").json() == {"portals": []}
    assert client.post(f"{prefix}/pin/{link}").status_code in (200, 204)
    for path in ("skyfile", "skyfile/any/where", "any/where"):
        stored = client.post_form([(PartHeader("file", "f"), b"x")], path=f"{prefix}/{path}")
        assert skylink_of(stored) == link


def test_paths_are_matched_as_they_were_sent(client: Client) -> None:
    """A slash that is encoded ends no segment: it is part of a name."""
    link = client.upload({"a/b": b"one"})
    assert client.get(f"/{link}/a/b").content == b"one"
    assert client.get(f"/{link}/a%2Fb").content == b"one"
    assert client.get(f"/{link}%2Fa/b").status_code == 404
    assert client.get(f"/svc%2Fskylink/{link}").status_code == 404


_LINK = "A" * 46


async def _first(request: Request) -> Response:
    raise AssertionError


async def _second(request: Request) -> Response:
    raise AssertionError


_ROUTER = Router(
    [
        ("/", {"GET": _first}),
        ("/a.b", {"GET": _first}),
        ("/a/{name}", {"GET": _first, "POST": _second}),
        ("/a/{name}/{path:path}", {"POST": _second}),
        ("/{link:skylink}", {"GET": _first}),
        ("/{link:skylink}/{path:path}", {"GET": _second}),
        ("/{rest:path}", {"PUT": _second}),
    ]
)


@pytest.mark.parametrize(
    ("method", "path", "variables"),
    [
        ("GET", "/", {}),
        ("HEAD", "/a.b", {}),
        ("PUT", "/axb", {"rest": "axb"}),
        ("POST", "/a/%2F", {"name": "%2F"}),
        ("POST", "/a/b/", {"name": "b", "path": ""}),
        ("POST", "/a/b//c", {"name": "b", "path": "/c"}),
        ("GET", f"/{_LINK}", {"link": _LINK}),
        ("GET", f"/{_LINK}/c/d", {"link": _LINK, "path": "c/d"}),
        ("PUT", f"/{_LINK}x", {"rest": f"{_LINK}x"}),
    ],
)
def test_a_path_is_matched_whole(method: str, path: str, variables: dict[str, str]) -> None:
    """And by the first pattern that fits."""
    request = request_of(path=path, method=method)
    _ROUTER.find(request)
    assert request.variables == variables


@pytest.mark.parametrize(
    ("method", "path", "status", "headers"),
    [
        ("POST", "/", 405, (("Allow", "GET, HEAD"),)),
        ("PUT", "/a/b", 405, (("Allow", "GET, POST, HEAD"),)),
        ("GET", "*", 404, ()),
        ("GET", "", 404, ()),
    ],
)
def test_no_endpoint(
    method: str, path: str, status: int, headers: tuple[tuple[str, str], ...]
) -> None:
    with pytest.raises(HttpError) as refused:
        _ROUTER.find(request_of(path=path, method=method))
    assert (refused.value.status, refused.value.headers) == (status, headers)
