"""W9: Ignore files are read as git reads them."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skymount.errors import MalformedError
from skymount.upload_selection.ignore_patterns import IGNORE_FILE, IgnorePatterns

NAMES = ("a", "b", "ab", "x.a", "a b", "é", "#a", "a*", "-", "]", "a\\", "[", "a\tb")
PATHS = tuple(
    f"{first}/{second}/{third}"
    for first in NAMES
    for second in (*NAMES[:6], "-", "]")
    for third in ("a", "b", "x.a", "ab")
)
SEGMENTS = (
    *(
        "a",
        "b",
        "ab",
        "a b",
        "é",
        "*",
        "?",
        "**",
        "***",
        "a*",
        "*.a",
        "*?b",
        "*a*b*",
        "**a",
        "a**b",
    ),
    *(
        "[ab]",
        "[!a]",
        "[^b]",
        "[]a]",
        "[]-a]",
        "[a-b]b",
        "[b-a]",
        "[--b]",
        "[a\\-b]",
        "[\\]]",
        "[[a]",
    ),
    *("[[:alpha:]]b", "[^[:digit:]a]", "[[:x:]]", "[[:alpha", "[a-", "x[a/b]a", "[[:a]"),
    *(
        "\\a",
        "\\#a",
        "#a",
        "a\\*",
        "\\[",
        "a\\\\",
        "\\\\",
        "b\\",
        "a\\ ",
        "a\tb",
        "a\rb",
        "\ufeffa",
    ),
)
LINES = st.builds(
    lambda mark, begin, segments, end: mark + begin + "/".join(segments) + end,
    st.sampled_from(["", "", "!"]),
    st.sampled_from(["", "", "/", "**/"]),
    st.lists(st.sampled_from(SEGMENTS), min_size=1, max_size=3),
    st.sampled_from(["", "", "/", " ", "  ", "\\ ", "/**", "//", "\r", " \r", "\t", "\\"]),
)
FILES = st.builds(
    lambda mark, lines, separator, end: mark + separator.join(lines) + end,
    st.sampled_from(["", "", "\ufeff"]),
    st.lists(LINES, min_size=1, max_size=4),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["", "\n"]),
)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    root = tmp_path_factory.mktemp("repository")
    for path in PATHS:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    subprocess.run(["git", "init", "-q", root], check=True)
    return root


@given(text=FILES)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_the_same_is_left_out_as_by_git(repository: Path, text: str) -> None:
    """`git check-ignore` says the same of each path."""
    for name in (".gitignore", IGNORE_FILE):
        (repository / name).write_bytes(text.encode())
    done = subprocess.run(
        ["git", "-C", repository, "check-ignore", "--stdin", "-z", "--no-index"],
        input="\0".join(PATHS),
        env=os.environ | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull},
        capture_output=True,
        text=True,
        check=False,
    )
    patterns = IgnorePatterns.of_folder(str(repository)) or IgnorePatterns()
    assert {path for path in PATHS if left_out(patterns, path)} == set(
        filter(None, done.stdout.split("\0"))
    )


def left_out(patterns: IgnorePatterns, path: str) -> bool:
    """Whether a path or a folder on the way to it is left out."""
    names = path.split("/")
    ends = range(1, len(names) + 1)
    return any(patterns.verdict("/".join(names[:end]), end < len(names)) for end in ends)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("secret\n".encode("utf-16"), "it is not text in UTF-8"),
        ("secret\n".encode("utf-16-le"), "it contains a NUL"),
        (b"caf\xe9\n", "it is not text in UTF-8"),
        (b"x\n" * (1 << 20), "larger than 1 MiB"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, raw: bytes, reason: str) -> None:
    (tmp_path / IGNORE_FILE).write_bytes(raw)
    with pytest.raises(MalformedError, match=f"{IGNORE_FILE}: {reason}"):
        IgnorePatterns.of_folder(str(tmp_path))


@pytest.mark.parametrize("kind", ["FIFO", "folder", "link to nothing", "link to a FIFO"])
def test_what_is_no_file(tmp_path: Path, kind: str) -> None:
    """It is an error, and no one waits for it."""
    path = tmp_path / IGNORE_FILE
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "link to nothing":
        path.symlink_to("absent")
    else:
        os.mkfifo(tmp_path / "fifo")
        path.symlink_to("fifo")
    with pytest.raises(MalformedError, match=str(path)):
        IgnorePatterns.of_folder(str(tmp_path))


def test_many_stars_take_no_time(tmp_path: Path) -> None:
    lines = [b"*a" * 60 + b"b", b"**/a/" * 60 + b"b", b"**/*a*/" * 60 + b"b"]
    patterns = IgnorePatterns.of_lines(lines)
    assert patterns.verdict("/".join(["a" * 200] * 200), False) is None


@pytest.mark.parametrize("line", ["a" + " " * (1 << 19) + "b", "[^a]" * 10_000])
def test_a_long_line_takes_no_time(line: str) -> None:
    assert IgnorePatterns.of_lines([line.encode()]).verdict("a", False) is None


@pytest.mark.parametrize(
    "pattern", ["./a", "../a", "!./a", "a/./b", "", " ", "#a", "a[", "a\\", "/"]
)
def test_an_option_that_matches_no_path(pattern: str) -> None:
    with pytest.raises(MalformedError, match="matches no path"):
        IgnorePatterns.of_options(["a", pattern])
