"""The skylink: known answers, every bitfield there is, every form of a link, and garbage."""

import base64
import copy
import json
import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skymount.errors import MalformedError
from skymount.wire.dialect import Dialect
from skymount.wire.skylink import (
    SECTOR_SIZE,
    Skylink,
    decode_bitfield,
    encode_bitfield,
    parse_skylink,
    split_link,
)

VECTORS = json.loads((Path(__file__).parents[1] / "data" / "vectors.json").read_text())

PDF = "XABvi7JtJbQSMAcDwnUnmp2FKDPjg8_tTTFP4BwMSxVdEg"
PDF_BASE32 = "bg06v2tidkir84hg0s1s4t97jaeoaa1jse1svrad657u070c9calq4g"
PDF_LINK = Skylink(PDF)

KIB = 1024
FETCH_SIZES = {
    0: range(4, 33, 4),
    1: range(36, 65, 4),
    2: range(72, 129, 8),
    3: range(144, 257, 16),
    4: range(288, 513, 32),
    5: range(576, 1025, 64),
    6: range(1152, 2049, 128),
    7: range(2304, 4097, 256),
}
"""Of docs/wire.md 1.3: mode -> fetch sizes in KiB; offsets are aligned to 4 KiB << mode."""

LEGAL_RANGES = {
    (offset, size * KIB)
    for mode, sizes in FETCH_SIZES.items()
    for size in sizes
    for offset in range(0, SECTOR_SIZE - size * KIB + 1, 4 * KIB << mode)
}


def cases(section: str) -> list:
    """Parametrize over a section of the vectors; the id names where the answer stands."""
    return [
        pytest.param(
            SimpleNamespace(**case),
            id=f"{case['skylink'][:8]} {case['source']}" if "skylink" in case else str(case),
        )
        for case in VECTORS[section]
    ]


def decoded_or_none(bitfield: int) -> tuple[int, int] | None:
    try:
        return decode_bitfield(bitfield)
    except MalformedError:
        return None


def of_parts(bitfield: int, root: bytes) -> Skylink:
    return Skylink.from_bytes(bitfield.to_bytes(2, "little") + root)


# --- known answers


@pytest.mark.parametrize("case", cases("skylink_parse"))
def test_text_and_bytes_of_a_known_skylink(case):
    """Both text forms, in any case of base32, and the raw bytes name the same skylink."""
    link = Skylink(case.skylink)
    assert str(link) == case.skylink
    assert link.base32 == case.base32
    assert bytes(link).hex() == case.raw
    assert (link.bitfield, link.root.hex(), link.version) == (
        case.bitfield,
        case.root,
        case.version,
    )
    forms = (case.base32, case.base32.upper(), case.base32.title())
    assert [Skylink(form) for form in forms] == [link] * 3
    assert Skylink.from_bytes(bytes.fromhex(case.raw)) == link


@pytest.mark.parametrize(
    "case", [case for case in cases("skylink_parse") if case.values[0].version == 1]
)
def test_offset_and_fetch_size_of_a_known_skylink(case):
    """A v1 skylink says where its base sector begins and how much to fetch."""
    link = Skylink(case.skylink)
    assert (link.offset, link.fetch_size) == (case.offset, case.fetchsize)


@pytest.mark.parametrize("case", cases("resolver_skylink"))
def test_text_forms_of_a_known_resolver_skylink(case):
    """A v2 skylink holds the registry entry's id; its texts begin with AQ and 04."""
    link = Skylink.v2(bytes.fromhex(case.entryId))
    assert (str(link), link.base32, link.version) == (case.skylink, case.base32, 2)
    assert Skylink(case.skylink) == Skylink(case.base32) == link
    assert (case.skylink[:2], case.base32[:2]) == ("AQ", "04")


@pytest.mark.parametrize("case", cases("bitfield_encode"))
def test_known_bitfield(case):
    """Offset and length give the bitfield of siad modules/skylink_test.go:21-76."""
    assert encode_bitfield(case.offset, case.length) == case.bitfield
    assert decode_bitfield(case.bitfield) == (case.offset, case.fetchsize)


@pytest.mark.parametrize("case", cases("bitfield_encode_errors"))
def test_known_bad_alignment(case):
    """Offsets that siad modules/skylink_test.go:99-114 refuses are refused."""
    with pytest.raises(MalformedError):
        encode_bitfield(case.offset, case.length)


@pytest.mark.parametrize("case", cases("bitfield_illegal"))
def test_known_illegal_bitfield(case):
    """An illegal bitfield makes no skylink, whatever it is built from."""
    raw = case.bitfield.to_bytes(2, "little") + bytes(32)
    with pytest.raises(MalformedError):
        decode_bitfield(case.bitfield)
    with pytest.raises(MalformedError):
        Skylink.from_bytes(raw)
    with pytest.raises(MalformedError):
        Skylink(base64.urlsafe_b64encode(raw).decode().rstrip("="))


def test_known_hnsres_link():
    """The link in a real hnsres answer parses (portal health-check extended.js:985-1007)."""
    link = json.loads(VECTORS["hnsres_body"][0]["body"])["skylink"]
    assert f"sia://{parse_skylink(link)}" == link


# --- every bitfield


def test_all_bitfields():
    """Of 65,536 bitfields 400 v1 ones are illegal, and 1 is the only one with other low bits."""
    v1 = [decoded_or_none(bitfield) for bitfield in range(0, 1 << 16, 4)]
    assert v1.count(None) == 400
    assert all(decoded_or_none(bitfield) is None for bitfield in range(1 << 16) if bitfield & 3)
    legal = []
    for bitfield in range(1 << 16):
        try:
            legal.append(of_parts(bitfield, bytes(32)).bitfield)
        except MalformedError:
            continue
    assert [bitfield for bitfield in legal if bitfield & 3] == [1]
    assert len(legal) == (1 << 14) - 400 + 1


def test_all_bitfields_mean_the_ranges_of_the_table():
    """The legal v1 bitfields are, one by one, the ranges of docs/wire.md 1.3, and encode back."""
    meaning = {b: decoded_or_none(b) for b in range(0, 1 << 16, 4)}
    ranges = [pair for pair in meaning.values() if pair is not None]
    assert set(ranges) == LEGAL_RANGES
    assert len(ranges) == len(LEGAL_RANGES)
    assert all(encode_bitfield(*pair) == b for b, pair in meaning.items() if pair is not None)


@given(length=st.integers(0, SECTOR_SIZE))
@example(0)
@example(SECTOR_SIZE)
def test_length_rounds_up_to_the_next_fetch_size(length):
    """At offset 0 the smallest fetch size of the table that holds the length is taken."""
    sizes = [size * KIB for sizes in FETCH_SIZES.values() for size in sizes]
    expected = min(size for size in sizes if size >= length)
    assert decode_bitfield(encode_bitfield(0, length)) == (0, expected)


@pytest.mark.parametrize(("offset", "length"), [(SECTOR_SIZE, 0), (-4096, 1), (0, -1)])
def test_range_outside_the_sector_is_refused(offset, length):
    """Not even an empty range may begin at the end of the sector."""
    with pytest.raises(MalformedError):
        encode_bitfield(offset, length)


@pytest.mark.parametrize("mode", FETCH_SIZES)
def test_rounding_up_never_leaves_the_sector(mode):
    """Every aligned offset takes every length that fits the sector, to the last byte."""
    largest = FETCH_SIZES[mode][-1] * KIB
    smallest = 0 if mode == 0 else FETCH_SIZES[mode - 1][-1] * KIB + 1
    for offset in range(0, SECTOR_SIZE - smallest + 1, 4 * KIB << mode):
        length = min(largest, SECTOR_SIZE - offset)
        for fits in {max(smallest, length - 1), length}:
            if offset + max(fits, 1) <= SECTOR_SIZE:
                assert decode_bitfield(encode_bitfield(offset, fits))[0] == offset
        with pytest.raises(MalformedError):
            encode_bitfield(offset, SECTOR_SIZE - offset + 1)


# --- the value


@pytest.mark.parametrize("last", "ghijklmnopqrstuv")
def test_unused_bits_of_the_last_character_are_ignored(last):
    """S2: sixteen spellings of it name the same content.

    The sixteen last characters of the same 272 bits are one skylink (docs/wire.md 1.1).
    """
    link = Skylink(PDF)
    assert PDF[-1] in "ghijklmnopqrstuv"
    assert Skylink(PDF[:-1] + last) == link
    assert str(Skylink(PDF[:-1] + last)) == PDF


@pytest.mark.parametrize("size", [0, 31, 33])
def test_hash_has_32_bytes(size):
    """A hash of any other length makes no skylink."""
    with pytest.raises(MalformedError):
        of_parts(0, bytes(size))


@pytest.mark.parametrize("link", [Skylink(PDF), Skylink.v2(bytes(range(32)))])
def test_a_skylink_is_a_string(link):
    """C19: its 46-character form, for whatever takes a string, and after a copy still a skylink."""
    text = str(link)
    assert type(text) is str
    assert len(text) == 46
    assert link == text
    assert hash(link) == hash(text)
    assert f"{link}" == text
    assert json.loads(json.dumps({link: link})) == {text: text}
    for copied in (pickle.loads(pickle.dumps(link)), copy.deepcopy(link)):
        assert type(copied) is Skylink
        assert copied == link
        assert bytes(copied) == bytes(link)


def test_v2_has_no_extent():
    """A resolver skylink points to no bytes of a sector."""
    link = Skylink.v2(bytes(32))
    with pytest.raises(MalformedError):
        _ = link.offset
    with pytest.raises(MalformedError):
        _ = link.fetch_size


def test_v1_names_a_range():
    """A v1 skylink is built from root, length and offset."""
    link = Skylink.v1(b"r" * 32, 33000, 8192)
    assert (link.offset, link.fetch_size, link.version) == (8192, 36 * KIB, 1)


# --- links

PREFIXES = [
    "",
    "/",
    "svc:",
    "svc://",
    "sia:",
    "sia://",
    "SIA://",
    "https://portal.example/",
    "HTTP://portal.example:8080/",
    "https://user:secret@[::1]/",
]


@pytest.mark.parametrize("text", [PDF, PDF_BASE32, PDF_BASE32.upper()], ids=["64", "32", "32 up"])
@pytest.mark.parametrize("prefix", PREFIXES)
def test_forms_of_a_link(prefix, text):
    """Bare, with a scheme or as a portal URL, with a path, query or fragment: one skylink."""
    for tail, path in {
        "": "",
        "/": "",
        "?x=/y": "",
        "#f": "",
        "/a b/ü%2F": "/a b/ü%2F",
        "/d/": "/d",
        "/f?q#h": "/f",
    }.items():
        assert split_link(prefix + text + tail) == (PDF_LINK, path)
    assert parse_skylink(prefix + text) == PDF_LINK


@pytest.mark.parametrize("text", [PDF, PDF_BASE32], ids=["64", "32"])
@pytest.mark.parametrize(
    "directory", ["svc/skylink", "skynet/skylink", "file", "-/view"], ids=lambda name: name
)
def test_directories_of_a_portal(directory, text):
    """The addresses that a portal's pages have, and the reference's, with a path behind."""
    for tail, path in {"": "", "/": "", "/a b/ü%2F": "/a b/ü%2F", "/d/?x#y": "/d"}.items():
        url = f"https://portal.example:8080/{directory}/{text}{tail}"
        assert split_link(url) == (PDF_LINK, path)
    with pytest.raises(MalformedError):
        split_link(f"{directory}/{text}/a")


@pytest.mark.parametrize("text", [PDF, PDF_BASE32], ids=["64", "32"])
def test_plain_links(text):
    """The path of ``skylink://`` is taken as it stands."""
    for tail, path in {"": "", "/": "", "/a b/%2F?x#y/": "/a%20b/%252F%3Fx%23y"}.items():
        assert split_link(f"SkyLink://{text}{tail}") == (PDF_LINK, path)
    with pytest.raises(MalformedError):
        split_link("skylink://example/a")


@pytest.mark.parametrize("path", ["", "/", "/a/b", "/a/"])
def test_subdomain_form(path):
    """The first label of a portal's host may be the base32 form."""
    host = f"https://{PDF_BASE32.upper()}.portal.example:443"
    assert split_link(host + path) == (PDF_LINK, path.removesuffix("/"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "123",
        f"{PDF}xxx",
        f"{PDF}xxx/foo",
        f"{PDF}xxx?foo",
        f"x{PDF}",
        f" {PDF}",
        f"{PDF}\n",
        f"{PDF}=",
        f"//{PDF}",
        f"sia:/{PDF}x",
        f"ftp://portal.example/{PDF}",
        f"other://{PDF}",
        f"https://{PDF}.portal.example",
        "https://portal.example",
        "https://[portal.example/",
        f"https://[v.{PDF}]/",
        f"{PDF[:-1]}é",
        f"{PDF[:-1]}\ud800",
        "Aw" + "A" * 44,
        "w" * 55,
        "v" * 55,
        "/" * 46,
        f"{PDF}/{'a' * (64 << 10)}",
    ],
)
def test_what_is_no_link(text):
    """What names no skylink is refused, among it the null cases of skynet-js parse.test.ts."""
    with pytest.raises(MalformedError):
        split_link(text)


def test_own_dialects_only():
    """A link's scheme must be one of the dialects given."""
    own = Dialect("own", "own", "own", "ownns", "agent", "own-metadata", "Own")
    assert parse_skylink(f"own://{PDF}", [own]) == PDF_LINK
    with pytest.raises(MalformedError):
        parse_skylink(f"sia://{PDF}", [own])
