"""Files that may be pipes or devices: opened without waiting, and read within a time."""

import os
import select
import time
from io import FileIO


def open_at_once(path: str, flags: int) -> int:
    """Open a file for `open`; of a pipe, without waiting for who writes to it."""
    return os.open(path, flags | os.O_NONBLOCK)


def read_within(file: FileIO, limit: int, patience: float) -> bytes:
    """Read to the end, or to `limit` bytes; TimeoutError if that takes more than `patience` s."""
    raw, deadline = b"", time.monotonic() + patience
    poll = select.poll()
    poll.register(file, select.POLLIN)
    while len(raw) < limit:
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError
        piece = file.read(limit - len(raw))
        if not piece:
            break
        raw += piece
    return raw
