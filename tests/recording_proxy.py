"""A proxy before a portal: it counts what passes, and changes it as it is told. In threads."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

_DROPPED = {"connection", "content-length", "transfer-encoding", "date", "server"}


@dataclass
class RecordingProxy:
    """What passed, and how answers are changed."""

    target: str
    """The portal's URL; may be changed."""
    url: str = ""
    requests: list[tuple[str, str, int]] = field(default_factory=list)
    """Method, target, and bytes of the answer's body."""
    change: Callable[[str, bytes], bytes] = lambda target, body: body
    """Returns what is sent in place of a body; of the same length."""
    is_gone: bool = False
    """Whether it closes each connection without an answer."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def sent(self) -> int:
        """Bytes of all bodies."""
        return sum(size for _, _, size in self.requests)

    def record(self, method: str, target: str, size: int) -> None:
        with self._lock:
            self.requests.append((method, target, size))


def _handler(proxy: RecordingProxy, client: httpx.Client) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if proxy.is_gone:
                self.close_connection = True
                return
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            headers = [(k, v) for k, v in self.headers.items() if k.lower() != "host"]
            answer = client.request(
                self.command, proxy.target + self.path, content=body, headers=headers
            )
            sent = proxy.change(self.path, answer.content)
            proxy.record(self.command, self.path, len(sent))
            self.send_response_only(answer.status_code)
            for name, value in answer.headers.multi_items():
                if name not in _DROPPED:
                    self.send_header(name, value)
            size = answer.headers.get("content-length") if self.command == "HEAD" else len(sent)
            if size is not None and answer.status_code != 204:
                self.send_header("Content-Length", str(size))
            self.end_headers()
            self.wfile.write(sent)

        do_HEAD = do_POST = do_GET  # noqa: N815  # names of the base class

        def log_message(self, *args: Any) -> None:
            pass

    return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients may go away."""


@contextmanager
def recording_proxy(target: str) -> Iterator[RecordingProxy]:
    """Run a proxy before the portal with that URL."""
    proxy = RecordingProxy(target)
    with httpx.Client(timeout=60) as client:
        server = _Server(("127.0.0.1", 0), _handler(proxy, client))
        proxy.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield proxy
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
