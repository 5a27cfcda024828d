"""Measures what a request costs the embedded portal, beside nginx: processor time, and how many."""

import os
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlencode, urlsplit

import httpx

from benchmarks import machine, source
from benchmarks.figures import Figure, Group, Round
from benchmarks.plan import Plan
from benchmarks.portal_load import (
    SMALL,
    get_request,
    processor_time,
    send_all,
    small_uploads,
    upload,
)
from skymount.wire.key_pair import SigningKeyPair
from skymount.wire.registry_entry import Entry, hash_data_key
from tests.portal_process import PortalProcess, portal_process

_TARGET = 350.0  # microseconds of processor time
_AIM = 3000.0  # requests a second
_UPLOADS_AIM = 1500.0
_LARGE_AIM = 250.0  # MB/s
_AFTER = 5.0  # seconds after the uploads that memory is looked at again


@dataclass(frozen=True, slots=True)
class _Server:
    port: int
    pid: int


@contextmanager
def prepare_portal(plan: Plan) -> Iterator[Round]:
    tree = plan.directory("portal-tree")
    (tree / "small").write_bytes(os.urandom(SMALL))
    with (
        source.serve(plan.work, [], tree) as site,
        TemporaryDirectory(prefix="portal-", dir=plan.work) as home,
        portal_process(Path(home) / "data") as portal,
    ):
        pid = int((plan.work / "nginx.pid").read_text())
        port = urlsplit(portal.url).port
        assert port is not None
        yield partial(
            _speed, plan, _Server(site.port, pid), _Server(port, portal.process.pid), portal
        )


def _speed(plan: Plan, nginx: _Server, server: _Server, portal: PortalProcess) -> Iterator[Figure]:
    with httpx.Client(base_url=portal.url, timeout=60) as client:
        link = upload(portal.url, SMALL)
        entry = registry_query(client)
    gets = {
        "small file": f"/{link}",
        "metadata": f"/svc/metadata/{link}",
        "base sector": f"/svc/basesector/{link}",
        "registry entry": f"/svc/registry?{entry}",
    }
    for connections in (1, 16, 128):
        number = plan.sizes.requests
        yield from _cost(nginx, "nginx, a file", [get_request("/small")] * number, connections)
        for name, url in gets.items():
            aims = (_AIM if connections > 1 else None, _TARGET if name in _AIMED else None)
            yield from _cost(server, name, [get_request(url)] * number, connections, aims)
        if connections < 128:
            uploads = list(islice(small_uploads(), number // 4))
            aims = (_UPLOADS_AIM if connections > 1 else None, None)
            yield from _cost(server, "upload of 2 KiB", uploads, connections, aims)
    yield from _large(plan, portal)
    yield from _many(plan, portal)


_AIMED = ("small file", "metadata", "registry entry")


def _cost(
    server: _Server,
    name: str,
    requests: Iterable[bytes],
    connections: int,
    aims: tuple[float | None, float | None] = (None, None),
) -> Iterator[Figure]:
    sent = list(requests)
    send_all(server.port, iter(sent[: 2 * connections]), connections)
    fresh = sent[2 * connections :]
    before = processor_time(server.pid)
    seconds = send_all(server.port, iter(fresh), connections).seconds
    used = processor_time(server.pid) - before
    each = f"{name}, {connections} connection{'s' if connections > 1 else ''}"
    cost = used / len(fresh) * 1e6
    yield Figure(f"{each}: processor time", (cost,), "us", at_most=aims[1])
    yield Figure(f"{each}: a second", (len(fresh) / seconds,), at_least=aims[0])


def registry_query(client: httpx.Client) -> str:
    """Post an entry; return the query that asks for it."""
    owner, tweak = SigningKeyPair.from_seed("the benchmark"), hash_data_key("entry")
    entry = Entry(tweak, b"data", int(time.time()), 1).sign(owner.private_key)
    client.post("/svc/registry", content=entry.encode_update()).raise_for_status()
    return urlencode({"publickey": f"ed25519:{owner.public_key.hex()}", "datakey": tweak.hex()})


def _large(plan: Plan, portal: PortalProcess) -> Iterator[Figure]:
    size = plan.sizes.upload
    before = processor_time(portal.process.pid)
    seconds = machine.timed(upload, portal.url, size)
    used = processor_time(portal.process.pid) - before
    yield Figure("large upload", (size / 1e6 / seconds,), "MB/s", at_least=_LARGE_AIM)
    yield Figure("large upload: processor time a GiB", (used / size * (1 << 30),), "s")


def _many(plan: Plan, portal: PortalProcess) -> Iterator[Figure]:
    uploads, size = plan.sizes.readers, plan.sizes.reader
    before = machine.memory(portal.process.pid)[0]
    Path(f"/proc/{portal.process.pid}/clear_refs").write_text("5")  # forget the peak so far
    with ThreadPoolExecutor(uploads) as threads:
        list(threads.map(partial(upload, portal.url), [size] * uploads))
    most = machine.memory(portal.process.pid)[1]
    time.sleep(_AFTER)
    after = machine.memory(portal.process.pid)[0]
    title = f"{uploads} uploads of {size >> 20} MiB at once: memory"
    yield Figure(f"{title} added at most", (most - before,), "MB", at_most=200)
    yield Figure(f"{title} kept after", (after - before,), "MB", at_most=100)


GROUPS = [
    Group(
        "portal",
        "The embedded portal, request by request",
        "Connections stay open, each with one request at a time. Processor time is that of the "
        "server's process with all its threads; the load comes from one Python process, which "
        "bounds what can be sent in a second.",
        prepare_portal,
    ),
]
