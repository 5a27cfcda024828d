"""Data keys as file names, and which names are scratch files."""

import sys
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skymount.errors import MalformedError
from skymount.fs.registry.file_names import (
    VIM_PROBE,
    KeyFileNames,
    KeyName,
    is_scratch,
)
from skymount.fs.subtree import NAME_MAX
from skymount.wire.registry_entry import hash_data_key

PLAIN, JSON = KeyFileNames(), KeyFileNames(b".json")


def stands_for_a_key(names: KeyFileNames, name: bytes) -> bool:
    try:
        names.parse(name)
    except MalformedError:
        return False
    return True


SCRATCH = [
    ".note.swp", ".note.swo", ".note.swx", ".note.swpx", "note~", "~", ".#note", "#note#",
    "sedAbCdEf", ".goutputstream-XY12Z3", ".note.Ab3xYz", "note.tmp", ".~lock.note#",
]  # fmt: skip

AWKWARD = [
    "", "%", "%2F", "%25", "%%", "/", "a/b", ".", "..", "...", "4913", "a" * 64, "ab" * 32, "\0",
    "\n", "x" * 255, "é" * 127, "x" * 250, "%" * 85, "\n" * 86, ".x.y", "doc.json",
    "é~", "日記.tmp", "%~", "\n.tmp", "%.tmp", "é.swp",
]  # fmt: skip

NO_SCRATCH = ["note", ".note", "note.json", "sed", "sedan", "#note", "note#", "a~b", "tmp", "4913"]


def check(data_key: str, names: KeyFileNames) -> None:
    """A data key's file name can be one, and leads back to it."""
    name = names.of(data_key, hash_data_key(data_key))
    assert 0 < len(name) <= NAME_MAX
    assert b"/" not in name
    assert b"\0" not in name
    assert name not in (b".", b"..", VIM_PROBE)
    assert not is_scratch(name)
    assert stands_for_a_key(names, name)
    found = names.parse(name)
    assert found.tweak == hash_data_key(data_key)
    assert found.data_key in (data_key, None)


@pytest.mark.parametrize("names", [PLAIN, JSON], ids=["plain", "json"])
def test_every_category_of_unicode(names: KeyFileNames):
    """G2: any other stands for the data key of that text, whatever characters it has."""
    samples: dict[str, list[str]] = {}
    for number in range(sys.maxunicode + 1):
        found = samples.setdefault(unicodedata.category(chr(number)), [])
        if len(found) < 40:
            found.append(chr(number))
    assert len(samples) == 30
    del samples["Cs"]  # surrogates are no text
    for characters in samples.values():
        for character in characters:
            for data_key in (character, f"a{character}", f"{character}.b"):
                check(data_key, names)


@pytest.mark.parametrize("names", [PLAIN, JSON], ids=["plain", "json"])
@pytest.mark.parametrize("data_key", [*AWKWARD, *SCRATCH])
def test_awkward_data_keys(names: KeyFileNames, data_key: str):
    """G2: `%` and two hex digits stand for the byte of that value.

    What would be another name, or a scratch file, is written so that it is not.
    """
    check(data_key, names)


@pytest.mark.parametrize("names", [PLAIN, JSON], ids=["plain", "json"])
@given(st.text(st.characters(codec="utf-8"), max_size=300))
@example("a" * 64 + "~")
def test_any_data_key(names: KeyFileNames, data_key: str):
    """G2: KeyFileNames and data keys stand for each other."""
    check(data_key, names)


def test_names_as_they_look():
    """Plain text stays as it is."""

    def of(data_key: str | None) -> bytes:
        return PLAIN.of(data_key, hash_data_key("hashed" if data_key is None else data_key))

    assert of("note") == b"note"
    assert of("a/b %é") == "a%2Fb %é".encode()
    assert of("100%") == b"100%"
    assert of("100%25") == b"100%2525"
    assert of("%") == b"%25"
    assert of("a\nb\x7f") == b"a\nb\x7f"
    assert of("") == b"%"
    assert of("note~") == b"%6Eote%7E"
    assert of(".note.swp") == b"%2Enote.swp"
    assert of("ab" * 32) == b"%61" + b"ba" * 31 + b"b"
    assert of(None) == hash_data_key("hashed").hex().encode()
    assert JSON.of("note~", b"") == b"note~.json"


def test_too_long_for_a_name():
    """A data key whose name would be too long is shown by its hash."""
    for data_key in ("x" * 256, "/" * 86, "é" * 128):
        tweak = hash_data_key(data_key)
        assert PLAIN.of(data_key, tweak) == tweak.hex().encode()
        assert JSON.of(data_key, tweak) == tweak.hex().encode() + b".json"


def test_no_unicode():
    """A data key with a lone surrogate cannot be written: its hash is."""
    assert PLAIN.of("a\ud800", b"\1" * 32) == b"01" * 32


def test_hashed():
    """G2: A name of 64 hex digits in it is a hashed data key; in upper case it is a text."""
    tweak = hash_data_key("note")
    assert PLAIN.parse(tweak.hex().encode()) == KeyName(None, tweak)
    upper = "AB" * 32
    assert PLAIN.parse(upper.encode()) == KeyName(upper, hash_data_key(upper))
    assert JSON.parse(tweak.hex().encode() + b".json") == KeyName(None, tweak)


@pytest.mark.parametrize(
    ("name", "data_key"),
    [
        (b"a%2Fb", "a/b"),
        (b"a%2fb", "a/b"),
        (b"%41", "A"),
        (b"%", ""),
        (b"%%", "%%"),
        (b"100%", "100%"),
        (b"%zz%2", "%zz%2"),
        (b"%C3%A9", "é"),
        (b"%00", "\0"),
        (b"%252F", "%2F"),
        (b"%" + b"61" * 1 + b"b" * 63, "a" + "b" * 63),
    ],
)
def test_escapes(name: bytes, data_key: str):
    """G2: so `%2F` is a slash; `%` alone is the empty data key; other `%` are themselves."""
    assert PLAIN.parse(name) == KeyName(data_key, hash_data_key(data_key))


@pytest.mark.parametrize("name", [b"\xff", b"a\xc3", b"%FF", b"%C3", b"\xed\xa0\x80"])
def test_invalid_utf8(name: bytes):
    """G2: KeyFileNames that are not valid UTF-8 are ENOENT: they stand for nothing."""
    with pytest.raises(MalformedError):
        PLAIN.parse(name)
    assert not stands_for_a_key(PLAIN, name)


def test_suffix_is_needed():
    """D1: only a name that ends in .json is a document's."""
    assert not stands_for_a_key(JSON, b"doc")
    assert not stands_for_a_key(JSON, b"doc.JSON")
    assert JSON.parse(b"doc.json").data_key == "doc"
    assert JSON.parse(b"doc.json.json").data_key == "doc.json"
    assert JSON.parse(b".json").data_key == ""


@given(st.binary(max_size=255))
def test_any_bytes(name: bytes):
    """Whatever the name, it is read or refused; reading its data key's name gives the same."""
    if stands_for_a_key(PLAIN, name):
        found = PLAIN.parse(name)
        assert PLAIN.parse(PLAIN.of(found.data_key, found.tweak)).tweak == found.tweak


@pytest.mark.parametrize("name", SCRATCH)
def test_scratch(name: str):
    """G14: Scratch files of editors."""
    assert is_scratch(name.encode())


@pytest.mark.parametrize("name", NO_SCRATCH)
def test_no_scratch(name: str):
    """KeyFileNames that are none."""
    assert not is_scratch(name.encode())
