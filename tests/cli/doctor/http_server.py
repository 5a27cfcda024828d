"""A small real HTTP server that answers everything in the same way, over TLS if told to."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import trustme


class _Handler(BaseHTTPRequestHandler):
    date: ClassVar[str] = ""
    body: ClassVar[bytes] = b"{}"
    path_known: ClassVar[str] = ""
    kind: ClassVar[str] = ""
    redirect: ClassVar[str] = ""

    def do_GET(self) -> None:
        """Answer, with another Date than now if there is one."""
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        known = self.path.startswith(self.path_known)
        self.send_response_only(302 if self.redirect else 200 if known else 404)
        self.send_header("Date", self.date or self.date_time_string())
        self.send_header("Content-Length", str(len(self.body)))
        if self.kind:
            self.send_header("Content-Type", self.kind)
        if self.redirect:
            self.send_header("Location", self.redirect)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(self.body)

    do_HEAD = do_POST = do_GET  # noqa: N815 - the names that the library looks for

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def tls_server(authority: trustme.CA, expires: datetime) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    cert = authority.issue_cert("127.0.0.1", not_after=expires)
    cert.configure_cert(context)
    return context


@contextmanager
def http_server(
    *,
    date: str = "",
    body: bytes = b"{}",
    path: str = "/",
    tls: ssl.SSLContext | None = None,
    kind: str = "",
    redirect: str = "",
) -> Iterator[str]:
    """Run it on a free port of 127.0.0.1; yields its URL. Paths that do not begin so are 404.

    `kind` is the type of the body, and `redirect` where it sends everybody.
    """
    fields = {"date": date, "body": body, "path_known": path, "kind": kind, "redirect": redirect}
    handler = type("Handler", (_Handler,), fields)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        if tls is not None:
            server.socket = tls.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"{'https' if tls else 'http'}://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
