"""Ports for servers that start later, or end while somebody still wants to reach them."""

import itertools
import os
import random
import socket
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_FIRST = 10_000
_FOR_CLIENTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_WORKERS = 8
"""Workers of pytest that have ports of their own."""


def unused_port() -> int:
    """Return a port that nobody listens on; the next call returns another one.

    It is none of those that the kernel gives to who asks for any port. Such a one may belong to
    another test a moment later, which then gets requests that are not for it.
    """
    for port in itertools.islice(_ports(), 1000):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            found: int = probe.getsockname()[1]
            return found
    raise AssertionError("no port is free")


@cache
def _ports() -> Iterator[int]:
    """Return the ports of this worker, from a random one on."""
    end = int(_FOR_CLIENTS.read_text().split()[0])
    count = (end - _FIRST) // _WORKERS
    if count < 100:  # a machine that is set up in an unusual way
        return itertools.cycle([0])
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = _FIRST + worker % _WORKERS * count
    shift = random.randrange(count)
    return itertools.cycle(first + (number + shift) % count for number in range(count))
