"""What a watch says of the requests and bodies that an operation waits for."""

from dataclasses import dataclass, field

import pytest
import trio

from skymount.errors import NotFoundError
from skymount.portal.client.client import PortalClient
from skymount.portal.http import request_watch
from skymount.portal.http.request_watch import RequestWatch, watched
from skymount.wire.skylink import Skylink
from tests.fakes import portal as fake
from tests.fakes.portal import FakePortal, running
from tests.fakes.skyfiles import noise, of_files

LARGE = of_files({"f": noise(300_000, 2)})


@dataclass
class Record:
    """Notes what a watch tells."""

    heads: int = 0
    opened: int = 0
    closed: list[tuple[int, float]] = field(default_factory=list)
    pieces: int = 0

    def body_opened(self) -> None:
        self.opened += 1

    def head_came(self, seconds: float, now: float) -> None:
        assert 0 <= seconds <= now
        self.heads += 1

    def bytes_came(self, now: float) -> None:
        self.pieces += 1

    def body_closed(self, size: int, seconds: float) -> None:
        self.closed.append((size, seconds))


def test_waits():
    """The longest wait counts, and it ends with the head or the next bytes."""
    watch = RequestWatch(Record())
    assert watch.is_idle
    watch.sent("a", 1)
    watch.sent("b", 3)
    assert (watch.head_wait(5), watch.stall(5)) == (4, 0)
    watch.head_came("a", 5)
    watch.request_ended("a")
    assert watch.head_wait(5) == 2
    watch.body_awaited("a", 5)
    assert watch.stall(8) == 3
    watch.bytes_came("a", 300, 8)
    assert watch.stall(9) == 0  # its reader is busy
    watch.request_ended("b")
    watch.body_closed("a")
    assert watch.is_idle


def test_time_that_is_left_out():
    """It shortens waits that are under way, and none begins in the future."""
    watch = RequestWatch(Record())
    watch.sent("a", 1)
    watch.body_awaited("b", 8)
    watch.skip(5, 10)
    assert (watch.head_wait(10), watch.stall(10)) == (4, 0)
    watch.bytes_came("b", 300, 12)
    watch.skip(5, 12)
    assert watch.stall(12) == 0


def test_a_body_that_is_sent():
    record = Record()
    watch = RequestWatch(record)
    assert (watch.quiet(1.0), watch.quiet(1.5)) == (0.0, 0.5)
    state = [0, 0]
    watch.sends(lambda: tuple(state))
    assert (watch.quiet(2.0), watch.quiet(2.5)) == (0.0, 0.5)
    state[1] = 5
    assert (watch.quiet(3.0), watch.quiet(3.2)) == (0.0, pytest.approx(0.2))
    watch.skip(0.5, 3.4)
    assert watch.quiet(3.5) == pytest.approx(0.1)
    assert record.pieces == 2  # signs of life


def test_rate():
    """It is that of the slowest body; time in which nobody waited does not count."""
    record = Record()
    watch = RequestWatch(record)
    for body, size in (("fast", 1000), ("slow", 100)):
        watch.body_awaited(body, 0)
        watch.bytes_came(body, size, 1)
    assert watch.slowest_body(100, 1) == 100
    assert watch.slowest_body(100, 1.1) is None
    watch.body_awaited("slow", 100)
    assert watch.slowest_body(101, 1.1) == 50
    watch.body_closed("slow")
    assert record.closed == [(100, 1)]


async def test_requests_are_noted():
    """Heads and bodies are noted while they come; afterwards nothing is left."""
    async with running(FakePortal()) as portal, PortalClient(portal.url, retries=0) as client:
        portal.add(LARGE)
        record = Record()
        watch = RequestWatch(record)
        data = await watched(watch, client.base_sector(LARGE.skylink))
        assert request_watch.current() is None
        assert (record.heads, record.opened) == (1, 1)
        assert record.closed[0][0] == len(data)
        assert watch.is_idle
        await client.base_sector(LARGE.skylink)
        assert record.heads == 1


async def test_errors_and_cancelled_requests_are_forgotten():
    """Also those that never get a head."""
    async with running(FakePortal()) as portal, PortalClient(portal.url, retries=0) as client:
        record = Record()
        watch = RequestWatch(record)
        with pytest.raises(NotFoundError):
            await watched(watch, client.base_sector(Skylink.v1(bytes(32), 1)))
        assert watch.is_idle
        assert record.heads == 1
        portal.fault(fake.stalls_after(-1))
        with trio.move_on_after(0.2):
            await watched(watch, client.base_sector(LARGE.skylink))
        assert watch.is_idle
        assert record.heads == 1
