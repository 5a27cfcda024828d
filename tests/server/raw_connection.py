"""Requests that are sent byte by byte, and left unfinished."""

import socket
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

PATIENCE = 60.0  # seconds for something that takes milliseconds


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until it holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def connect(url: str) -> socket.socket:
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname, parts.port), timeout=PATIENCE)


def exchange(url: str, request: bytes) -> bytes:
    """Send bytes; return all that comes until the portal closes the connection, which it is told
    to by the end of ours.
    """
    with connect(url) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def begin_upload(url: str, size: int, announced: int) -> socket.socket:
    """Send the beginning of an upload of `announced` bytes."""
    connection = connect(url)
    head = (
        "POST /svc/skyfile?filename=a HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Length: {announced}\r\n"
        "Content-Type: application/octet-stream\r\n\r\n"
    )
    connection.sendall(head.encode())
    connection.sendall(b"\x01" * size)
    return connection


def incoming_uploads(data: Path) -> list[Path]:
    return list((data / "v1" / "incoming").iterdir())
