"""Which portals depend on one, by the header of their requests."""

from skymount.server.http.messages import Request, Response
from skymount.server.upstream.loops import HEADER, LoopBreaker, Loops
from tests.server.http_client import request_of


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

    class Named:
        def __init__(self, name: str) -> None:
            self._name = name

        async def answer(self, request: Request) -> Response:
            asked.append(self._name)
            return Response(204)

        async def failed(self, request: Request, error: Exception) -> Response:
            raise AssertionError

        def varies(self, request: Request, status: int) -> tuple[str, ...]:
            return ()

    breaker = LoopBreaker(Named("full"), Named("stored"), loops)
    for text in ("", other.header, f"{other.header},{loops.header}", f"x,{loops.header}"):
        await breaker.answer(request_of(headers={HEADER.lower(): text} if text else {}))
    assert asked == ["full", "full", "stored", "stored"]


def test_many_or_strange_portals_downstream_are_bounded() -> None:
    told: list[str] = []
    loops = Loops(told.append)
    for number in range(200):
        loops.note(f"{number:016x}, {number:016x},x,{'y' * 100}")
    names = loops.header.split(",")
    assert len(names) == 65
    assert all(len(name) == 16 for name in names)
