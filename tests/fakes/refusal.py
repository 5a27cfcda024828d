"""Operations that are refused."""

import errno
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def refusal(number: int) -> Iterator[None]:
    """Expect an OSError of that number."""
    with pytest.raises(OSError) as caught:
        yield
    assert errno.errorcode[caught.value.errno or 0] == errno.errorcode[number]


async def refused(number: int, work: Awaitable[object]) -> None:
    """Expect an OSError of that number from what is awaited."""
    with refusal(number):
        await work
