"""Headers of the parts of a multipart upload."""

from email.parser import BytesHeaderParser

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skymount.errors import MalformedError
from skymount.wire.http.multipart import PART_HEADER_LIMIT, PartHeader


def headers_of(raw: bytes) -> list[tuple[bytes, bytes]]:
    """Take a part's header lines apart as a multipart reader does."""
    assert raw.endswith(b"\r\n")
    lines = raw[:-2].split(b"\r\n")
    return [(name, value) for name, _, value in (line.partition(b": ") for line in lines)]


names = st.text(max_size=15) | st.text(
    st.sampled_from("\"\\;=%'\r\n\t\0\x7f /é😀\u2028\x85"), max_size=15
)


@given(st.sampled_from(["file", "files[]", 'a"b\\']), names, st.integers(0, 0o7777))
@example("file", "a\r\nX-Evil: 1", 0)
@example("file", "UTF-8''%41", 0)
@example("file", ' "', 0)
def test_part_round_trip(field, filename, mode):
    """Any file name comes back as it was, in exactly the header lines that were meant."""
    part = PartHeader(field, filename, "text/plain; charset=utf-8", mode)
    headers = headers_of(part.encode())
    expected = [b"Content-Disposition", b"Content-Type", b"Mode"]
    assert [name for name, _ in headers] == expected[: 2 + bool(mode)]
    assert PartHeader.parse(headers) == part


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=15))
def test_part_name_reads_back_with_another_parser(filename):
    """The standard library's mail parser, which strips names, finds the same printable ASCII."""
    header = BytesHeaderParser().parsebytes(PartHeader("file", filename).encode())
    assert header.get_filename() == filename.strip()


@pytest.mark.parametrize(
    "part", [PartHeader("f\r\nX: 1", "a"), PartHeader("f", "a", "text/plain\r\nX: 1")]
)
def test_control_characters_add_no_header(part):
    """A field name or type with line ends stays in its line."""
    names = [name for name, _ in headers_of(part.encode())]
    assert b"X" not in names


@pytest.mark.parametrize(
    ("disposition", "field", "filename"),
    [
        (b'form-data; name="file"; filename="a/b.txt"', "file", "a/b.txt"),
        (b"form-data; name=files[]; filename=a.txt", "files[]", "a.txt"),
        (b"Form-Data ;NAME=file ; FileName = a b ", "file", "a b"),
        (b'form-data; name="file"; filename="a";', "file", "a"),
        (b'form-data; name="file"; filename="a;" ; ', "file", "a;"),
        (b"form-data; name=file; filename=a;", "file", "a"),
        (b'form-data; name="file"; filename="a%22b%0D%0Ac%2F"', "file", "a%22b%0D%0Ac%2F"),
        (rb'form-data; name="file"; filename="C:\dir\x.txt"', "file", r"C:\dir\x.txt"),
        (rb'form-data; name="file"; filename="a\"b\\c"', "file", 'a"b\\c'),
        (b'form-data; name="file"; filename="a%22;=b"', "file", "a%22;=b"),
        ('form-data; name="file"; filename="ü"'.encode(), "file", "ü"),
        (b"form-data; name=f; filename=x; filename*=utf-8''%C3%BC", "f", "ü"),
        (b"form-data; name=f; filename*=UTF-8'de'%C3%BC; filename=x", "f", "ü"),
        (b'form-data; name=a; name=b; filename=""', "a", ""),
        (b"form-data", "", ""),
    ],
)
def test_dispositions_of_clients(disposition, field, filename):
    """Field and file name as curl, browsers and SDKs write them, the name with its directories."""
    part = PartHeader.parse(
        [(b"Content-Disposition", disposition), (b"content-TYPE", b" text/css ")]
    )
    assert (part.field, part.filename, part.contenttype, part.mode) == (
        field,
        filename,
        "text/css",
        0,
    )


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"Content-Disposition", b"attachment; filename=a")],
        [(b"Content-Disposition", b'form-data; filename="a')],
        [(b"Content-Disposition", b'form-data; filename="a\\"')],
        [(b"Content-Disposition", b"form-data; filename")],
        [(b"Content-Disposition", b'form-data; filename="a"b')],
        [(b"Content-Disposition", b'form-data; filename="\xff"')],
        [(b"Content-Disposition", b"form-data; filename*=UTF-8''%FF")],
        [(b"Content-Disposition", b"form-data; filename*=latin1''%FC")],
        [(b"Content-Disposition", b"form-data; filename*=x")],
        [(b"Content-Disposition", b"form-data"), (b"Mode", b"888")],
        [(b"Content-Disposition", b"form-data"), (b"Mode", b"0o644")],
        [(b"Content-Disposition", b"form-data"), (b"Mode", b"-644")],
        [(b"Content-Disposition", b"form-data"), (b"Mode", b"7" * 5000)],
        [(b"Content-Disposition", b"form-data"), (b"X", b"x" * PART_HEADER_LIMIT)],
    ],
)
def test_bad_part_is_malformed(headers):
    """A part that is no form data, or whose name or mode cannot be read, is refused."""
    with pytest.raises(MalformedError):
        PartHeader.parse(headers)


@pytest.mark.parametrize(("text", "mode"), [(b"644", 0o644), (b" 0755 ", 0o755), (b"", 0)])
def test_mode_is_octal(text, mode):
    """The Mode header of a part is octal text (docs/wire.md 3.3)."""
    assert PartHeader.parse([(b"Content-Disposition", b"form-data"), (b"Mode", text)]).mode == mode


@pytest.mark.parametrize(
    ("name", "filename"),
    [
        ('filename="a%22b%0D%0Ac"', 'a"b\r\nc'),
        ('filename="a%2522%25%41%0a"', "a%2522%25%41%0a"),  # nothing else is escaped in HTML
        (r'filename="a\"b%22"', 'a"b"'),
        ("filename=\"no\"; filename*=UTF-8''a%2522b", "a%22b"),
    ],
)
def test_a_name_as_html_has_it(name: str, filename: str) -> None:
    """HTML, multipart form data: a quote, CR and LF of a name are written in percent."""
    header = (b"Content-Disposition", f'form-data; name="file"; {name}'.encode())
    assert PartHeader.parse([header], by_html=True).filename == filename
