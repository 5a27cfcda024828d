"""Which portals depend on one, by the header of their requests."""

import pytest

from skymount.server.http_error import HttpError
from skymount.server.upstream.loops import Loops


def test_those_downstream_are_told_to_upstream() -> None:
    told: list[str] = []
    first, second = Loops(told.append), Loops(told.append)
    second.note(first.header)
    assert told == [first.header, told[1], second.header]
    assert first.header in second.header.split(",")
    with pytest.raises(HttpError) as caught:
        first.note(second.header)
    assert caught.value.status == 508


def test_many_or_strange_portals_downstream_are_bounded() -> None:
    told: list[str] = []
    loops = Loops(told.append)
    for number in range(200):
        loops.note(f"{number:016x}, {number:016x},x,{'y' * 100}")
    names = loops.header.split(",")
    assert len(names) == 65
    assert all(len(name) == 16 for name in names)
