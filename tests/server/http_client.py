"""The tools to talk to a portal: forms written by the codec, answers checked."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import trio

from skymount.server.http.access_log import Visit
from skymount.server.http.clients import Asker, Requester, RequestHost
from skymount.server.http.messages import Request
from skymount.server.http.parsing import Headers
from skymount.wire.http.multipart import PartHeader
from tests.portal_process import portal_process

BOUNDARY = "----a-boundary-of-tests"
FORM_TYPE = f"multipart/form-data; boundary={BOUNDARY}"


def form(*parts: tuple[PartHeader, bytes]) -> bytes:
    pieces = [
        f"--{BOUNDARY}\r\n".encode() + part.encode() + b"\r\n" + content + b"\r\n"
        for part, content in parts
    ]
    return b"".join([*pieces, f"--{BOUNDARY}--\r\n".encode()])


class Client(httpx.Client):
    """An HTTP client that knows how to upload."""

    def post_form(
        self,
        parts: Sequence[tuple[PartHeader, bytes]],
        params: dict[str, str] | None = None,
        path: str = "/svc/skyfile",
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        return self.post(
            path,
            params=params,
            content=form(*parts),
            headers={"Content-Type": FORM_TYPE, **(headers or {})},
        )

    def upload(self, files: dict[str, bytes], **params: str) -> str:
        """Upload a directory of these files; return its skylink."""
        parts = [(PartHeader("files[]", name), content) for name, content in files.items()]
        return skylink_of(self.post_form(parts, {"filename": "site", **params}))

    def upload_file(self, name: str, content: bytes, contenttype: str = "", **params: str) -> str:
        """Upload a single file; return its skylink."""
        return skylink_of(
            self.post_form([(PartHeader("file", name, contenttype), content)], params)
        )


@contextmanager
def portal_client(data: Path, *options: str, **more: Any) -> Iterator[Client]:
    """Run a portal of one's own; yield a client of it."""
    with (
        portal_process(data, *options, **more) as portal,
        Client(base_url=portal.url, timeout=60) as client,
    ):
        yield client


def skylink_of(response: httpx.Response) -> str:
    """Return the skylink that an upload gave."""
    assert response.status_code == 200, response.text
    found = response.json()["skylink"]
    assert isinstance(found, str)
    return found


def message_of(response: httpx.Response) -> str:
    """Return the message of an error, whose form is checked."""
    assert response.headers["content-type"] == "application/json; charset=utf-8"
    assert response.content.endswith(b"\n")
    body: dict[str, Any] = response.json()
    assert list(body) == ["message"]
    return str(body["message"])


def stored_files(data: Path) -> set[Path]:
    """Return every file below the data directory of a portal, relative to it."""
    return {path.relative_to(data) for path in data.rglob("*") if path.is_file()}


def assert_same_headers(head: httpx.Response, answer: httpx.Response) -> None:
    """HEAD gives the headers of GET and no body."""
    assert head.status_code == answer.status_code
    assert head.content == b""
    assert _without_date(head) == _without_date(answer)


def _without_date(answer: httpx.Response) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in answer.headers.raw if name.lower() != b"date"]


class _Body:
    """A body that comes in these pieces, and then no more."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = [*pieces]

    async def receive(self) -> bytes:
        if not self._pieces:
            await trio.sleep_forever()
        return self._pieces.pop(0)


def request_of(
    *pieces: bytes,
    headers: Mapping[str, str] | None = None,
    query: str = "",
    path: str = "/",
    method: str = "GET",
    host: str = "localhost:1",
) -> Request:
    """Return a request that the access rules let through, whose body comes in these pieces."""
    given = Headers([*(headers or {}).items()])
    body, visit = _Body(*pieces), Visit()
    request = Request(method, path, query, "1.1", given, body, "127.0.0.1", host, visit)
    request.asker = Asker("127.0.0.1", Requester.of(given), "", True, RequestHost.parse(host))
    return request
