"""What a mount says of portals that cannot be used: the reason, and what to do."""

import functools
import socket
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import trio
import trustme

from skymount.errors import NoPortalError, NotFoundError
from skymount.portal.http.client import HttpClient
from skymount.portal.http.portal_check import Recognition, problem_with
from skymount.settings import PortalOptions
from skymount.wire.dialect import SVC, Dialect
from skymount.wire.http import requests
from tests.fakes.portal import FakePortal, Reply, Request, error, running

LIMIT = 10.0


class _Page(BaseHTTPRequestHandler):
    """A web server that is no portal."""

    def __init__(self, status: int, *args: object) -> None:
        self._status = status
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        body = b"<!doctype html><h1>Hello</h1>"
        self.send_response(self._status)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


class _Server(HTTPServer):
    def handle_error(self, *args: object) -> None:
        """Clients that do not like the certificate go away."""


@pytest.fixture
def web_server(request: pytest.FixtureRequest) -> Iterator[HTTPServer]:
    server = _Server(("127.0.0.1", 0), functools.partial(_Page, getattr(request, "param", 200)))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def url_of(server: HTTPServer, scheme: str = "http") -> str:
    return f"{scheme}://127.0.0.1:{server.server_port}"


async def problem(url: str, limit: float = LIMIT, **options: object) -> str:
    parsed = PortalOptions.parse(url, retries=0, **options)  # type: ignore[arg-type]
    http = HttpClient(url, parsed)
    try:
        return await problem_with(http, limit)
    finally:
        await http.aclose()


async def test_a_portal_that_answers_is_no_problem() -> None:
    async with running(FakePortal()) as portal:
        assert await problem(portal.url) == ""


@pytest.mark.parametrize("web_server", [200, 404], indirect=True)
async def test_another_server(web_server: HTTPServer) -> None:
    """M3: or that is no portal is a warning in one line, which says why and what to do."""
    said = await problem(url_of(web_server))
    assert said.startswith(f"{url_of(web_server)}: the server ")
    assert said.endswith("; is this the address of a portal?")


class _OtherDialect(FakePortal):
    """A portal of the dialect skynet, whose site answers all else."""

    def answer(self, request: Request) -> Reply:
        header = (b"Skynet-Portal-Api", b"https://portal.example")
        if request.path == "/skynet/stats":
            return Reply(200, (header,), b"{}")
        if request.path.startswith("/svc/"):
            return Reply(404, (header, (b"Content-Type", b"text/html")), b"<html>no such page")
        return error(404, "failed to fetch skylink").with_header(*header)


async def test_a_portal_of_another_dialect() -> None:
    """C18: It is known by its own answers, also after it said that it lacks content."""
    async with running(_OtherDialect()) as portal:
        http = HttpClient(portal.url, PortalOptions.parse(portal.url))
        for path, kind in (("/link", NotFoundError), ("/svc/metadata/link", NoPortalError)):
            with pytest.raises(kind) as caught:
                await http.fetch(requests.Request("GET", path), 100)
        await http.aclose()
    assert caught.value.advice == 'set dialect = "skynet"'


async def test_a_server_that_is_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert await problem(url, 0.2) == (
            f"{url} does not answer yet: silent for 0.2 s; the tree works once it does"
        )


async def test_https_to_an_http_port(web_server: HTTPServer) -> None:
    said = await problem(url_of(web_server, "https"))
    assert "nobody speaks TLS there: write http:// in place of https://" in said


async def test_a_certificate_that_is_not_trusted(web_server: HTTPServer, tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    web_server.socket = context.wrap_socket(web_server.socket, server_side=True)
    url = url_of(web_server, "https")
    said = await problem(url)
    assert said.startswith(f"{url}: ")
    assert "certificate" in said
    assert said.count("ca_file or SSL_CERT_FILE") == said.count("ca_file") == 1
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    trusted = await problem(url, ca_file=str(tmp_path / "ca.pem"))
    assert "the server sends a web page" in trusted


async def test_a_server_that_is_silent_when_in_doubt(autojump_clock: object) -> None:
    """C18, R10: It is waited for shortly, and once, however many operations are in doubt."""
    asked = []

    async def judge(dialect: Dialect) -> bool | None:
        asked.append(dialect)
        await trio.sleep_forever()
        return False

    recognition = Recognition(judge)
    begun = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(recognition.stranger, SVC)
    assert await recognition.stranger(SVC) is None
    assert (trio.current_time() - begun, asked) == (2, [SVC])


async def test_a_verdict_does_not_outlast_its_time(autojump_clock: object) -> None:
    """C18: What was no portal is asked again, and is believed where it gives no answer."""
    verdicts = iter([False, False, None])

    async def judge(_: Dialect) -> bool | None:
        return next(verdicts)

    recognition = Recognition(judge)
    assert await recognition.stranger(SVC) is not None
    assert await recognition.stranger(SVC) is not None
    await trio.sleep(31)
    assert await recognition.stranger(SVC) is None
