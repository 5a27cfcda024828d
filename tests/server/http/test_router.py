"""Which handler a path leads to."""

import pytest

from skymount.server.http.messages import Request, Response
from skymount.server.http_error import HttpError
from skymount.server.routes import Router
from tests.server.http_client import request_of

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
