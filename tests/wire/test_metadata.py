"""Metadata JSON: the exact bytes that portals store, and what is made of anything else."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skymount.errors import MalformedError
from skymount.wire.metadata import (
    METADATA_LIMIT,
    SUBFILES_LIMIT,
    Metadata,
    Subfile,
    check_path,
    encode_metadata,
    fits_header,
    outline_metadata,
    parse_metadata,
    select,
    subpath_metadata,
)

VECTORS = json.loads((Path(__file__).parents[1] / "data" / "vectors.json").read_text())
STORED = [
    pytest.param(case["metadata"].encode(), id=f"{case['skylink'][:8]} {case['source']}")
    for case in VECTORS["content_to_skylink"]
]
MANY_LISTS = b"[%s[]]" % (b"[]," * (1 << 20))  # more than are read leniently
LEGACY = b'{"filename":"sia.pdf"}'
MAX_SIZE = (1 << 63) - 1


def go_string(text: str) -> str:
    """Write a JSON string as Go's encoding/json of 2021 does, character by character."""
    written = {char: f"\\u{ord(char):04x}" for char in [*map(chr, range(32)), *"<>&\u2028\u2029"]}
    written |= {"\n": r"\n", "\r": r"\r", "\t": r"\t", '"': r"\"", "\\": r"\\"}
    return '"' + "".join(written.get(char, char) for char in text) + '"'


def go_json(value: object) -> str:
    """Write a value as Go does: structs (lists) less empty members, maps sorted by bytes."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return go_string(value)
    if isinstance(value, tuple):
        return "[" + ",".join(map(go_json, value)) + "]"
    pairs = (
        sorted(value.items(), key=lambda pair: pair[0].encode())
        if isinstance(value, dict)
        else [(name, member) for name, member, always in value if member or always]
    )
    return "{" + ",".join(f"{go_string(name)}:{go_json(member)}" for name, member in pairs) + "}"


def go_metadata(meta: Metadata) -> bytes:
    """The members of docs/wire.md 2.5 in their order; True marks those that are always written."""
    subfiles = {
        path: [
            ("mode", sub.mode, False),
            ("filename", sub.filename, False),
            ("contenttype", sub.contenttype, False),
            ("offset", sub.offset, False),
            ("len", sub.len, False),
        ]
        for path, sub in meta.subfiles.items()
    }
    members = [
        ("filename", meta.filename, True),
        ("length", meta.length or 0, True),
        ("mode", meta.mode, False),
        ("subfiles", subfiles, False),
        ("defaultpath", meta.defaultpath, False),
        ("disabledefaultpath", meta.disabledefaultpath, False),
        ("tryfiles", meta.tryfiles, False),
        ("errorpages", meta.errorpages, False),
    ]
    return go_json(members).encode()


texts = st.text(max_size=12) | st.text(
    st.sampled_from('<>&\u2028\u2029\x00\x08\x0c\x1f\x7f\n\r\t"\\/é😀\ufffd')
)
subfiles = st.builds(
    Subfile,
    mode=st.integers(0, 0o7777),
    filename=texts,
    contenttype=texts,
    offset=st.integers(0, 1 << 40),
    len=st.integers(0, 1 << 40),
)
metadatas = st.builds(
    Metadata,
    filename=texts,
    length=st.integers(0, MAX_SIZE),
    mode=st.integers(0, 0o7777),
    subfiles=st.dictionaries(texts, subfiles, max_size=4),
    defaultpath=texts,
    disabledefaultpath=st.booleans(),
    tryfiles=st.lists(texts, max_size=3).map(tuple),
    errorpages=st.dictionaries(st.integers(400, 599).map(str), texts, max_size=3),
)

# --- writing


@pytest.mark.parametrize("raw", STORED)
def test_stored_bytes_are_reproduced(raw):
    """What a portal stores is read and written back byte by byte; the oldest lack a length."""
    expected = raw if raw != LEGACY else b'{"filename":"sia.pdf","length":0}'
    assert encode_metadata(parse_metadata(raw)) == expected


@given(metadatas)
def test_bytes_are_those_of_go(meta):
    """Any metadata is written as an independent writer of Go's rules writes it."""
    assert encode_metadata(meta) == go_metadata(meta)


@given(metadatas)
def test_round_trip(meta):
    """Own output reads back equal, and writing that again changes no byte."""
    raw = encode_metadata(meta)
    assert parse_metadata(raw) == meta
    assert encode_metadata(parse_metadata(raw)) == raw


@given(metadatas)
def test_lenient_reading_agrees_with_the_fast_one(meta):
    """One member of a wrong type elsewhere changes nothing in what the others mean."""
    raw = encode_metadata(meta)
    assert parse_metadata(raw[:-1] + b',"monetization":NaN}') == meta
    broken = raw.replace(b'"length":', b'"length":null,"x":', 1)
    lost = Metadata(
        **{name: getattr(meta, name) for name in meta.__struct_fields__ if name != "length"}
    )
    assert parse_metadata(broken) == lost


@pytest.mark.parametrize("text", ["\ud800", "a\udcff"])
@pytest.mark.parametrize("member", ["filename", "key", "errorpage"])
def test_text_that_is_no_utf8_is_not_written(member, text):
    """A lone surrogate raises UnicodeEncodeError wherever it stands, as documented."""
    meta = {
        "filename": Metadata(text),
        "key": Metadata("d", subfiles={text: Subfile()}),
        "errorpage": Metadata("d", errorpages={"404": text}),
    }[member]
    with pytest.raises(UnicodeEncodeError):
        encode_metadata(meta)


# --- reading


def test_first_live_metadata():
    """JSON without length or subfiles parses, and says that it has no length."""
    meta = parse_metadata(LEGACY)
    assert (meta.filename, meta.length, meta.subfiles, meta.payload_size) == (
        "sia.pdf",
        None,
        {},
        None,
    )


@pytest.mark.parametrize(
    ("raw", "size"),
    [
        (b"{}", None),
        (b'{"length":7}', 7),
        (b'{"length":0}', 0),
        (b'{"subfiles":{"a":{"offset":3,"len":4},"b":{"len":3}}}', 7),
        (b'{"length":9,"subfiles":{"a":{"len":3}}}', 9),
        (b'{"length":-1}', None),
        (b'{"length":9223372036854775808}', None),
        (b'{"length":true}', None),
    ],
)
def test_payload_size(raw, size):
    """The size is the length, for older JSON the end of the last subfile, else unknown."""
    assert parse_metadata(raw).payload_size == size


@pytest.mark.parametrize(
    "member", [b'"length":5', b'"length":"5"'], ids=["typed decoder", "lenient reader"]
)
@pytest.mark.parametrize(
    "record",
    [
        b'{"offset":-1}',
        b'{"len":-1}',
        b'{"offset":9223372036854775807,"len":1}',
        b'{"offset":99999999999999999999999}',
        b'{"offset":' + b"9" * 5000 + b"}",
        b'{"len":"1"}',
        b'{"len":null}',
        b'{"len":true}',
        b'{"len":1e999}',
        b"null",
        b"[]",
        b"7",
    ],
)
def test_broken_subfile_is_rejected_alone(record, member):
    """A record that makes no sense is listed with a reason; its neighbour stays."""
    raw = b"{" + member + b',"subfiles":{"good":{"len":1},"bad":' + record + b"}}"
    meta = parse_metadata(raw)
    assert meta.subfiles == {"good": Subfile(len=1)}
    assert [path for path, _ in meta.rejected] == ["bad"]
    assert all(reason for _, reason in meta.rejected)


def test_subfiles_of_a_wrong_type_are_reported():
    """Where the whole member is no object, that is what is listed."""
    assert parse_metadata(b'{"subfiles":[]}').rejected == (("", "subfiles is not a JSON object"),)
    assert parse_metadata(b'{"subfiles":null}').rejected == ()


@pytest.mark.parametrize("extra", [b"", b',"filename":7'], ids=["typed decoder", "lenient reader"])
@pytest.mark.parametrize(
    ("mode", "kept"),
    [(420, 0o644), (0o120777, 0o777), (-1, 0), (0o7777, 0o7777), (1 << 63 | 1, 0), (10**41 - 1, 0)],
)
def test_modes_hold_permission_bits_only(mode, kept, extra):
    """Type bits in a mode cannot make a subfile anything but a file."""
    raw = b'{"mode":%d,"subfiles":{"a":{"mode":%d}}%s}' % (mode, mode, extra)
    meta = parse_metadata(raw)
    assert (meta.mode, meta.subfiles["a"].mode) == (kept, kept)


def test_members_of_a_wrong_type_count_as_absent():
    """Each member that is not of its type is as if it were not there."""
    raw = json.dumps(
        {
            "filename": 1,
            "length": "1",
            "mode": None,
            "defaultpath": [],
            "disabledefaultpath": 1,
            "tryfiles": ["a", 1, None, "b"],
            "errorpages": {"404": 1, "500": "/e"},
            "subfiles": {"a": {"mode": "1", "filename": 1, "contenttype": None}},
        }
    )
    assert parse_metadata(raw.encode()) == Metadata(
        tryfiles=("a", "b"), errorpages={"500": "/e"}, subfiles={"a": Subfile()}
    )


def test_text_that_is_no_utf8_does_not_hide_the_rest():
    """Bad UTF-8 and lone surrogates stay recognisable in their strings."""
    meta = parse_metadata(b'{"subfiles":{"\xff":{"len":1},"\\ud800":{"len":2},"ok":{"len":3}}}')
    found = [(path, sub.len) for path, sub in meta.subfiles.items()]
    assert found == [("\udcff", 1), ("\ud800", 2), ("ok", 3)]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"null",
        b"[]",
        b'"text"',
        b"{",
        b'{"a":1}x',
        b"\xef\xbb\xbf{}",
        b"\xff\xfe{\0}\0",
        b'{"filename":"a\nb"}',
        b'{"length":01}',
        b"[" * 200_000,
        b'{"subfiles":' * 200_000,
        b'{"x":' + b"[" * 200_000,
    ],
    ids=lambda raw: repr(raw[:16]),
)
def test_what_is_no_metadata(raw):
    """What is not a JSON object is malformed, however deep it is nested."""
    with pytest.raises(MalformedError):
        parse_metadata(raw)


def test_limit_comes_before_the_parser():
    """N6: is larger than 256 MiB.

    Metadata over the limit are refused unread.
    """
    assert METADATA_LIMIT == 256 << 20
    with pytest.raises(MalformedError, match="over the limit"):
        parse_metadata(bytes(METADATA_LIMIT + 1))
    with pytest.raises(MalformedError, match="is malformed"):
        parse_metadata(bytes(METADATA_LIMIT))


def with_records(count: int) -> bytes:
    """Return metadata with so many records, all of one name."""
    return b'{"subfiles":{%s"a":{}}}' % (b'"a":{},' * (count - 1))


def test_limit_of_records():
    """N6: or has more than 2,097,152 records."""
    assert SUBFILES_LIMIT == 2_097_152
    assert parse_metadata(with_records(SUBFILES_LIMIT)).subfiles == {"a": Subfile()}
    with pytest.raises(MalformedError, match="more than 2097152 records"):
        parse_metadata(with_records(SUBFILES_LIMIT + 1))


@pytest.mark.parametrize(
    "extra",
    [
        b'"tryfiles":[%s""]' % (b'"",' * 100_000),
        b'"errorpages":{%s"":""}' % (b'"404":"/x",' * 100_000),
        b'"tryfiles":{"deep":' + b"[" * 500 + b"]" * 500 + b"}",
        b'"errorpages":7,"tryfiles":"x","defaultpath":[]',
    ],
    ids=["wide list", "wide object", "deep", "wrong types"],
)
def test_outline_skips_what_only_portals_use(extra):
    """S11: Of what a listing does not need nothing is decoded, whatever it is.

    All of it could not be decoded, for its many lists.
    """
    rest = b'%s,"x":%s,"subfiles":{"a":{"len":1}}}' % (extra, MANY_LISTS)
    outline = outline_metadata(b'{"filename":"f",' + rest)
    assert (outline.filename, dict(outline.files)) == ("f", {"a": Subfile(len=1)})
    with pytest.raises(MalformedError, match="too large"):
        outline_metadata(b'{"filename":7,' + rest)


def test_outline_lets_go_of_records():
    """S10: A record takes no memory once it was had, nor do the bytes when all were."""
    raw = bytearray(b'{"subfiles":{"a":{"len":1},"b":{"len":"x"}}}')
    outline = outline_metadata(memoryview(raw))
    with pytest.raises(BufferError):
        raw.clear()
    assert [path for path, _ in outline.files] == ["a", "b"]
    raw.clear()


def test_outline_keeps_to_the_limits():
    """N6: is larger than 256 MiB, or has more than 2,097,152 records."""
    with pytest.raises(MalformedError, match="over the limit"):
        outline_metadata(memoryview(bytes(METADATA_LIMIT + 1)))
    outline_metadata(memoryview(with_records(SUBFILES_LIMIT)))
    with pytest.raises(MalformedError, match="more than 2097152 records"):
        outline_metadata(memoryview(with_records(SUBFILES_LIMIT + 1)))
    with pytest.raises(MalformedError, match="too large"):
        dict(outline_metadata(b'{"subfiles":{"a":%s}}' % MANY_LISTS).files)


# --- paths


@pytest.mark.parametrize(
    "path", ["a", "a/b.txt", "...", ".a", "a..", "..a/b", "a b", "ü", "a\\b", "a\n", "-"]
)
def test_paths_of_uploads(path):
    """Names that siad modules/siapath.go:282-330 takes are taken."""
    check_path(path)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/a",
        "a/",
        "a//b",
        ".",
        "..",
        "./a",
        "../a",
        "a/.",
        "a/..",
        "a/./b",
        "a/../b",
        "\ud800",
    ],
)
def test_bad_paths_of_uploads(path):
    """Empty, absolute, dotted and undecodable names are refused (docs/wire.md 3.3)."""
    with pytest.raises(MalformedError):
        check_path(path)


DIRECTORY = Metadata(
    "dir",
    6,
    mode=0o755,
    defaultpath="/a/1",
    subfiles={
        "a/1": Subfile(filename="a/1", len=2),
        "a/2": Subfile(filename="a/2", offset=2, len=3),
        "ab": Subfile(filename="ab", offset=5, len=1),
    },
)


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("", ["a/1", "a/2", "ab"]),
        ("a", ["a/1", "a/2"]),
        ("a/", ["a/1", "a/2"]),
        ("a/2", ["a/2"]),
        ("ab", ["ab"]),
        ("b", []),
        ("a/2/", []),
    ],
)
def test_selection(path, names):
    """A path selects a file, or what lies below it as a directory, and nothing alike."""
    assert list(select(DIRECTORY, path)) == names


def test_file_wins_over_directory_in_a_selection():
    """Where a name is both, a download gives the file (docs/wire.md 4.3)."""
    meta = Metadata(subfiles={"a": Subfile(len=1), "a/b": Subfile(len=2)})
    assert list(select(meta, "a")) == ["a"]
    assert list(select(meta, "a/")) == ["a/b"]


def test_metadata_of_a_sub_path():
    """The example of docs/wire.md 4.5, byte by byte: rebased, whole names, nothing else."""
    found = subpath_metadata("a/2", select(DIRECTORY, "a/2"))
    assert encode_metadata(found) == (
        b'{"filename":"/a/2","length":3,"subfiles":{"a/2":{"filename":"a/2","len":3}}}'
    )
    found = subpath_metadata("a/", select(DIRECTORY, "a/"))
    assert (found.filename, found.length, found.subfiles["a/2"].offset) == ("/a", 5, 2)


@pytest.mark.parametrize(
    ("raw", "limit", "fits"),
    [
        (b"{}", 2, True),
        (b"{}", 1, False),
        ("ü\t".encode(), 9, True),
        (b"a\nb", 9, False),
        (b"a\rb", 9, False),
        (b"a\0b", 9, False),
        (b"a\x7fb", 9, False),
    ],
)
def test_header_takes_short_metadata_without_control_characters(raw, limit, fits):
    """Metadata travel in a header only if nothing in them can break it."""
    assert fits_header(raw, limit) is fits
