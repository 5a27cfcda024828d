"""Heads and bodies from bytes: the same, however they are cut on their way."""

import time
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skymount.server.http.parsing import HEAD_LIMIT, BadRequestError, BodyReader, take_head
from tests.server.http.refused_requests import CASES, Case

_SHORT = 1000  # bytes of a request that is cut at each place


def _read(pieces: Iterable[bytes]) -> list[object]:
    """Return the requests in some bytes, with their bodies, and the status of a refusal."""
    found, held = list[object](), bytearray()
    reader: BodyReader | None = None

    def take() -> Iterator[object]:
        nonlocal reader
        while True:
            if reader is None:
                head = take_head(held)
                if head is None:
                    return
                yield (head.method, head.target, head.headers.fields)
                reader = BodyReader(head.body)
            while not reader.is_ended:
                data = reader.take(held)
                if data is None:
                    return
                yield data
            reader = None

    try:
        for piece in pieces:
            held += piece
            for each in take():
                if isinstance(each, bytes) and found and isinstance(found[-1], bytes):
                    found[-1] += each
                elif each != b"":
                    found.append(each)
    except BadRequestError as error:  # of a body that is refused there is more or less
        if found and isinstance(found[-1], bytes):
            found.pop()
        found.append(error.status)
    return found


@pytest.mark.parametrize(
    "case", [case for case in CASES if len(case.sent) < _SHORT], ids=lambda case: case.name
)
def test_where_it_is_cut_makes_no_difference(case: Case) -> None:
    sent = case.sent
    whole = _read([sent])
    assert _read(sent[at : at + 1] for at in range(len(sent))) == whole
    for at in range(1, len(sent)):
        assert _read([sent[:at], sent[at:]]) == whole


@given(
    st.lists(st.sampled_from([b"GET", b" ", b"/", b"\r\n", b"\n", b":", b"a", b"HTTP/1.1", b"0"]))
)
def test_any_bytes_have_an_end(parts: list[bytes]) -> None:
    """Nothing but a refusal comes of what is no request."""
    found = _read([b"".join(parts) + b"\r\n\r\n"])
    assert all(isinstance(each, tuple | bytes | int) for each in found)


def test_a_head_that_comes_byte_by_byte() -> None:
    """Each byte is looked at again with those before it, which must not take long."""
    held = bytearray(b"GET / HTTP/1.1\r\nA: ")
    held += b"x" * (HEAD_LIMIT - len(held) - 1)
    times = list[float]()
    for _ in range(50):
        began = time.thread_time()
        assert take_head(held) is None
        times.append(time.thread_time() - began)
    assert min(times) < 0.001


def test_chunks_with_long_extensions_are_read_a_few_at_once() -> None:
    """Other connections run after some hundred KiB of them."""
    reader, held = BodyReader(None), bytearray()
    held += (b"1;" + b"a" * 60_000 + b"\r\nb\r\n") * 100
    size = len(held)
    assert reader.take(held) == b"b" * 5
    assert size - len(held) < 400_000
