"""What callers pass is checked by itself: each wrong type and value has an error of its own."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skymount import values
from skymount.errors import MalformedError, WrongTypeError
from skymount.portal.client import arguments
from skymount.wire.registry_entry import DATA_LIMIT, MAX_REVISION
from skymount.wire.skylink import Skylink

LINK = "AAA9s0sR9i8NGy19EadRGcpUt0HdvDMHJilKGmW545-k1g"
HUGE = 10**400  # no float can hold it


@pytest.mark.parametrize("value", [-1, MAX_REVISION + 1, HUGE, -HUGE])
def test_revisions_out_of_range(value: int):
    """C3: Any other integer is a MalformedError, however long."""
    for each in (value, value * 10**5000):  # more digits than Python writes out
        with pytest.raises(MalformedError, match="revision must be from 0 to"):
            arguments.revision(each)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(300, 300), (1, 1), (0.001, 1), (299.5, 300), ("5", 5), ("1.2", 2), (300.0, 300)],
)
def test_registry_seconds(value: object, expected: int):
    """C10: Whole seconds, rounded up; also given as digits, or with a fraction."""
    found = arguments.seconds(value, 300, "timeout")
    assert (found, type(found)) == (expected, int)


@pytest.mark.parametrize(
    "value", [0, -1, 301, 300.001, HUGE, -HUGE, math.inf, math.nan, "nan", "inf", "301", "", "5s"]
)
def test_registry_seconds_out_of_range(value: object):
    """C10: Beyond 300 seconds is an error, as are none at all and what is no number."""
    with pytest.raises(MalformedError, match="timeout must be"):
        arguments.seconds(value, 300, "timeout")


@pytest.mark.parametrize("value", [None, True, b"5", [5], 5j])
def test_seconds_of_another_type(value: object):
    """C3: What is neither a number nor digits is a WrongTypeError."""
    with pytest.raises(WrongTypeError, match="timeout must be a number of seconds"):
        arguments.seconds(value, 300, "timeout")


def test_no_time_out():
    """None and an empty text stand for the portal's default."""
    assert arguments.optional_seconds(None, arguments.DOWNLOAD_TIMEOUT_LIMIT) is None
    assert arguments.optional_seconds("", arguments.DOWNLOAD_TIMEOUT_LIMIT) is None
    assert arguments.optional_seconds("900", arguments.DOWNLOAD_TIMEOUT_LIMIT) == 900
    with pytest.raises(MalformedError):
        arguments.optional_seconds(901, arguments.DOWNLOAD_TIMEOUT_LIMIT)


@pytest.mark.parametrize("value", [b"ab", bytearray(b"ab"), memoryview(b"ab"), "ab"])
def test_entry_data(value: object):
    """Data is bytes of any sort, or a text."""
    found = arguments.entry_data(value)
    assert (found, type(found)) == (b"ab", bytes)


def test_entry_data_limit():
    """113 bytes are the most; of a text those of its UTF-8 count."""
    assert arguments.entry_data("é" * 56 + "x") == ("é" * 56 + "x").encode()
    for value in (bytes(DATA_LIMIT + 1), "é" * 57):
        with pytest.raises(MalformedError, match="too big: 114 > 113"):
            arguments.entry_data(value)


def test_text_mappings():
    """Texts, with whole numbers as keys written out; no other keys."""
    assert arguments.text_mapping({404: "/a", "500": "/b"}, "error_pages") == {
        "404": "/a",
        "500": "/b",
    }
    for value in ({b"404": "/a"}, {True: "/a"}, {4.5: "/a"}, {None: "/a"}, {404: 5}, [404], "x"):
        with pytest.raises(WrongTypeError, match="error_pages"):
            arguments.text_mapping(value, "error_pages")


def test_local_paths(tmp_path: Path):
    """A path is a text or has __fspath__; bytes, nothing and NUL are not taken."""
    assert (
        arguments.local_path(str(tmp_path), "x") == arguments.local_path(tmp_path, "x") == tmp_path
    )
    for value in (b"a", 5, None):
        with pytest.raises(WrongTypeError):
            arguments.local_path(value, "x")
    for text in ("", "a\0b", "\ud800"):
        with pytest.raises(MalformedError):
            arguments.local_path(text, "x")


@pytest.mark.parametrize(
    ("value", "path", "expected"),
    [
        (LINK, "", ""),
        (f"svc://{LINK}/a%20b/c", "", "a b/c"),
        (f"svc://{LINK}/a/", "/b/", "a/b"),
        (f"https://portal.example/{LINK}/%61", "100%25", "a/100%25"),
        (Skylink(LINK), "/a%20b/", "a%20b"),
    ],
)
def test_links(value: object, path: str, expected: str):
    """The path of a link is decoded, one that is given by itself is taken as it is."""
    assert arguments.link(value, path) == (Skylink(LINK), expected)


@given(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(),
        st.binary(),
        st.lists(st.text()),
    )
)
def test_whatever_is_passed(value: Any):
    """C3: Every check takes any value: it gives a result, or an error of ours."""
    checks = (
        arguments.public_key,
        arguments.key_pair,
        arguments.revision,
        arguments.entry_data,
        arguments.link,
        lambda each: arguments.optional_seconds(each, 900),
        lambda each: arguments.seconds(each, 300, "x"),
        lambda each: arguments.tweak(each, True),
        lambda each: arguments.tweak(each, False),
        lambda each: values.integer(each, "x"),
        lambda each: values.texts(each, "x"),
        lambda each: arguments.text_mapping(each, "x"),
        lambda each: arguments.local_path(each, "x"),
    )
    for check in checks:
        try:
            check(value)
        except (MalformedError, WrongTypeError):
            pass


@pytest.mark.parametrize("path", ["..", ".", "../other", "a/../b", "/./a", "a/.."])
def test_path_that_leads_elsewhere(path: str):
    """C3: an element '.' or '..' is refused: in a URL it would lead to other content."""
    link = Skylink("AACogzrAimYPG42tDOKhS3lXZD8YvlF8Q8R17afe95iV2Q")
    with pytest.raises(MalformedError):
        arguments.link(link, path)
    with pytest.raises(MalformedError):
        arguments.link(f"svc://{link}/{path.replace('.', '%2E')}")
    with pytest.raises(MalformedError):
        arguments.inner_path(path)


def test_path_with_dots_in_names():
    """Dots within a name are nothing special."""
    assert arguments.inner_path("/a/..b/c./...") == "a/..b/c./..."
