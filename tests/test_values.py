"""C3: types and ranges of what callers pass."""

import math

import pytest

from skymount.errors import MalformedError, WrongTypeError
from skymount.values import callback, duration, flag, integer, mapping, seconds, text, texts

HUGE = 10**5000  # more digits than Python prints


def test_values_that_fit():
    """They are returned as they are; seconds as a float, sequences as tuples."""
    assert text("a", "x") == "a"
    assert flag(False, "x") is False
    assert integer(HUGE, "x") == HUGE
    assert repr(seconds(2, "x")) == "2.0"
    assert [duration(each, "x") for each in ("5 min", "0", 0, 1.5)] == [300.0, 0.0, 0.0, 1.5]
    assert texts(["a", "b"], "x") == ("a", "b")
    assert mapping({1: 2}, "x") == {1: 2}
    assert callback(print, "x") is print
    assert callback(None, "x") is None


@pytest.mark.parametrize(
    ("check", "value", "words"),
    [
        (text, b"a", "a string, not bytes"),
        (flag, 1, "True or False, not int"),
        (flag, None, "True or False, not NoneType"),
        (integer, True, "an integer, not bool"),
        (integer, 1.0, "an integer, not float"),
        (seconds, True, "a number of seconds, not bool"),
        (duration, False, "a number of seconds, not bool"),
        (seconds, "1", "a number of seconds, not str"),
        (texts, "ab", "a list of strings, not a single one"),
        (texts, {"a"}, "a list of strings, not set"),
        (texts, 5, "a list of strings, not int"),
        (mapping, [1], "a mapping, not list"),
        (callback, 5, "callable, not int"),
    ],
)
def test_wrong_types(check: object, value: object, words: str):
    """The error names the argument, what it must be, and what it is."""
    with pytest.raises(WrongTypeError) as caught:
        check(value, "x")  # type: ignore[operator]
    assert str(caught.value) == f"x must be {words}"


@pytest.mark.parametrize("value", [[5], b"ab"])
def test_what_is_in_a_list(value: object):
    """Bytes are a sequence, too, but not of texts."""
    with pytest.raises(WrongTypeError, match="each of x must be a string, not int"):
        texts(value, "x")


def test_least_without_most():
    with pytest.raises(MalformedError, match="x must be at least 0"):
        integer(-HUGE, "x")


@pytest.mark.parametrize("value", [-1, 11, HUGE, -HUGE], ids=["-1", "11", "huge", "-huge"])
def test_integers_out_of_range(value: int):
    """The error says the range; it works for numbers too long to print."""
    with pytest.raises(MalformedError, match=r"x must be from 0 to 10"):
        integer(value, "x", 0, 10)


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, 10**400, 10.5])
def test_seconds_out_of_range(value: float):
    """Neither 0, nor beyond the limit, nor not a number."""
    with pytest.raises(MalformedError, match="x must be above 0 seconds and at most 10"):
        seconds(value, "x", 10)
    if value != 10.5:
        with pytest.raises(MalformedError, match="x must be above 0 seconds and finite"):
            seconds(value, "x")
