"""Sizes, numbers of things, and what somebody may have meant."""

import pytest

from skymount.wording import counted, did_you_mean, readable_size, resembling


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
