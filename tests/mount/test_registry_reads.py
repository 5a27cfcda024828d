"""Entries in a mount with several portals, whatever one of them does."""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import httpx
import pytest

from skymount.wire.registry_entry import SignedEntry
from skymount.wire.skylink import Skylink
from tests.mount.keys import HOME, Owner, until
from tests.mount.scripted import ScriptedPortal, scripted_portal
from tests.portal_process import PortalProcess, portal_process
from tests.skymount_process import Sandbox, output, run

SLACK = 5.0
"""Seconds that a busy machine may take on top of each bound."""


@contextmanager
def mounted(owner: Owner, urls: Sequence[str], *more: str) -> Iterator[Path]:
    """Mount with these portals, in this order; yields the mount point."""
    words = [word for url in urls for word in ("--portal", url)]
    with owner.sandbox.mounted(*words, *more) as mount:
        yield mount.path


@pytest.fixture
def portals() -> Iterator[list[ScriptedPortal]]:
    """Two portals whose faults are told."""
    with scripted_portal() as one, scripted_portal() as two:
        yield [one, two]


@pytest.fixture
def reader(sandbox: Sandbox) -> Owner:
    """A home with a key, and no portal."""
    return Owner.make(sandbox, "")


@pytest.mark.parametrize("fault", ["forged", "stale", "missing", "down", "drop", "late", "denied"])
def test_broken_first_portal(reader: Owner, portals: list[ScriptedPortal], fault: str) -> None:
    """G18, R11: the right answer comes soon, and later ones at once."""
    names = [f"e{number}" for number in range(5)]
    for portal in portals:
        for name in names:
            portal.set(reader.signed(name, b"old", 0))
            portal.set(reader.signed(name, b"new", 4))
    portals[0].always = fault
    with mounted(reader, [each.url for each in portals]) as path:
        files = [path / "registry" / HOME / name for name in names]
        begun = time.monotonic()
        assert output(["cat", files[0]]) == b"new"
        assert time.monotonic() < begun + 2.5 + SLACK
        begun = time.monotonic()
        assert output(["cat", *files]) == b"new" * 5
        assert time.monotonic() < begun + 1.0 + SLACK


# --- portals in processes of their own


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[PortalProcess]]:
    """Two real portals."""
    root = tmp_path_factory.mktemp("portals")
    with ExitStack() as stack:
        yield [stack.enter_context(portal_process(root / name)) for name in ("one", "two")]


@contextmanager
def stopped(portal: PortalProcess) -> Iterator[None]:
    """Stop the process of a portal, which goes on to accept connections."""
    os.kill(portal.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(portal.process.pid, signal.SIGCONT)


def put(portal: PortalProcess, entry: SignedEntry) -> None:
    url, agent = f"{portal.url}/svc/registry", {"User-Agent": "skymount tests"}
    httpx.post(url, content=entry.encode_update(), headers=agent).raise_for_status()


def test_stopped_first_portal(sandbox: Sandbox, pair: list[PortalProcess]) -> None:
    """G18, R11: `ls -l` of entries is late once; they come from the other portal."""
    owner = Owner.make(sandbox, pair[1].url)
    for number in range(5):
        put(pair[1], owner.signed(f"e{number}", b"x" * number, number))
    with mounted(owner, [each.url for each in pair]) as path:
        files = [path / "registry" / HOME / f"e{number}" for number in range(5)]
        with stopped(pair[0]):
            begun = time.monotonic()
            first = output(["stat", "-c", "%s", *files])
            assert time.monotonic() < begun + 3.0 + SLACK
            begun = time.monotonic()
            assert output(["stat", "-c", "%s", *files]) == first == b"0\n1\n2\n3\n4\n"
            assert output(["cat", *files]) == b"x" * 10
            assert time.monotonic() < begun + 1.0 + SLACK


class DistantPortal(ScriptedPortal):
    """A portal whose answers take a moment, once it is far away. It counts round trips: a request
    that comes after an answer is one of a later round trip.
    """

    is_far = False
    round_trips = 0

    def handle(self, method: str, target: str, body: bytes) -> tuple[int, bytes] | None:
        number = self.round_trips + 1
        time.sleep(0.5 if self.is_far else 0)
        answer = super().handle(method, target, body)
        with self.lock:
            self.round_trips = max(self.round_trips, number)
        return answer


def test_listing_is_fetched_ahead(sandbox: Sandbox) -> None:
    """G6: `ls -l` of entries takes few round trips."""
    count = 40
    portal = DistantPortal()
    portal.start()
    with closing(portal):
        owner = Owner.make(sandbox, portal.url)
        patient = owner.sandbox.with_env(SKYMOUNT_REGISTRY_TTL="60")
        for number in range(count):
            portal.set(owner.signed(f"e{number:02}", b"x" * number, 0))
        with patient.mounted("--portal", portal.url) as mount:
            files = [mount.path / "registry" / HOME / f"e{number:02}" for number in range(count)]
            output(["cat", *files])  # from now on they are listed
        portal.is_far, portal.round_trips, portal.gets = True, 0, 0
        with patient.mounted("--portal", portal.url) as mount:
            lines = output(["ls", "-l", f"{mount.path}/registry/{HOME}/"]).splitlines()[1:]
        assert [int(line.split()[4]) for line in lines] == list(range(count))
        assert portal.gets >= count
        assert portal.round_trips < count / 2


def test_stopped_portal_alone(sandbox: Sandbox, pair: list[PortalProcess]) -> None:
    """R12: operations that begin after one has found out fail at once, until it is back."""
    owner = Owner.make(sandbox, pair[0].url)
    names = ["a", "b", "c"]
    for name in names:
        put(pair[0], owner.signed(name, b"x", 0))
    with mounted(owner, [pair[0].url], "--timeout", "10") as path:
        files = [path / "registry" / HOME / name for name in names]
        with stopped(pair[0]):
            assert run(["cat", *files]).returncode == 1
            begun = time.monotonic()
            for _ in range(10):
                assert run(["cat", *files]).returncode == 1
            assert time.monotonic() < begun + 3.0 + SLACK  # not 10 * 3 * 10
        until(lambda: run(["cat", *files]).stdout == "xxx")


def test_document(sandbox: Sandbox, pair: list[PortalProcess]) -> None:
    """G18: the newest document is shown, from the portal that has it."""
    owner = Owner.make(sandbox, pair[0].url)
    document = sandbox.root / "document.json"
    for number, portal in enumerate(pair):
        document.write_text(f'{{"version": {number}}}')
        sandbox.succeed("db", "set", HOME, "doc", document, "--portal", portal.url)
    with mounted(owner, [each.url for each in pair]) as path:
        assert b'"version": 1' in output(["cat", path / "skydb" / HOME / "doc.json"])


def test_resolver_skylink(sandbox: Sandbox, pair: list[PortalProcess]) -> None:
    """G18: it leads where the newest entry leads."""
    owner = Owner.make(sandbox, pair[0].url)
    source = sandbox.root / "f"
    for revision, portal in enumerate(pair):
        source.write_bytes(b"version %d" % revision)
        skylink = Skylink(sandbox.upload(source, portal.url))
        entry = owner.signed("site", bytes(skylink), revision)
        put(portal, entry)
    with mounted(owner, [each.url for each in pair]) as path:
        assert output(["cat", path / "skylinks" / str(entry.link) / "f"]) == b"version 1"
