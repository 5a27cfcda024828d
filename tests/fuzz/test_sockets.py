"""A real socket carries answers as the targets' stream in memory does."""

from functools import partial
from random import Random

import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from skymount.portal.http.http11 import HTTP11Connection
from tests.fuzz.engine import mutate, pieces
from tests.fuzz.portal import ANSWERS, HEAD_TOKENS, exchanged, in_memory, no_tls


async def _on_a_socket(parts: list[bytes], into: bool) -> object:
    """Ask a server that sends these pieces and hangs up."""

    async def answer(stream: trio.SocketStream) -> None:
        await stream.receive_some(65536)
        for part in parts:
            try:
                await stream.send_all(part)
            except trio.BrokenResourceError:
                break
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, answer, 0, host="127.0.0.1")
        (listener,) = await nursery.start(serve)
        url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/"
        with trio.fail_after(30):
            found = await exchanged(HTTP11Connection(no_tls, 60), url, "GET", into)
        nursery.cancel_scope.cancel()
    return found


@settings(derandomize=True, database=None, deadline=None, max_examples=60)
@given(random=st.randoms(use_true_random=False), into=st.booleans())
def test_answers_on_a_socket(random: Random, into: bool) -> None:
    """The same answer, or none either way."""
    data = mutate(random, ANSWERS, HEAD_TOKENS)
    parts = pieces(data[2:], data[1:2])
    expected = trio.run(in_memory, parts, "GET", into)
    assert trio.run(_on_a_socket, parts, into) == expected
