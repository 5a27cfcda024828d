"""The pure parts: types, dispositions, conditions, extents, parameters."""

import itertools

import pytest

from skymount.errors import MalformedError
from skymount.server.config import PortalConfig
from skymount.server.download import conditional, media_type
from skymount.server.download.endpoint import payload_ranges
from skymount.server.http.query_params import boolean, decode_path, number, parse_query
from skymount.server.http_error import HttpError
from skymount.server.upload.rules import PartList, UploadQuery
from skymount.wire.byte_range import ByteRange
from skymount.wire.multipart import PartHeader
from tests.server.http_client import FORM_TYPE


@pytest.mark.parametrize(
    ("stored", "name", "expected"),
    [
        ("a/b; c=d", "x.html", "a/b; c=d"),
        (" a/b ", "x.html", "a/b"),
        ("a\nb", "x.html", "text/html; charset=utf-8"),
        ("", "X.PNG", "image/png"),
        ("", "x.tar.gz", ""),
        ("", "x", ""),
    ],
)
def test_types_by_name(stored: str, name: str, expected: str) -> None:
    """The stored one if a header can carry it, else by extension."""
    assert media_type.stored_or_guessed(stored, name) == expected


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
    assert media_type.sniff(start) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.txt", 'inline; filename="a.txt"'),
        ('q"\\', 'inline; filename="q\\"\\\\"'),
        ("ü\r\nX: y", "inline; filename=\"___X: y\"; filename*=UTF-8''%C3%BC%0D%0AX%3A%20y"),
        ("", 'inline; filename=""'),
    ],
)
def test_dispositions(name: str, expected: str) -> None:
    """No name can end the quotes or the line."""
    assert media_type.disposition(name, attachment=False) == expected


def test_cut_gives_every_slice_of_every_extent() -> None:
    """Compared with slicing the joined bytes, for all ranges."""
    payload = bytes(range(30))
    extents = ((20, 5), (3, 0), (0, 4), (28, 2))
    joined = b"".join(payload[at : at + size] for at, size in extents)
    for start, stop in itertools.combinations(range(len(joined) + 1), 2):
        pieces = [
            payload[at : at + size] for at, size in payload_ranges(extents, ByteRange(start, stop))
        ]
        assert b"".join(pieces) == joined[start:stop]
        assert all(pieces)


def test_a_multipart_plan_knows_its_length() -> None:
    """Literal bytes and ranges together."""
    made = conditional.plan_response({}, "bytes=0-1,5-9", '"' + "e" * 64 + '"', "a/b", 100)
    literal = sum(len(part) for part in made.segments if isinstance(part, bytes))
    assert made.length == literal + 7
    assert made.headers == (("Content-Type", f"multipart/byteranges; boundary={'e' * 32}"),)


def test_parameters_follow_go() -> None:
    """The first of a name counts; booleans and numbers parse strictly."""
    assert parse_query(b"a=1&a=2&b=%20+") == {"a": "1", "b": "  "}
    assert boolean({"x": "T"}, "x")
    assert not boolean({"x": "FALSE"}, "x")
    assert not boolean({}, "x")
    assert number({"x": "0777"}, "x", base=8) == 0o777
    assert number({}, "x") is None
    for text in ("yes", "tRUE", " true"):
        with pytest.raises(HttpError):
            boolean({"x": text}, "x")
    for text in ("1.5", "-1", "+1", "1_000", "٣", "9" * 19):
        with pytest.raises(HttpError):
            number({"x": text}, "x")
    assert decode_path("a%2Fb+c%2B") == "a/b c+"


def test_parts_are_limited() -> None:
    """In number and in what their names weigh."""
    config = PortalConfig(data=None, max_parts=2, metadata_limit=1000)  # type: ignore[arg-type]
    parts = PartList(config)
    parts.begin(PartHeader("files[]", "a"), 0)
    parts.begin(PartHeader("files[]", "b"), 0)
    with pytest.raises(MalformedError, match="at most 2 files"):
        parts.begin(PartHeader("files[]", "c"), 0)
    parts = PartList(config)
    with pytest.raises(MalformedError, match="too large"):
        parts.begin(PartHeader("files[]", "a" * 500), 0)


def test_empty_parameters_are_absent() -> None:
    """But an empty tryfiles means none, where an absent one means the default."""
    query = UploadQuery.parse(
        {"tryfiles": ""}, content_type=FORM_TYPE.encode(), force_disabled=False
    )
    assert query.tryfiles == ()
    query = UploadQuery.parse(
        {"mode": "", "dryrun": ""}, content_type=FORM_TYPE.encode(), force_disabled=False
    )
    assert (query.tryfiles, query.mode, query.dryrun) == (None, 0, False)
