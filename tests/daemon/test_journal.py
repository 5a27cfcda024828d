"""What the journal gets, at a socket of our own."""

import array
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from skymount.daemon.journal import JournalHandler, priority


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as found:
        found.bind(str(tmp_path / "journal"))
        found.settimeout(30)
        yield found


@pytest.fixture
def handler(journal: socket.socket) -> Iterator[JournalHandler]:
    made = JournalHandler(journal.getsockname(), {"SKYMOUNT_MOUNTPOINT": "/sky"})
    yield made
    made.close()


def event(text: str, level: int = logging.WARNING) -> logging.LogRecord:
    return logging.LogRecord("skymount.x", level, "/x.py", 7, text, (), None, "work")


def parsed(data: bytes) -> dict[str, bytes]:
    found = {}
    while data:
        line, _, data = data.partition(b"\n")
        name, is_plain, value = line.partition(b"=")
        if not is_plain:
            size = int.from_bytes(data[:8], "little")
            value, data = data[8 : 8 + size], data[9 + size :]
        found[name.decode()] = value
    return found


def test_fields_of_an_event(handler: JournalHandler, journal: socket.socket) -> None:
    """E5: An event has its priority, its place in the source, and the mount."""
    handler.emit(event("a=b"))
    assert parsed(journal.recv(1 << 16)) == {
        "MESSAGE": b"a=b",
        "PRIORITY": b"4",
        "SYSLOG_IDENTIFIER": b"skymount",
        "LOGGER": b"skymount.x",
        "CODE_FILE": b"/x.py",
        "CODE_LINE": b"7",
        "CODE_FUNC": b"work",
        "SKYMOUNT_MOUNTPOINT": b"/sky",
    }


def test_traceback_is_of_the_same_event(handler: JournalHandler, journal: socket.socket) -> None:
    """E5: It has several lines, and is one event all the same."""
    record = event("broken", logging.ERROR)
    try:
        raise ZeroDivisionError("a bug")
    except ZeroDivisionError as error:
        record.exc_info = (type(error), error, error.__traceback__)
        handler.emit(record)
    found = parsed(journal.recv(1 << 16))
    assert found["MESSAGE"].startswith(b"broken\nTraceback ")
    assert found["MESSAGE"].endswith(b"ZeroDivisionError: a bug")
    assert found["EXCEPTION"] == b"ZeroDivisionError"
    assert found["SKYMOUNT_MOUNTPOINT"] == b"/sky"


def test_lone_surrogates_are_no_obstacle(handler: JournalHandler, journal: socket.socket) -> None:
    """They stand for bytes of file names that are not UTF-8."""
    handler.emit(event("name \udcff"))
    assert parsed(journal.recv(1 << 16))["MESSAGE"] == b"name \\udcff"


def test_large_event_is_passed_as_a_file(handler: JournalHandler, journal: socket.socket) -> None:
    """A datagram has a limit."""
    text = "x" * (4 << 20)
    handler.emit(event(text))
    descriptors = array.array("i", [-1])
    data, passed, *_ = journal.recvmsg(1, socket.CMSG_SPACE(descriptors.itemsize))
    assert data == b""
    ((_, kind, value),) = passed
    assert kind == socket.SCM_RIGHTS
    descriptors = array.array("i", value)
    try:
        content = os.pread(descriptors[0], 5 << 20, 0)
    finally:
        os.close(descriptors[0])
    assert parsed(content)["MESSAGE"] == text.encode()


def test_journal_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        JournalHandler(str(tmp_path / "none"))


def test_priorities() -> None:
    """E5: By which `journalctl -p` selects."""
    levels = [logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL]
    assert [priority(level) for level in levels] == [7, 6, 4, 3, 3]
