"""A mount with two portals of which the first is silent, slow or drips: the second one answers."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fakes import portal as fake
from tests.fakes import skyfiles
from tests.fakes.portal import FakePortal, Fault, in_thread
from tests.fakes.skyfiles import noise
from tests.skymount_process import Sandbox, output, run

COUNT = 12
SMALL = [skyfiles.of_files({"f": noise(3000, number)}) for number in range(COUNT)]
LARGE = skyfiles.of_files({"f": noise(9 << 20, 77)})
KEY = "ab" * 32

BROKEN = {
    "silent": fake.stalls_after(-1),
    "answers after 10 s": fake.waits(10.0),
    "drips its head": fake.drips_head(0.2),
}
SLACK = 5.0
"""Seconds that a busy machine may take on top of each bound."""


@pytest.fixture
def portals() -> Iterator[list[FakePortal]]:
    """Two portals with the same content."""
    with in_thread(FakePortal()) as first, in_thread(FakePortal()) as second:
        for portal in (first, second):
            portal.add(*SMALL, LARGE)
        yield [first, second]


@contextmanager
def mounted(sandbox: Sandbox, portals: list[FakePortal]) -> Iterator[Path]:
    words = [word for each in portals for word in ("--portal", each.url)]
    with sandbox.foreground(*words) as mount:
        yield mount.path


@pytest.mark.parametrize("name", BROKEN)
def test_broken_first_portal(sandbox: Sandbox, portals: list[FakePortal], name: str) -> None:
    """R11: the first operation waits a little, all others together no longer."""
    fault: Fault = BROKEN[name]
    portals[0].fault(fault)
    with mounted(sandbox, portals) as path:
        begun = time.monotonic()
        assert output(["cat", path / "skylinks" / SMALL[0].name / "f"]) == SMALL[0].payload
        assert time.monotonic() < begun + 2.5 + SLACK
        begun = time.monotonic()
        others = [path / "skylinks" / each.name / "f" for each in SMALL[1:]]
        assert output(["cat", *others]) == b"".join(each.payload for each in SMALL[1:])
        assert time.monotonic() < begun + 1.0 + SLACK


@pytest.mark.parametrize("fault", [fake.drips(1000, 0.1), fake.stalls_after(5 << 20)])
def test_body_of_the_first_portal(
    sandbox: Sandbox, portals: list[FakePortal], fault: Fault
) -> None:
    """R11: a body that drips or stalls continues at the second portal."""
    portals[0].fault(fault, "concat")
    with mounted(sandbox, portals) as path:
        begun = time.monotonic()
        assert output(["cat", path / "skylinks" / LARGE.name / "f"]) == LARGE.payload
        assert time.monotonic() < begun + 4.0 + SLACK


def test_listing_of_entries_that_the_second_portal_lacks(
    sandbox: Sandbox, portals: list[FakePortal]
) -> None:
    """R12, L4: the silent portal may have them: that is an error, and soon known."""
    portals[0].fault(fake.stalls_after(-1))
    with mounted(sandbox, portals) as path:
        names = [path / "registry" / KEY / name for name in ("a", "b", "c")]
        begun = time.monotonic()
        done = run(["cat", *names])
        assert time.monotonic() < begun + 3.0 + SLACK
        assert done.returncode != 0
        assert "No such file" not in done.stderr
