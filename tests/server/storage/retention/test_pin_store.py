"""Pins have a reason and a time, and are durable."""

from contextlib import closing
from pathlib import Path

import pytest

from skymount.errors import MalformedError
from skymount.server.storage.retention.pin_store import (
    REASON_LIMIT,
    PinStore,
    check_reason,
    peek_all,
    peek_pins,
)
from skymount.wire.skylink import Skylink

A, B = Skylink.v1(b"a" * 32, 9), Skylink.v1(b"b" * 32, 9)


def test_pins(tmp_path: Path) -> None:
    """RT2: the first time and the last reason stay; they can be read beside a portal."""
    with closing(PinStore.open(tmp_path)) as pins:
        pins.pin(A, "why", 5.0)
        pins.pin(A)
        pins.pin(B, "", 7.0)
        found = peek_pins(tmp_path, [A, Skylink.v1(b"c" * 32, 9)])
        assert [(pin.skylink, pin.reason, pin.pinned) for pin in found.values()] == [
            (A, "why", 5.0)
        ]
        assert [pin.skylink for pin in peek_all(tmp_path)] == [A, B]
        assert pins.is_pinned(B)
        assert pins.unpin(B)
        assert not pins.unpin(B)
        assert not pins.is_pinned(B)


@pytest.mark.parametrize("reason", ["x" * (REASON_LIMIT + 1), "two\nlines", "\x1b[31m"])
def test_reasons_are_one_line_of_text(reason: str) -> None:
    """RT2: as they are printed."""
    with pytest.raises(MalformedError):
        check_reason(reason)
