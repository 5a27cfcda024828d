"""Chunks that are checked while they arrive."""

from collections.abc import AsyncGenerator, Sequence

import pytest
import trio

from skymount.content.fetch.chunk_verifier import Hashes, receive_chunks
from skymount.errors import BadContentError, UnavailableError
from skymount.wire.base_sector import Layout, is_authentic, part_size
from skymount.wire.merkle import sector_root
from skymount.wire.skylink import SECTOR_SIZE
from tests.fakes.skyfiles import noise

SIZES = (SECTOR_SIZE, SECTOR_SIZE, 3 * SECTOR_SIZE // 4 + 5)
CONTENT = [noise(size) for size in SIZES]
FANOUT = b"".join(map(sector_root, CONTENT))
LAYOUT = Layout(sum(SIZES), 2, len(FANOUT), data_pieces=1)
PART = part_size(LAYOUT)


class Source:
    """Sends content into buffers; breaks off before one of the parts, or falls silent, if told."""

    def __init__(self, content: bytes, stop: int | None = None, silent: int | None = None) -> None:
        self.content = content
        self.stop = stop
        self.silent = silent
        self.ended = False

    async def receive(self, views: Sequence[memoryview]) -> AsyncGenerator[int, None]:
        try:
            at = 0
            for number, view in enumerate(views):
                await trio.lowlevel.checkpoint()
                if number == self.stop:
                    raise UnavailableError("broken off")
                if number == self.silent:
                    await trio.sleep_forever()
                view[:] = self.content[at : at + len(view)]
                at += len(view)
                yield number
        finally:
            self.ended = True


class Checked:
    """Remembers which chunks were found to be authentic."""

    def __init__(self) -> None:
        self.found: list[int] = []

    def check(self, number: int, hashes: Hashes) -> None:
        if not is_authentic(LAYOUT, FANOUT, number, hashes):
            raise BadContentError(f"chunk {number}")
        self.found.append(number)


def views() -> list[memoryview]:
    return [memoryview(bytearray(size)) for size in SIZES]


@pytest.mark.parametrize("size", [PART, SECTOR_SIZE])
async def test_each_chunk_is_checked_in_order(size: int) -> None:
    """Chunks of several parts, the last of which is shorter than the others, and whole ones."""
    source, checked, into = Source(b"".join(CONTENT)), Checked(), views()
    await receive_chunks(LAYOUT, size, into, source.receive, checked.check)
    assert checked.found == [0, 1, 2]
    assert [bytes(view) for view in into] == CONTENT


async def test_a_chunk_that_is_another_ends_it_at_once() -> None:
    """Nothing more is waited for from who sent it."""
    content = b"?" + b"".join(CONTENT)[1:]
    source, checked = Source(content, silent=SECTOR_SIZE // PART), Checked()
    with trio.fail_after(10), pytest.raises(BadContentError, match="chunk 0"):
        await receive_chunks(LAYOUT, PART, views(), source.receive, checked.check)
    assert source.ended


async def test_what_came_before_the_end_is_checked() -> None:
    """A portal that breaks off leaves the chunks that came, without the one that had begun."""
    source, checked = Source(b"".join(CONTENT), stop=2 * SECTOR_SIZE // PART + 1), Checked()
    with pytest.raises(UnavailableError):
        await receive_chunks(LAYOUT, PART, views(), source.receive, checked.check)
    assert checked.found == [0, 1]


async def test_what_came_before_the_end_may_be_wrong() -> None:
    """Then that is what went wrong first, or the end is; nothing wrong was handed out."""
    content = b"?" + b"".join(CONTENT)[1:]
    source, checked = Source(content, stop=4), Checked()
    with pytest.raises((BadContentError, UnavailableError)):
        await receive_chunks(LAYOUT, PART, views(), source.receive, checked.check)
    assert checked.found == []
