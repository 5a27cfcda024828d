"""Types, charsets and file names of content."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from skymount.server.download.content import (
    START_SIZE,
    disposition,
    is_utf8,
    may_declare,
    sniff,
    stored_or_guessed,
    takes_charset,
)
from skymount.wire.http.multipart import PartHeader
from tests.server.http_client import Client, skylink_of


@pytest.mark.parametrize(
    ("stored", "name", "expected"),
    [
        ("a/b; c=d", "x.html", "a/b; c=d"),
        (" a/b ", "x.html", "a/b"),
        ("a\nb", "x.html", "text/html; charset=utf-8"),
        ("", "X.PNG", "image/png"),
        ("", "x.tar.gz", "application/gzip"),
        ("", "x", ""),
    ],
)
def test_types_by_name(stored: str, name: str, expected: str) -> None:
    """The stored one if a header can carry it, else by extension."""
    assert stored_or_guessed(stored, name) == expected


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (b"", "text/plain; charset=utf-8"),
        (b"%PDF-1.4", "application/pdf"),
        (b"\n <!DOCTYPE HTML>", "text/html; charset=utf-8"),
        (b"<?xml version", "text/xml; charset=utf-8"),
        (b"RIFF....WEBPVP8", "image/webp"),
        (b"plain \xff text\r\n", "text/plain; charset=utf-8"),
        (b"bin\0ary", "application/octet-stream"),
    ],
)
def test_types_by_content(start: bytes, expected: str) -> None:
    """As Go sniffs them."""
    assert sniff(start) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.txt", 'inline; filename="a.txt"'),
        ('q"\\', "inline; filename=\"q__\"; filename*=UTF-8''q%22%5C"),
        ("f%2B.txt", "inline; filename=\"f_2B.txt\"; filename*=UTF-8''f%252B.txt"),
        ("a+b c;'.txt", 'inline; filename="a+b c;\'.txt"'),
        ("ü\r\nX: y", "inline; filename=\"___X: y\"; filename*=UTF-8''%C3%BC%0D%0AX%3A%20y"),
        ("", 'inline; filename=""'),
    ],
)
def test_dispositions(name: str, expected: str) -> None:
    """No name can end the quotes or the line."""
    assert disposition(name, attachment=False) == expected


def test_types_are_stored_guessed_or_sniffed(client: Client) -> None:
    """In that order; a stored type holds for files inside too."""
    link = client.upload({"a.css": b"x", "noext": b"\x89PNG\r\n\x1a\nxx", "text": b"hello"})
    assert client.get(f"/{link}/a.css").headers["Content-Type"] == "text/css; charset=utf-8"
    assert client.get(f"/{link}/noext").headers["Content-Type"] == "image/png"
    assert client.get(f"/{link}/text").headers["Content-Type"] == "text/plain; charset=utf-8"
    link = skylink_of(
        client.post_form(
            [(PartHeader("files[]", "a.css", "x/stored"), b"x"), (PartHeader("files[]", "b"), b"")],
            {"filename": "d"},
        )
    )
    assert client.get(f"/{link}/a.css").headers["Content-Type"] == "x/stored"


@pytest.mark.parametrize(
    ("program", "names"),
    [
        # It decodes a percent sign once more, whatever the header says.
        ("wget", ['q"x.txt', "back\\slash.txt", "a+b.txt", "é ü.txt", "50%.txt"]),
        # It does not know filename*.
        ("curl", ["a+b.txt", "plain.txt"]),
        # It takes no name with a backslash.
        ("aria2c", ["f%2B.txt", 'q"x.txt', "a+b.txt", "é ü.txt", "50%.txt"]),
    ],
)
def test_programs_save_under_the_name(
    client: Client, tmp_path: Path, program: str, names: list[str]
) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    options = {
        "wget": ["-q", "--content-disposition", "--restrict-file-names=nocontrol"],
        "curl": ["-sSOJ"],
        "aria2c": ["-q", "--no-conf", "--content-disposition-default-utf8=true"],
    }[program]
    for name in names:
        url = f"{client.base_url}/{client.upload_file(name, b'x')}?attachment=true"
        environment = {**os.environ, "LC_ALL": "C.UTF-8"}
        subprocess.run([program, *options, url], cwd=tmp_path, env=environment, check=True)
    assert {each.name for each in tmp_path.iterdir()} == set(names)


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
