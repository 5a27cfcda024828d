"""Checks of portals: clocks, and who listens."""

import os
import socket

import pytest

from skymount.cli.doctor.finding import Level
from skymount.cli.doctor.portals import check_clock
from skymount.default_portal import listener_uid

URL = "http://a.example"
NOON = 1704110400.0  # 2024-01-01 12:00 UTC


@pytest.mark.parametrize(
    ("date", "words"),
    [
        ("Mon, 01 Jan 2024 12:01:00 GMT", "it agrees with ours"),
        ("Mon, 01 Jan 2024 15:00:00 GMT", "it is 3 h 0 min ahead of this machine's"),
        ("Sun, 31 Dec 2023 12:00:00 GMT", "it is 1 d 0 h behind this machine's"),
    ],
)
def test_clocks(date: str, words: str) -> None:
    [found] = check_clock(URL, date, NOON)
    assert found.text == words
    assert (found.level is Level.OK) == ("agrees" in words)


@pytest.mark.parametrize("date", ["", "noon", "Mon, 99 Jan 99999 12:00:00 GMT", "9" * 5000])
def test_what_is_no_date(date: str) -> None:
    assert list(check_clock(URL, date, NOON)) == []


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::1", "::"])
def test_who_listens(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as listener:
        port = listener.getsockname()[1]
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)
        assert listener_uid(host, port) == os.getuid()
        assert listener_uid("127.9.9.9", port) in (None, os.getuid())
    assert listener_uid(host, port) is None
