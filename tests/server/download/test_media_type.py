"""Content-Type and Content-Disposition."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from skymount.server.download import content_type
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
    assert content_type.stored_or_guessed(stored, name) == expected


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
    assert content_type.sniff(start) == expected


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
    assert content_type.disposition(name, attachment=False) == expected


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
