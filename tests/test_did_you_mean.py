"""What somebody may have meant who misspelt a name."""

import pytest

from skymount.did_you_mean import did_you_mean, resembling


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
