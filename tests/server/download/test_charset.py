"""The charset that is added to text for browsers."""

import pytest

from skymount.server.download.content_type import START_SIZE, is_utf8, may_declare, takes_charset

_POLISH = "Zażółć gęślą jaźń\n"


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        ("text/plain", True),
        ("TEXT/HTML", True),
        ("text/plain; format=flowed", True),
        ("text/css ", True),
        ("text/javascript", True),
        ("application/javascript", True),
        ("application/x-javascript", True),
        ("application/xml", True),
        ("application/xhtml+xml", True),
        ("image/svg+xml", True),
        ("text/plain; charset=iso-8859-2", False),
        ("text/html;CHARSET = x", False),
        ("application/json", False),
        ("text/json", False),
        ("application/ld+json", False),
        ("image/png", False),
        ("application/octet-stream", False),
        ("", False),
    ],
)
def test_types_of_text(content_type: str, expected: bool) -> None:
    assert takes_charset(content_type) is expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (_POLISH.encode(), True),
        (_POLISH.encode("iso-8859-2"), False),
        (_POLISH.encode("utf-16"), False),
        (b"\xef\xbb\xbf" + _POLISH.encode(), True),
        (b"plain", True),
        (b"<p>\xc5\xbc", True),
        (b'<meta charset="utf-8">\xc5\xbc', True),
        (b"<META  name=x CharSet = UTF8>", True),
        (b"<meta charset=iso-8859-2>", False),
        (b"<meta charset=iso-8859-2>\xc5\xbc", False),
        (b'<meta http-equiv="Content-Type" content="text/html; charset=windows-1250">', False),
        (b"<!-- <meta charset=iso-8859-2> --><p>\xc5\xbc", True),
        (b"<!-- <meta charset=iso-8859-2>", True),
        (b'<?xml version="1.0" encoding="ISO-8859-2"?><a/>', False),
        (b"\xef\xbb\xbf<?xml version='1.0' encoding='utf-8'?><a/>", True),
        (b'<?xml version="1.0"?><a encoding="x"/>', True),
        (b'@charset "windows-1250"; a {}', False),
        (b'@charset "UTF-8"; a {}', True),
        (b"a { content: '@charset \"x\";' }", True),
        (b" " * 1024 + b"<meta charset=iso-8859-2>", True),  # too late to count
        (b"cut \xc5", False),
    ],
)
def test_utf8(content: bytes, expected: bool) -> None:
    """What declares another encoding keeps it: the charset of HTTP would count more."""
    assert is_utf8(content, is_whole=True, may_declare=True) is expected


def test_a_character_may_be_cut_at_the_end_of_what_is_looked_at() -> None:
    long = ("x" + "ż" * START_SIZE).encode()[:START_SIZE]
    assert is_utf8(long, is_whole=False, may_declare=False)
    assert not is_utf8(long, is_whole=True, may_declare=False)
    assert not is_utf8(b"\xff" + long, is_whole=False, may_declare=False)


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        ("text/html", True),
        ("Text/XML; a=b", True),
        ("text/css", True),
        ("application/xhtml+xml", True),
        ("image/svg+xml", True),
        ("text/plain", False),
        ("text/markdown", False),
        ("text/javascript", False),
    ],
)
def test_types_that_declare_an_encoding(content_type: str, expected: bool) -> None:
    assert may_declare(content_type) is expected


def test_text_that_quotes_a_declaration_declares_nothing() -> None:
    quoting = "Zażółć: <meta charset=iso-8859-2>".encode()
    assert is_utf8(quoting, is_whole=True, may_declare=False)
    assert not is_utf8(quoting, is_whole=True, may_declare=True)
