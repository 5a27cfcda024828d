"""The Range and Content-Range headers, held against RFC 9110 14 and a definition by sets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skymount.errors import MalformedError
from skymount.wire.http.byte_range import RANGES_LIMIT, ByteRange, parse_range

GREATEST = (1 << 63) - 1  # bytes, the last offset that a file can have


def asked(text: str, size: int) -> list[tuple[int, int]] | None:
    found = parse_range(text, size)
    return None if found is None else [(part.start, part.stop) for part in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bytes=0-499", [(0, 500)]),
        ("bytes=500-999", [(500, 1000)]),
        ("bytes=-500", [(9500, 10000)]),
        ("bytes=9500-", [(9500, 10000)]),
        ("bytes=0-0,-1", [(0, 1), (9999, 10000)]),
        ("bytes= 0-999, 4500-5499, -1000", [(0, 1000), (4500, 5500), (9000, 10000)]),
        ("bytes=500-600,601-999", [(500, 601), (601, 1000)]),
    ],
)
def test_examples_of_the_rfc(text, expected):
    """The examples of RFC 9110 14.1.2 for content of 10,000 bytes."""
    assert asked(text, 10_000) == expected


@pytest.mark.parametrize(
    ("text", "size", "expected"),
    [
        ("bytes=5-99", 10, [(5, 10)]),
        ("bytes=-99", 10, [(0, 10)]),
        ("bytes=9-9", 10, [(9, 10)]),
        ("bytes=10-", 10, []),
        ("bytes=10-20", 10, []),
        ("bytes=-0", 10, []),
        ("bytes=0-", 0, []),
        ("bytes=-1", 0, []),
        ("bytes=10-,0-0", 10, [(0, 1)]),
        ("bytes=,0-0,,", 10, [(0, 1)]),
        ("BYTES=0-0", 10, [(0, 1)]),
        ("items=0-0", 10, None),
        ("bytes", 10, None),
        ("", 10, None),
        ("bytes=0-9,0-0", 10, None),
        ("bytes=0-4,5-9", 10, [(0, 5), (5, 10)]),
        ("bytes=" + ",".join(["0-0"] * RANGES_LIMIT), 1000, [(0, 1)] * RANGES_LIMIT),
        ("bytes=" + ",".join(["0-0"] * (RANGES_LIMIT + 1)), 1000, None),
    ],
)
def test_satisfiable_ranges(text, size, expected):
    """What the content cannot give is left out; None where the header is to be ignored."""
    assert asked(text, size) == expected


@pytest.mark.parametrize(
    "text",
    [
        "bytes=1",
        "bytes=-",
        "bytes=2-1",
        "bytes=a-b",
        "bytes=0x1-2",
        "bytes=--1",
        "bytes=+1-2",
        "bytes=1-2-3",
        "bytes=1_0-20",
        "bytes=\u0660-\u0664",
        "bytes=0-1;2-3",
        "bytes=" + "9" * 5000 + "-",
        "bytes=-" + "9" * 5000,
    ],
)
def test_bad_range_is_malformed(text):
    """What is no range is refused, also digits of other scripts and endless numbers."""
    with pytest.raises(MalformedError):
        parse_range(text, 10)


positions = st.none() | st.integers(0, 25)


@given(st.lists(st.tuples(positions, positions), min_size=1, max_size=4), st.integers(0, 20))
def test_ranges_are_those_of_the_definition(specs, size):
    """Any header selects the bytes that RFC 9110 14.1.2 defines, position by position."""
    text = "bytes=" + ",".join(
        "-".join("" if n is None else str(n) for n in spec) for spec in specs
    )
    if any(a is b is None or (a is not None and b is not None and a > b) for a, b in specs):
        with pytest.raises(MalformedError):
            parse_range(text, size)
        return
    wanted = [
        [at for at in range(size) if (at >= size - last if first is None else at >= first)]
        if first is None or last is None
        else [at for at in range(size) if first <= at <= last]
        for first, last in specs
    ]
    selected = [positions for positions in wanted if positions]
    found = parse_range(text, size)
    if sum(map(len, selected)) > size:
        assert found is None
    else:
        assert [list(range(part.start, part.stop)) for part in found] == selected


@pytest.mark.parametrize(
    ("start", "stop"), [(0, 0), (5, 4), (-1, 4), (0, GREATEST + 1), (1 << 64, 1 << 65)]
)
def test_no_empty_or_impossible_range(start, stop):
    """A range holds at least one byte and ends where a file can end."""
    with pytest.raises(MalformedError):
        ByteRange(start, stop)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "bytes */10",
        "bytes 0-10/10",
        "bytes 5-4/10",
        "bytes 0-1",
        "bytes=0-1/2",
        "bytes 0-/2",
        "bytes \u0660-\u0661/\u0662",
        "items 0-1/2",
        f"bytes 0-{'9' * 19}/*",
        f"bytes 0-{'9' * 5000}/*",
    ],
)
def test_bad_content_range_is_malformed(text):
    """An answer that does not say which bytes it holds is refused."""
    with pytest.raises(MalformedError):
        ByteRange.parse_content_range(text)
