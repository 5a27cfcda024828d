"""Which portals depend on one, by the header of their requests."""

import pytest
from starlette.types import Message, Receive, Scope, Send

from skymount.server.http_error import HttpError
from skymount.server.upstream.loops import HEADER, LoopMiddleware, Loops


def test_those_downstream_are_told_to_upstream() -> None:
    told: list[str] = []
    first, second = Loops(told.append), Loops(told.append)
    second.note(first.header)
    assert told == [first.header, told[1], second.header]
    assert first.header in second.header.split(",")
    with pytest.raises(HttpError) as caught:
        first.note(second.header)
    assert caught.value.status == 508


async def test_the_refusal_is_not_kept_by_caches() -> None:
    loops, sent = Loops(lambda header: None), list[Message]()

    async def unused(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError

    async def receive() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    own = (HEADER.lower().encode(), loops.header.encode())
    await LoopMiddleware(unused, loops)({"type": "http", "headers": [own]}, receive, send)
    assert sent[0]["status"] == 508
    assert (b"cache-control", b"no-store") in sent[0]["headers"]


def test_many_or_strange_portals_downstream_are_bounded() -> None:
    told: list[str] = []
    loops = Loops(told.append)
    for number in range(200):
        loops.note(f"{number:016x}, {number:016x},x,{'y' * 100}")
    names = loops.header.split(",")
    assert len(names) == 65
    assert all(len(name) == 16 for name in names)
