"""A portal's registry over HTTP, in the test's own process, that misbehaves as told and holds
requests at any step.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from skymount.errors import MalformedError, RevisionError
from skymount.wire.registry_entry import SignedEntry, check_update, parse_public_key, parse_tweak
from tests.fakes.entries import Key, forged
from tests.ports import unused_port
from tests.skymount_process import LIMIT

_DELAYS = {"slow": 0.03, "late": 4.0}  # seconds, by fault


class Gate:
    """Where one request of a method is held, the first one or a later one."""

    def __init__(self, method: str, number: int) -> None:
        self.method = method
        self.left = number
        self.reached = threading.Event()
        self.opened = threading.Event()
        self.drops = False
        """Whether the request goes no further once the gate opens."""

    def wait(self) -> None:
        """Wait until a request is held here."""
        assert self.reached.wait(LIMIT), "no such request came"

    def open(self, *, drops: bool = False) -> None:
        """Let it go on, or drop it."""
        self.drops = drops
        self.opened.set()


class ScriptedPortal:
    """One portal's registry. `faults` are taken from the front, one for each request:

    "" none; "down" is a status of 503, "denied" of 403; "drop" ends the connection before anything
    is done, "lost" after; "deaf" fails if it is a post; "twice" is done twice, and the second
    answer is given; "stale" answers with the entry before; "forged" changes the data; "missing"
    denies it; "slow" takes a moment; "late" takes seconds.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.stored: dict[Key, list[SignedEntry]] = {}
        self.ever: list[SignedEntry] = []
        """All that was ever stored."""
        self.posts: list[SignedEntry] = []
        """All that came and was looked at, whatever became of it."""
        self.gets = 0
        self.faults: list[str] = []
        self.always = ""
        """The fault of every request for which there is no other."""
        self.used: list[str] = []
        """The faults that requests had so far."""
        self.before: Callable[[], None] = lambda: None
        """Called before each request is handled."""
        self.gate_before: Gate | None = None
        self.gate_after: Gate | None = None
        """Where the next request is held before it is handled, or before it is answered."""
        self._server = _Server(("127.0.0.1", unused_port()), _Handler)
        self._server.portal = self
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        for gate in (self.gate_before, self.gate_after):
            if gate is not None:
                gate.open()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def hold(self, method: str, *, answered: bool, number: int = 1) -> Gate:
        """Hold the next request of that method, or a later one: before it is handled, or
        before it is `answered`.
        """
        gate = Gate(method, number)
        if answered:
            self.gate_after = gate
        else:
            self.gate_before = gate
        return gate

    def set(self, signed: SignedEntry) -> None:
        """Take an entry, as from somebody else; RevisionError when it is refused."""
        history = self.stored.setdefault((signed.public_key, signed.entry.tweak), [])
        check_update(history[-1].entry if history else None, signed.verify().entry)
        history.append(signed)
        self.ever.append(signed)

    def latest(self, public_key: bytes, tweak: bytes) -> SignedEntry | None:
        history = self.stored.get((public_key, tweak))
        return history[-1] if history else None

    # --- what a request gets: (status, body), or None for the end of the connection

    def handle(self, method: str, target: str, body: bytes) -> tuple[int, bytes] | None:
        with self.lock:
            fault = self.faults.pop(0) if self.faults else self.always
            if fault:
                self.used.append(fault)
            self.before()
        if fault in _DELAYS:
            time.sleep(_DELAYS[fault])
        if _is_dropped(self.gate_before, method):
            return None
        if fault == "drop":
            return None
        if fault == "down" or (fault == "deaf" and method == "POST"):
            return _refusal(503, "the portal is down")
        if fault == "denied":
            return _refusal(403, "denied")
        if urlsplit(target).path != "/svc/registry":
            return _refusal(404, "nothing here")
        with self.lock:
            answer = self._post(body, fault) if method == "POST" else self._get(target, fault)
        if _is_dropped(self.gate_after, method) or fault == "lost":
            return None
        return answer

    def _get(self, target: str, fault: str) -> tuple[int, bytes]:
        self.gets += 1
        query = parse_qs(urlsplit(target).query)
        key = (parse_public_key(query["publickey"][0]), parse_tweak(query["datakey"][0]))
        history = self.stored.get(key, [])
        if fault == "missing" or not history or (fault == "stale" and len(history) == 1):
            return _refusal(404, "registry entry not found")
        found = history[-2 if fault == "stale" else -1]
        if fault == "forged":
            found = replace(found, entry=forged(found.entry))
        return 200, found.encode_answer()

    def _post(self, body: bytes, fault: str) -> tuple[int, bytes]:
        signed = SignedEntry.parse_update(body)
        self.posts.append(signed)
        for _ in range(2 if fault == "twice" else 1):
            try:
                self.set(signed)
            except (RevisionError, MalformedError) as error:
                return _refusal(400, f"Unable to update the registry: {error}")
        return 204, b""


def _refusal(status: int, message: str) -> tuple[int, bytes]:
    return status, json.dumps({"message": message}).encode()


def _is_dropped(gate: Gate | None, method: str) -> bool:
    """Hold a request if it is the one of its method for which the gate is."""
    if gate is None or gate.method != method:
        return False
    gate.left -= 1
    if gate.left:
        return False
    gate.reached.set()
    assert gate.opened.wait(LIMIT)
    return gate.drops


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    portal: ScriptedPortal

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is none of our business."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        answer = self.server.portal.handle(self.command, self.path, body)
        if answer is None:
            self.close_connection = True
            return
        with suppress(OSError):
            status, text = answer
            self.send_response(status)
            if status != 204:
                self.send_header("Content-Length", str(len(text)))
                self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(text)

    do_GET = do_POST = do_HEAD = _answer  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


@contextmanager
def scripted_portal() -> Iterator[ScriptedPortal]:
    portal = ScriptedPortal()
    portal.start()
    try:
        yield portal
    finally:
        portal.close()
