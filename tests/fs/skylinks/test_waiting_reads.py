"""Reads that wait for a portal: how long, when many of them do."""

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import pytest
import trio
import trio.testing

from skymount.errors import PortalTimeoutError
from skymount.fs.skylinks.waiting_reads import KERNEL_LIMIT, WaitingReads

MANY = KERNEL_LIMIT - 2
SILENCE = 3.5
AT_ONCE = 0.2


@dataclass
class Readers:
    """Tasks that read, and portals that send something when a test says so."""

    nursery: trio.Nursery
    portals: Sequence[str] = ("http://p",)
    last_sign: float = -math.inf
    ended: list[tuple[float, bool]] = field(default_factory=list)
    """When each read ended, and whether it got its bytes."""
    answers_after: float = math.inf
    """Seconds until a portal that is asked for a sign of life gives one."""
    asked: int = 0
    reads: WaitingReads = field(init=False)

    def __post_init__(self) -> None:
        self.reads = WaitingReads(
            lambda since: self.last_sign >= since, self._asked_for_signs, self.portals
        )

    async def _asked_for_signs(self) -> None:
        self.asked += 1
        await trio.sleep(self.answers_after)
        self.sign()

    async def _read(self, seconds: float, needs_portal: bool) -> None:
        try:
            await self.reads.wait(partial(trio.sleep, seconds), lambda: needs_portal)
        except PortalTimeoutError:
            self.ended.append((trio.current_time(), False))
        else:
            self.ended.append((trio.current_time(), True))

    async def start(self, count: int, seconds: float, *, needs_portal: bool = True) -> None:
        """Start reads that get their bytes after so long."""
        for _ in range(count):
            self.nursery.start_soon(self._read, seconds, needs_portal)
        await trio.testing.wait_all_tasks_blocked()

    def sign(self) -> None:
        """Let a portal send something."""
        self.last_sign = trio.current_time()


@asynccontextmanager
async def readers() -> AsyncIterator[Readers]:
    """Begin without reads."""
    async with trio.open_nursery() as nursery:
        made = Readers(nursery)
        nursery.start_soon(made.reads.run)
        await trio.testing.wait_all_tasks_blocked()
        yield made
        nursery.cancel_scope.cancel()


def failed_at(made: Readers) -> list[float]:
    return [when for when, was_read in made.ended if not was_read]


async def test_few_reads_wait(autojump_clock: object):
    """R13: A few reads wait as long as they may, however silent the portals are."""
    async with readers() as made:
        await made.start(MANY - 1, 20)
        await trio.sleep(21)
        assert made.ended == [(20, True)] * (MANY - 1)


async def test_many_reads_of_silent_portals(autojump_clock: object):
    """R13: They fail when no portal has sent anything for 3.5 s, also those that came later."""
    async with readers() as made:
        await made.start(MANY, 20)
        await trio.sleep(2)
        await made.start(5, 20)
        await trio.sleep(2)
        assert len(failed_at(made)) == MANY + 5
        assert SILENCE <= min(failed_at(made)) <= max(failed_at(made)) <= SILENCE + 0.25


async def test_portals_that_are_known_to_be_silent(autojump_clock: object):
    """R13: For 5 s further reads fail at once; then a read is waited for again."""
    async with readers() as made:
        await made.start(MANY, 20)
        await trio.sleep(4)
        made.ended.clear()
        await made.start(1, 20)
        await trio.sleep(AT_ONCE)
        assert len(failed_at(made)) == 1
        await trio.sleep(5)
        await made.start(1, 20)
        await trio.sleep(21)
        assert made.ended[-1][1]


async def test_a_portal_that_is_back(autojump_clock: object):
    """R13: As soon as a portal sends something, reads are waited for again."""
    async with readers() as made:
        await made.start(MANY, 20)
        await trio.sleep(4)
        made.ended.clear()
        made.sign()
        await made.start(3, 2)
        await trio.sleep(2.5)
        assert made.ended == [(6, True)] * 3


async def test_reads_from_the_disk(autojump_clock: object):
    """R13: Reads that need no portal are waited for, and do not count."""
    async with readers() as made:
        await made.start(MANY - 1, 10)
        await made.start(50, 10, needs_portal=False)
        await trio.sleep(11)
        assert made.ended == [(10, True)] * (MANY - 1 + 50)


async def test_reads_from_the_disk_while_portals_are_silent(autojump_clock: object):
    """R13: Further reads fail at once only if they need a portal."""
    async with readers() as made:
        await made.start(MANY, 20)
        await trio.sleep(4)
        made.ended.clear()
        await made.start(2, 3, needs_portal=False)
        await trio.sleep(3.5)
        assert made.ended == [(7, True)] * 2


@pytest.mark.parametrize("count", [MANY, 100])
async def test_slow_portals(autojump_clock: object, count: int):
    """R13: A portal that sends something now and then is not silent, however many reads wait."""
    async with readers() as made:
        await made.start(count, 10)
        for _ in range(10):
            made.sign()
            await trio.sleep(1)
        await trio.sleep(0.1)
        assert made.ended == [(10, True)] * count


@pytest.mark.parametrize("count", [MANY, 100])
async def test_slow_portals_that_are_asked(autojump_clock: object, count: int):
    """R13: A portal is asked for a sign of life before reads are given up, now and then."""
    async with readers() as made:
        made.answers_after = 0.8
        await made.start(count, 20)
        await trio.sleep(21)
        assert made.ended == [(20, True)] * count
        assert 4 <= made.asked <= 8


async def test_a_sign_of_life_that_comes_too_late(autojump_clock: object):
    """R13: A portal has a second for it."""
    async with readers() as made:
        made.answers_after = 1.2
        await made.start(MANY, 20)
        await trio.sleep(4)
        assert len(failed_at(made)) == MANY


async def test_few_reads_ask_nobody(autojump_clock: object):
    """R13: Nobody is asked for signs of life while few reads wait."""
    async with readers() as made:
        await made.start(MANY - 1, 10)
        await trio.sleep(11)
        assert not made.asked


async def test_a_higher_limit_of_the_kernel(autojump_clock: object):
    """R13: Where the kernel sends more requests at once, more reads may wait."""
    async with readers() as made:
        made.reads.limit = 256
        await made.start(200, 20)
        await trio.sleep(21)
        assert made.ended == [(20, True)] * 200


@pytest.mark.parametrize(
    ("portals", "text"),
    [
        (["http://p"], "the portal sends nothing, and many reads wait (http://p)"),
        (["http://p", "http://q"], "no portal sends anything, and many reads wait"),
    ],
)
async def test_who_is_to_blame(autojump_clock: object, portals: list[str], text: str):
    """E1: The reason names the portal, if there is only one."""
    reads = WaitingReads(lambda _: False, trio.lowlevel.checkpoint, portals)
    found: list[str] = []

    async def read() -> None:
        try:
            await reads.wait(trio.sleep_forever, lambda: True)
        except PortalTimeoutError as error:
            found.append(str(error))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(reads.run)
        async with trio.open_nursery() as all_of_them:
            for _ in range(MANY):
                all_of_them.start_soon(read)
        nursery.cancel_scope.cancel()
    assert found == [text] * MANY
