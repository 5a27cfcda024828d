"""Answers: headers in any case, what a status means, and how long to wait before asking again."""

from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skymount.portal.http.response import Headers, Response, parse_retry_after

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_headers():
    """Names compare in any case; several values are joined; bytes are there as they came."""
    headers = Headers([(b"A-b", b"1"), (b"X", "é".encode()), (b"a-B", b"2"), (b"Y", b"\xe9")])
    assert headers["a-b"] == headers["A-B"] == "1, 2"
    assert headers["x"] == headers["Y"] == "é"
    assert headers.raw("y") == b"\xe9"
    assert headers.raw("A-B") == b"1"
    assert headers.raw("none") is None
    assert "X" in headers
    assert "none" not in headers
    assert 5 not in headers
    assert headers.get("none", "-") == "-"
    assert sorted(headers) == ["a-b", "x", "y"]
    assert len(headers) == 3


@pytest.mark.parametrize(
    ("text", "length"),
    [("0", 0), ("12", 12), ("-1", None), ("", None), ("1" * 20, None), ("1_0", None), ("²", None)],
)
def test_length(text: str, length: int | None):
    """A length is digits, few enough, or none."""
    assert Headers([(b"Content-Length", text.encode())]).length == length


def test_repr_of_an_answer():
    """Neither header values nor the body are in a repr."""
    answer = Response(200, Headers([(b"Set-Cookie", b"secret")]), b"secret")
    assert "secret" not in repr(answer)
    assert "set-cookie" in repr(answer)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        (" 7 ", 7),
        ("999999999", 999999999),
        ("Fri, 02 Jan 2026 03:04:35 GMT", 30),
        ("Fri, 02 Jan 2026 03:04:35 -0000", 30),
        ("Thu, 01 Jan 2026 00:00:00 GMT", 0),
        ("Friday, 02-Jan-26 03:04:35 GMT", 30),
        ("", None),
        ("-5", None),
        ("1.5", None),
        ("soon", None),
        ("9999999999", None),
        ("Fri, 32 Jan 2026 03:04:35 GMT", None),
    ],
)
def test_retry_after(text: str, seconds: float | None):
    """Seconds or an HTTP date; what has passed is now, anything else is not there."""
    assert parse_retry_after(text, NOW) == seconds


@given(st.text())
def test_any_retry_after(text: str):
    """Whatever a portal writes, it is seconds from now or nothing."""
    seconds = parse_retry_after(text, NOW)
    assert seconds is None or seconds >= 0


@given(st.datetimes(timezones=st.just(UTC), min_value=datetime(1970, 1, 1)))  # noqa: DTZ001 - naive by its contract
def test_any_date(date: datetime):
    """A date is the seconds until then."""
    date = date.replace(microsecond=0)
    assert parse_retry_after(format_datetime(date, usegmt=True), NOW) == max(
        0, (date - NOW).total_seconds()
    )
