"""Sizes, numbers of things, and what somebody may have meant."""

import os
import unicodedata

import pytest

from skymount.wording import counted, did_you_mean, readable_size, resembling, visible


@pytest.mark.parametrize(
    ("word", "meant"), [("portal", "portals"), ("Disk-Cache", "disk_cache"), ("x", ""), ("", "")]
)
def test_the_name_that_a_word_resembles(word: str, meant: str) -> None:
    assert resembling(word, ["portals", "disk_cache"]) == meant


def test_the_advice() -> None:
    assert did_you_mean("portal", ["portals"]) == "; did you mean portals?"
    assert did_you_mean("home", ["homes"], "[mounts.{}]") == "; did you mean [mounts.homes]?"
    assert did_you_mean("x", ["homes"]) == ""


def test_a_long_word_takes_no_time() -> None:
    assert resembling("a" * 10**7, ["portals"]) == ""


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1, "1 B"), (1536, "1.5 KiB"), (5000 << 20, "4.9 GiB")]
)
def test_size(size: int, text: str) -> None:
    assert readable_size(size) == text


def test_counted() -> None:
    assert [counted(number, "file") for number in (0, 1, 2)] == ["0 files", "1 file", "2 files"]
    assert [counted(n, "entry", "entries") for n in (1, 2)] == ["1 entry", "2 entries"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ä 日本 \U0001f600 \u00a0 \\", "plain ä 日本 \U0001f600 \u00a0 \\"),
        ("a\nb\tc\x1b[2J\x7f\x9b", "a\\nb\\tc\\x1b[2J\\x7f\\x9b"),
        ("\u202egnp.exe\u2028", "\\u202egnp.exe\\u2028"),
        (os.fsdecode(b"caf\xe9"), "caf\\xe9"),
        ("\ud800", "\\ud800"),
        ("pay\u200bpal\u00ad.exe\u2800", "pay\\u200bpal\\xad.exe\u2800"),
        ("a\u200db.\u200cexe\ufe0f", "a\\u200db.\\u200cexe\\ufe0f"),
        ("\U0001f600\U000e0041\u200d\u200d", "\U0001f600\\U000e0041\\u200d\\u200d"),
        ("é\u200d\u200dé\ufe0f\ufe01", "é\u200d\\u200dé\ufe0f\\ufe01"),
    ],
)
def test_what_cannot_be_seen_is_written_out(text: str, shown: str) -> None:
    """B12: control characters, those that turn the direction, those without a form."""
    assert visible(text) == shown
    assert visible(shown) == shown
    assert visible("<a>\u202e", "<b>{}</b>") == "<a><b>\\u202e</b>"


@pytest.mark.parametrize(
    "name",
    [
        "קובץ חדש.pdf",
        "ملف ١٢.txt",
        "می\u200cخواهم.txt",
        "क्\u200dष.txt",
        "\U0001f469\U0001f3fd\u200d\U0001f527.png",
        "\u2764\ufe0f\u200d\U0001f525",
        "1\ufe0f\u20e3.txt",
        "葛\U000e0100.txt",
        "e\u0301.txt",
    ],
)
def test_names_in_any_language_stay(name: str) -> None:
    """B12: right-to-left letters, and what their scripts and emoji need."""
    assert visible(name) == name


def test_every_format_character_without_a_form_is_written_out() -> None:
    """B12: behind a Latin letter; those that are seen are signs of numbers and of hieroglyphs."""
    unseen = [
        char
        for char in map(chr, range(0x110000))
        if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    ]
    stay = [char for char in unseen if visible(f"a{char}") == f"a{char}"]
    seen = ("ARABIC", "SYRIAC", "KAITHI", "EGYPTIAN")
    assert all(unicodedata.name(char).startswith(seen) for char in stay)
    assert "\u061c" not in stay
