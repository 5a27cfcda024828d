"""A proxy before an object store that is slow, or that fails now and then."""

import http.client
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeAlias
from urllib.parse import urlsplit

CUT = -1
"""A response that breaks off in its body."""
RESET = -2
"""A connection that ends without a response, after the store has done what was asked."""

Request: TypeAlias = tuple[str, str]
"""Method, and path with query."""

_CODES = {500: "InternalError", 503: "SlowDown"}
_PASSED_ON = ("content-type", "etag", "last-modified", "content-range", "accept-ranges")


@dataclass
class FaultyStore:
    """What happens to requests, and which came."""

    url: str = ""
    latency: float = 0.0  # seconds
    page_size: int = 0
    """Of lists, at a store that ignores signatures; 0 for what the client wants."""
    decide: Callable[[Request], int] = lambda request: 0
    """Returns what a request gets in place of its response: an error status, CUT, RESET, or 0."""
    requests: Counter[Request] = field(default_factory=Counter)
    """How often each came."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, request: Request) -> int:
        """Count a request; return what it gets."""
        with self._lock:
            self.requests[request] += 1
            return self.decide(request)


@contextmanager
def faulty_store(upstream: str) -> Iterator[FaultyStore]:
    """Run a proxy before the store at a URL."""
    faults = FaultyStore()
    address = urlsplit(upstream).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1
        disable_nagle_algorithm = True

        def log_message(self, *_: object) -> None:
            pass

        def handle(self) -> None:
            with suppress(OSError):
                super().handle()

        def respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fault = faults.note((self.command, self.path))
            time.sleep(faults.latency)
            if fault > 0:
                text = f"<Error><Code>{_CODES.get(fault, 'Other')}</Code></Error>".encode()
                self._send(fault, {"Content-Type": "application/xml"}, text)
                return
            connection = http.client.HTTPConnection(address, timeout=60)
            path = self.path
            if faults.page_size and "list-type=2" in path:
                path += f"&max-keys={faults.page_size}"
            connection.request(self.command, path, body, dict(self.headers))
            answer = connection.getresponse()
            content = answer.read()
            connection.close()
            kept = {name: text for name, text in answer.getheaders() if name.lower() in _PASSED_ON}
            if self.command == "HEAD":
                kept["Content-Length"] = answer.getheader("Content-Length") or "0"
            if fault == RESET:
                self.close_connection = True
                return
            self._send(answer.status, kept, content, is_cut=fault == CUT)

        def _send(
            self, status: int, headers: dict[str, str], body: bytes, *, is_cut: bool = False
        ) -> None:
            self.send_response(status)
            for name, text in headers.items():
                self.send_header(name, text)
            if "Content-Length" not in headers:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if is_cut:
                body = body[: len(body) // 2]
                self.close_connection = True
            if self.command != "HEAD":
                self.wfile.write(body)
            self.wfile.flush()

    for method in ("GET", "HEAD", "PUT", "POST", "DELETE"):
        setattr(Handler, f"do_{method}", Handler.respond)

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

    server = Server(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever, args=(0.05,))
    serving.start()
    faults.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield faults
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
