"""The comparison of a download with what its skylink names, piece by piece."""

from collections.abc import AsyncGenerator

import pytest

from skymount.errors import MalformedError, NotFoundError
from skymount.portal.client.content_check import (
    NO_REST,
    ChunkCheck,
    DownloadCheck,
    PayloadCheck,
    SizeCheck,
)
from skymount.portal.policies import Verified
from skymount.wire import merkle
from skymount.wire.base_sector import Layout
from skymount.wire.http.byte_range import ByteRange
from skymount.wire.skylink import SECTOR_SIZE
from tests.fakes.skyfiles import noise

DATA = noise(2 * SECTOR_SIZE + 1000)
CHUNKS = [DATA[at : at + SECTOR_SIZE] for at in range(0, len(DATA), SECTOR_SIZE)]
FANOUT = b"".join(map(merkle.sector_root, CHUNKS))
LAYOUT = Layout(len(DATA), 0, len(FANOUT), data_pieces=1)


def chunk_check(offset: int, size: int, *, required: bool = False, gone: bool = False):
    """Return the check of a part of DATA, at a portal that may not send anything besides it."""

    async def read(wanted: ByteRange) -> AsyncGenerator[bytes, None]:
        if gone:
            raise NotFoundError("gone")
        yield DATA[wanted.start : wanted.stop]

    return ChunkCheck(LAYOUT, FANOUT, offset, size, read, is_required=required)


async def test_nothing_is_compared():
    """Any content passes, and is not verified; the reason is kept."""
    check = DownloadCheck("no proof")
    check.update(b"x")
    await check.finish()
    assert (check.verified, check.reason) == (Verified.NO, "no proof")


async def test_size():
    """More bytes are found at once, fewer at the end; a restart begins with none."""
    check = SizeCheck(3)
    check.update(b"ab")
    with pytest.raises(MalformedError, match="body ended 1 B early"):
        await check.finish()
    with pytest.raises(MalformedError, match="more than 3 B"):
        check.update(b"cd")
    check.restart()
    check.update(b"abc")
    await check.finish()
    assert check.verified is Verified.PARTLY


async def test_payload():
    """Each piece is compared where it belongs."""
    check = PayloadCheck(memoryview(b"hello"))
    check.update(b"he")
    with pytest.raises(MalformedError, match="it is not the content"):
        check.update(b"LLo")
    check.restart()
    check.update(b"hello")
    await check.finish()
    assert check.verified is Verified.YES


@pytest.mark.parametrize(
    ("offset", "size"), [(0, len(DATA)), (10, SECTOR_SIZE), (SECTOR_SIZE - 5, 10), (77, 0)]
)
async def test_chunks(offset: int, size: int):
    """A part is verified with what its first and last chunk have besides it; also a second time."""
    check = chunk_check(offset, size)
    await check.begin()
    for _ in range(2):
        check.restart()
        for at in range(offset, offset + size, 1_000_000):
            check.update(DATA[at : min(at + 1_000_000, offset + size)])
    await check.finish()
    assert check.verified is Verified.YES


async def test_chunk_of_other_content():
    """It is found when the chunk is complete, and the message says which chunk it is."""
    check = chunk_check(0, len(DATA))
    await check.begin()
    check.update(CHUNKS[0])
    with pytest.raises(MalformedError, match="chunk 1 is another one"):
        check.update(bytes(SECTOR_SIZE))


async def test_rest_of_a_chunk_that_is_not_sent():
    """It is an error if verification is required; otherwise the result says why it is not."""
    for required in (True, False):
        check = chunk_check(0, 10, required=required, gone=True)
        await check.begin()
        check.update(DATA[:10])
        if required:
            with pytest.raises(MalformedError, match=NO_REST):
                await check.finish()
        else:
            await check.finish()
            assert (check.verified, check.reason) == (Verified.NO, NO_REST)
