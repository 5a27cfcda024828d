"""Trees are built in the event loop here: a thread's work does not stop a mock clock."""

from functools import partial
from typing import TypeVar

import pytest
import trio

T = TypeVar("T")


async def _in_loop(work: "partial[T]") -> T:
    await trio.lowlevel.checkpoint()
    return work()


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build trees in the event loop."""
    monkeypatch.setattr("skymount.fs.slots.off_loop", _in_loop)
