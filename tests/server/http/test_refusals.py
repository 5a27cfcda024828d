"""Requests whose end is in doubt are refused, and no others, however they are cut on their way."""

import fcntl
import os
import socket
import termios
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from random import Random
from urllib.parse import urlsplit

import pytest

from tests.portal_process import PortalProcess
from tests.server.http.refused_requests import (
    BAD,
    CASES,
    CHUNKED,
    NEXT,
    POST,
    TOO_LONG,
    Case,
)
from tests.server.raw_connection import PATIENCE
from tests.server.test_unix_socket import portal_at

_REFUSED = {*BAD, *TOO_LONG, 505}
_SHORT = 1000  # bytes of a request that is sent in many pieces
_DOUBTFUL = 64  # last bytes of a request, which its cases differ in


@pytest.fixture(scope="module")
def unix_portal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The path of its socket, which tells when all that was sent has been received."""
    folder = tmp_path_factory.mktemp("refusals")
    with portal_at(folder / "socket", folder / "data"):
        yield str(folder / "socket")


def _answers(family: int, address: object, pieces: list[bytes], *, is_cut: bool) -> bytes:
    """Return all that comes back until the portal closes the connection."""
    found = bytearray()
    with socket.socket(family) as connection:
        connection.settimeout(PATIENCE)
        connection.connect(address)
        with suppress(ConnectionError):
            for at, piece in enumerate(pieces):
                if at:
                    _wait_until_received(connection)
                connection.sendall(piece)
            if is_cut:
                connection.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while data := connection.recv(65536):
                found += data
    return bytes(found)


def _wait_until_received(connection: socket.socket) -> None:
    deadline = time.monotonic() + PATIENCE
    while any(fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4))):
        assert time.monotonic() < deadline, "the portal does not receive"
        os.sched_yield()


def _parse(found: bytes) -> list[tuple[int, dict[bytes, bytes], bytes]]:
    """Return status, headers and body of each answer that is no interim one."""
    answers = []
    while found:
        head, _, found = found.partition(b"\r\n\r\n")
        first, *lines = head.lower().split(b"\r\n")
        headers = dict(line.split(b": ", 1) for line in lines)
        size = int(headers.get(b"content-length", b"0"))
        assert len(found) >= size
        if not first.startswith(b"http/1.1 100 "):
            answers.append((int(first.removeprefix(b"http/1.1 ")[:3]), headers, found[:size]))
        found = found[size:]
    return answers


def _check(case: Case, found: bytes) -> None:
    answers = _parse(found)
    assert tuple(status for status, _, _ in answers) == case.answers
    if not answers:
        return
    status, headers, body = answers[-1]
    if status in {*_REFUSED, 200}:
        assert headers[b"connection"] == b"close"
    if status in _REFUSED:
        assert len(body.splitlines()) == 1
        assert body.decode("ascii").strip("\n").isprintable()


def _named(case: Case) -> str:
    return case.name


@pytest.mark.parametrize("case", CASES, ids=_named)
def test_a_request_at_once(portal: PortalProcess, case: Case) -> None:
    parts = urlsplit(portal.url)
    address = (parts.hostname, parts.port)
    _check(case, _answers(socket.AF_INET, address, [case.sent], is_cut=case.is_cut))


@pytest.mark.parametrize("case", [case for case in CASES if len(case.sent) < _SHORT], ids=_named)
def test_a_request_in_pieces(unix_portal: str, case: Case) -> None:
    """Where its cases differ: byte by byte, and cut in two near each end of a line."""
    sent, first, last = case.sent, max(1, len(case.data) - _DOUBTFUL), len(case.data) + 1
    places = range(first, min(last + 1, len(sent)))
    cuts = [at for at in places if {*sent[at - 1 : at + 2]} & {*b"\r\n"}]
    single = [sent[at : at + 1] for at in places]
    for pieces in [
        [sent[:first], *single, sent[first + len(single) :]],
        *([sent[:at], sent[at:]] for at in cuts),
    ]:
        _check(case, _answers(socket.AF_UNIX, unix_portal, pieces, is_cut=case.is_cut))


def test_chunks_are_joined(unix_portal: str) -> None:
    """Whatever they have in them, and wherever they are cut on their way."""
    random = Random(1)
    content = bytes(random.choices(b"\r\n0;a", k=3000))
    plain = POST + b"Content-Length: 3000\r\n\r\n" + content
    sent, left = POST + CHUNKED, content
    while left:
        chunk = left[: random.choice([1, 2, 15, 16, 17, 600])]
        left = left[len(chunk) :]
        sent += b"%X%b\r\n%b\r\n" % (len(chunk), random.choice([b"", b';a="b"']), chunk)
    sent += b"0\r\nA: b\r\n\r\n"
    cuts = sorted({0, *random.sample(range(len(sent)), 500), len(sent)})
    pieces = [sent[at:end] for at, end in pairwise(cuts)]
    expected, found = (
        _parse(_answers(socket.AF_UNIX, unix_portal, [*given, NEXT], is_cut=False))
        for given in ([plain], pieces)
    )
    assert found[0][2] == expected[0][2]
