"""Many clients at once, most of which read nothing: what a portal takes is bounded."""

import selectors
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from tests.portal_process import PortalProcess, portal_process
from tests.server.http_client import Client
from tests.server.raw_connection import PATIENCE, connect, eventually

_CLIENTS = 300
_SIZE = 100_000_000  # bytes of what each of them asks for
_PART = 5_000_000
_MEMORY = 150_000_000
_GIVEN_BACK = 30_000_000  # bytes above those before the clients came
_ADDRESSES = ("prlimit", f"--as={600 << 20}")
_DESCRIPTORS = ("prlimit", "--nofile=64")
_CONNECTIONS = 100  # more than that
_CUT_OFF = "read nothing"  # in the log
_SMALL = b"small" * 100


@dataclass(frozen=True)
class _Store:
    """The directory of a portal that does not run, and paths of what is in it."""

    data: Path
    content: bytes = field(repr=False)
    paths: Mapping[str, str]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> _Store:
    data = tmp_path_factory.mktemp("many") / "data"
    content = Random(1).randbytes(_SIZE)
    with portal_process(data) as portal, Client(base_url=portal.url, timeout=PATIENCE) as client:
        client.post("/svc/createskykey", data={"name": "key", "type": "private-id"})
        halves = {"a": content[: _SIZE // 2], "b": content[_SIZE // 2 :]}
        paths = {
            "small": client.upload_file("small", _SMALL),
            "plain": client.upload_file("plain", content),
            "encrypted": client.upload_file("encrypted", content, skykeyname="key"),
            "archive": client.upload(halves) + "?format=tar",
        }
    return _Store(data, content, paths)


@contextmanager
def _running(
    store: _Store, folder: Path, prefix: tuple[str, ...] = (), **settings: object
) -> Iterator[tuple[PortalProcess, Client, Path]]:
    """Run a portal on that directory; yields it, a client, and its log, which has no traceback."""
    log = folder / "log"
    with (
        log.open("wb") as stderr,
        portal_process(store.data, prefix=prefix, log=stderr, settings=settings or None) as portal,
        Client(base_url=portal.url, timeout=PATIENCE) as client,
    ):
        assert client.get(f"/{store.paths['small']}").content == _SMALL
        yield portal, client, log
        assert portal.process.poll() is None
    assert "Traceback" not in log.read_text()


@contextmanager
def _asking(url: str, path: str, count: int, header: str = "") -> Iterator[list[socket.socket]]:
    """Open connections, each of which has asked for that."""
    with ExitStack() as opened:
        found = list[socket.socket]()
        for _ in range(count):
            connection = opened.enter_context(connect(url))
            request = f"GET /{path} HTTP/1.1\r\nHost: localhost\r\n{header}\r\n"
            connection.sendall(request.encode())
            found.append(connection)
        yield found


def _statuses(connections: list[socket.socket]) -> list[int]:
    """Return the status that each got, in time for all together."""
    deadline, found = time.monotonic() + PATIENCE, list[int]()
    for connection in connections:
        connection.settimeout(max(0.01, deadline - time.monotonic()))
        start = connection.recv(13, socket.MSG_PEEK | socket.MSG_WAITALL)
        assert start.startswith(b"HTTP/1.1 ")
        found.append(int(start[9:12]))
    return found


def _assert_given_back(portal: PortalProcess, before: int) -> None:
    eventually(lambda: portal.rss("VmRSS") < before + _GIVEN_BACK)


@pytest.mark.parametrize(
    ("kind", "prefix"),
    [("plain", ()), ("encrypted", ()), ("archive", ()), ("plain", _ADDRESSES)],
    ids=["plain", "encrypted", "archive", "few addresses"],
)
def test_clients_that_read_nothing(
    store: _Store, tmp_path: Path, kind: str, prefix: tuple[str, ...]
) -> None:
    """They take little memory, which is given back, and others are answered meanwhile."""
    with _running(store, tmp_path, prefix) as (portal, client, _):
        before, path = portal.rss("VmRSS"), f"/{store.paths[kind]}"
        with _asking(portal.url, path[1:], _CLIENTS) as connections:
            assert _statuses(connections) == [200] * _CLIENTS
            assert client.get(f"/{store.paths['small']}").content == _SMALL
            whole = client.get(path).content
            parts = [store.content[: _SIZE // 2], store.content[_SIZE // 2 :]]
            if kind != "archive":
                parts = [store.content]
            assert all(part in whole for part in parts), len(whole)
            assert portal.rss() < _MEMORY
        _assert_given_back(portal, before)
        assert client.get(f"/{store.paths['small']}").content == _SMALL


@pytest.mark.parametrize("kind", ["plain", "encrypted"])
def test_clients_that_read(store: _Store, tmp_path: Path, kind: str) -> None:
    """As many downloads at once, each of which gets what it has asked for."""
    expected = store.content[-_PART:]
    with _running(store, tmp_path) as (portal, _, _), selectors.DefaultSelector() as reading:
        before = portal.rss("VmRSS")
        header = f"Range: bytes=-{_PART}\r\nConnection: close\r\n"
        with _asking(portal.url, store.paths[kind], _CLIENTS, header) as connections:
            found = {connection: bytearray() for connection in connections}
            for connection in connections:
                reading.register(connection, selectors.EVENT_READ)
            while reading.get_map():
                ready = reading.select(PATIENCE)
                assert ready, "nothing came for a long time"
                for key, _ in ready:
                    data = key.fileobj.recv(1 << 20)
                    found[key.fileobj] += data
                    if not data:
                        reading.unregister(key.fileobj)
                        head, _, body = found.pop(key.fileobj).partition(b"\r\n\r\n")
                        assert head.startswith(b"HTTP/1.1 206 ")
                        is_right = body == expected
                        assert is_right, len(body)
        assert portal.rss() < _MEMORY
        _assert_given_back(portal, before)


def test_more_clients_than_descriptors(store: _Store, tmp_path: Path) -> None:
    """Those beyond get 503 after a while; when the others have left all are served."""
    with _running(store, tmp_path, _DESCRIPTORS) as (portal, client, _):
        with _asking(portal.url, store.paths["plain"], _CONNECTIONS) as connections:
            assert {*_statuses(connections)} == {200, 503}
        small = f"/{store.paths['small']}"
        eventually(lambda: client.get(small, headers={"Connection": "close"}).status_code == 200)
        for _ in range(_CONNECTIONS):
            with Client(base_url=portal.url, timeout=PATIENCE) as other:
                assert other.get(small).content == _SMALL


def test_idle_connections_leave_room(store: _Store, tmp_path: Path) -> None:
    """Each new client is answered, though more than there are descriptors keep a connection."""
    with _running(store, tmp_path, _DESCRIPTORS) as (portal, _, _), ExitStack() as idle:
        for _ in range(_CONNECTIONS):
            (connection,) = idle.enter_context(_asking(portal.url, store.paths["small"], 1))
            assert _statuses([connection]) == [200]


def test_idle_connections_leave_room_where_others_were_refused(
    store: _Store, tmp_path: Path
) -> None:
    """A client is answered as soon as one that was served before has got all it asked for."""
    path, part = store.paths["plain"], f"Range: bytes=-{20 << 20}\r\n"
    with (
        _running(store, tmp_path, _DESCRIPTORS) as (portal, _, _),
        _asking(portal.url, path, _CONNECTIONS, part) as connections,
    ):
        statuses = _statuses(connections)
        assert {*statuses} == {206, 503}
        for connection, status in zip(connections, statuses, strict=True):
            size = 0
            while status == 206 and size < 20 << 20:
                size += len(connection.recv(1 << 20))
        with _asking(portal.url, store.paths["small"], 1) as [last]:
            assert _statuses([last]) == [200]


def test_long_paths_are_not_remembered(store: _Store, tmp_path: Path) -> None:
    """Paths that all lead to one page take no memory once they are answered."""
    with _running(store, tmp_path) as (portal, client, _):
        link = client.upload({"index.html": b"hello"}, tryfiles='["/index.html"]')
        rest = "/\N{PILE OF POO}/" + "x" * 60_000
        assert client.get(f"/{link}/0{rest}").content == b"hello"
        before = portal.rss("VmRSS")
        for number in range(1000):
            assert client.get(f"/{link}/{number}{rest}").status_code == 200
        assert portal.rss("VmRSS") < before + _GIVEN_BACK


def test_who_reads_nothing_is_cut_off(store: _Store, tmp_path: Path) -> None:
    """After `send_timeout`, and the log says so. Who reads slowly is not."""
    with _running(store, tmp_path, send_timeout=5.0) as (portal, client, log):
        path = store.paths["plain"]
        with client.stream("GET", f"/{path}") as slow:
            pieces = slow.iter_raw(1 << 12)
            next(pieces)
            before = portal.descriptors()
            with _asking(portal.url, path, 10) as connections:
                assert _statuses(connections) == [200] * 10
                assert portal.descriptors() > before + 9

                def are_cut_off() -> bool:
                    next(pieces)
                    return portal.descriptors() <= before

                eventually(are_cut_off)
            eventually(lambda: _CUT_OFF in log.read_text())
            assert sum(len(piece) for piece in pieces) > _SIZE // 2
