"""The comparison of a download with what its skylink names, piece by piece."""

import pytest

from skymount.errors import MalformedError
from skymount.policies import Verified
from skymount.portal.client.content_check import (
    PayloadCheck,
    SizeCheck,
)


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
