"""The media types of file names."""

import hashlib

import pytest

from skymount.wire import media_types


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("index.html", "text/html"),
        ("a/b.c/app.JS", "text/javascript"),  # RFC 9239
        ("module.mjs", "text/javascript"),
        ("style.css", "text/css"),
        ("data.json", "application/json"),
        ("picture.webp", "image/webp"),
        ("picture.svg", "image/svg+xml"),
        ("font.woff2", "font/woff2"),  # RFC 8081
        ("readme.md", "text/markdown"),  # RFC 7763
        ("film.ts", "video/mp2t"),  # IANA
        ("a.yaml", "application/yaml"),  # RFC 9512
        ("a.wasm", "application/wasm"),
        ("favicon.ico", "image/vnd.microsoft.icon"),
        ("page.html.gz", "application/gzip"),
        ("table.csv.gz", "application/gzip"),
        ("a.json.zst", "application/zstd"),
        ("a.tar.xz", "application/x-xz"),
        ("a.tar.bz2", "application/x-bzip2"),
        ("a.tgz", "application/gzip"),
        ("picture.svgz", "application/gzip"),
        ("README", ""),
        ("LICENSE", ""),
        (".html", ""),
        ("a.html/", ""),
        ("a.", ""),
        ("", ""),
        ("html", ""),
        ("a.unknown-extension", ""),
        ("a.\u212a", ""),
    ],
)
def test_type_of_a_name(name: str, expected: str) -> None:
    assert media_types.of_name(name) == expected


def test_the_table_is_frozen() -> None:
    """Another line gives uploads other skylinks: that takes a line in the changelog."""
    found = hashlib.sha256(media_types.table_text().encode()).hexdigest()
    assert found == "6c98b0df74ceda3a5f1fbf54a931fe71de079b5bb3c380edfeee4f8b45db628b"


def test_each_line_of_the_table() -> None:
    """A type without parameters, and extensions of which none occurs twice."""
    seen: set[str] = set()
    for line in media_types.table_text().splitlines():
        if line.startswith("#"):
            continue
        kind, *extensions = line.split(" ")
        assert kind.count("/") == 1
        assert ";" not in kind
        assert extensions
        assert all(each == each.lower() and each not in seen for each in extensions)
        seen.update(extensions)
