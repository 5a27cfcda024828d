"""Which portals depend on one, by the header of their requests."""

from starlette.types import Message, Receive, Scope, Send

from skymount.server.upstream.loops import HEADER, LoopMiddleware, Loops


def test_those_downstream_are_told_to_upstream() -> None:
    told: list[str] = []
    first, second = Loops(told.append), Loops(told.append)
    second.note(first.header)
    assert told == [first.header, told[1], second.header]
    assert first.header in second.header.split(",")
    assert first.note(second.header)


async def test_own_requests_are_answered_without_upstream() -> None:
    told, asked = list[str](), list[str]()
    loops, other = Loops(told.append), Loops(told.append)

    async def full(scope: Scope, receive: Receive, send: Send) -> None:
        asked.append("full")

    async def stored(scope: Scope, receive: Receive, send: Send) -> None:
        asked.append("stored")

    async def receive() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        raise AssertionError

    app = LoopMiddleware(full, stored, loops)
    name = HEADER.lower().encode()
    for texts in ([], [other.header], [f"{other.header},{loops.header}"], ["x", loops.header]):
        headers = [(name, text.encode()) for text in texts]
        await app({"type": "http", "headers": headers}, receive, send)
    assert asked == ["full", "full", "stored", "stored"]


def test_many_or_strange_portals_downstream_are_bounded() -> None:
    told: list[str] = []
    loops = Loops(told.append)
    for number in range(200):
        loops.note(f"{number:016x}, {number:016x},x,{'y' * 100}")
    names = loops.header.split(",")
    assert len(names) == 65
    assert all(len(name) == 16 for name in names)
