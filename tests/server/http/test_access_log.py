"""The lines of the access log: nothing secret, nothing forged; and the file that they are in."""

import os
import re
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from skymount.errors import ConfigError
from skymount.server.http.access_log import Visit, line_of, opened, without_secrets

COMBINED = re.compile(
    rb'(?P<address>[^ "]+) - (?P<user>[^ "]+) '
    rb"\[(?P<time>\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4})\] "
    rb'"(?P<request>-|[^ "]+ [^ "]+ HTTP/\d\.\d)" (?P<status>\d{3}) (?P<size>\d+) '
    rb'"(?P<referer>(?:[^"\\]|\\x[0-9A-F]{2})*)" "(?P<agent>(?:[^"\\]|\\x[0-9A-F]{2})*)" '
    rb"(?P<seconds>\d+\.\d{3}) (?P<skylink>[A-Za-z0-9_-]+)\n"
)


def test_a_line() -> None:
    """AL1: the combined format and two words more."""
    headers = {"referer": "http://other.example/a", "user-agent": "curl/8 (x)"}
    visit = Visit("203.0.113.7", "GET", "/a?format=zip", "1.1", headers, "/a", "owner", 200, 12)
    visit.skylink, visit.began, visit.seconds = "AAB", 1_795_858_200, 0.0124
    line = line_of(visit)
    found = COMBINED.fullmatch(line)
    assert found is not None
    assert found["time"].startswith((b"27/Nov/2026:", b"28/Nov/2026:"))
    assert line.replace(found["time"], b"TIME").decode() == (
        '203.0.113.7 - owner [TIME] "GET /a?format=zip HTTP/1.1" 200 12 '
        '"http://other.example/a" "curl/8 (x)" 0.012 AAB\n'
    )
    nothing = line_of(Visit(status=400))
    assert re.sub(rb"\[.*\]", b"[]", nothing) == b'- - - [] "-" 400 0 "-" "-" 0.000 -\n'


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("/a?format=zip&page=2&attachment", "/a?format=zip&page=2&attachment"),
        ("/a?skykeyname=SECRET&x=SECRET&=SECRET&SECRET", "/a?skykeyname=...&x=...&...&..."),
        ("/a?format=SECRET%20&page=SECRET/", "/a?format=...&page=..."),
        ("/a?x=1?format=SECRET", "/a?x=..."),
        ("/a?x=SECRET;format=zip", "/a?x=..."),
        ("/a?x y=SECRET&<b>=SECRET&" + "n" * 41 + "=SECRET", "/a?...&...&..."),
        ("/a#SECRET?x=SECRET", "/a"),
        ("/a?x=1#SECRET", "/a?x=..."),
        ("http://me:SECRET@host.example/a?x=SECRET", "http://...@host.example/a?x=..."),
        ("http://SECRET:@h:1/", "http://...@h:1/"),
        ("//me:SECRET@host/a", "//...@host/a"),
        ("https://SECRET@host/a@b", "https://...@host/a@b"),
        ("HTTP://SECRET@SECRET@host", "HTTP://...@host"),
        ("http://host/me@example.org", "http://host/me@example.org"),
        ("me:SECRET@host:80", "...@host:80"),
        ("/http://me:SECRET@SECRET@host", "/http://...@host"),
        ("/http%3A//me%3aSECRET%40host", "/http%3A//...@host"),
        ("/me@example.org/b:c", "/me@example.org/b:c"),
        ("/x/" + "y" * 2000 + "/me:SECRET" + "z" * 99 + "@host", "/x/" + "y" * 2000 + "/..."),
        ("/a?" + "x=SECRET&" * 9999, None),
    ],
)
def test_secrets_are_left_out(url: str, shown: str | None) -> None:
    """AL2: values of queries but harmless ones, and user and password of a URL."""
    found = without_secrets(url)
    assert "SECRET" not in found
    assert shown is None or found == shown
    line = line_of(Visit("", "GET", url, "1.1", {"referer": url}))
    assert b"SECRET" not in line


def test_credentials_are_left_out() -> None:
    """AL2: of a request's headers, but for the two that are shown, nothing."""
    names = ("authorization", "cookie", "x-api-key", "proxy-authorization", "skymount-token")
    headers = dict.fromkeys(names, "SECRET")
    headers["user-agent"] = "bot/1 (+http://me:SECRET@host/)"
    line = line_of(Visit("", "GET", "/", "1.1", headers))
    assert b"SECRET" not in line
    assert b"@host/)" in line


_TEXT = st.text(st.characters(max_codepoint=255), max_size=80)
_LONG = _TEXT | st.builds(lambda text, count: text * count, _TEXT, st.integers(0, 1000))


@given(_LONG, _TEXT, _LONG, _LONG, _TEXT)
def test_a_line_cannot_be_forged(
    target: str, method: str, referer: str, agent: str, user: str
) -> None:
    """AL3: whatever is sent is one line of the format, which fits a pipe's buffer."""
    headers = {"referer": referer, "user-agent": agent}
    visit = Visit("203.0.113.7", method, target, "1.1", headers, user=user)
    line = line_of(visit)
    assert COMBINED.fullmatch(line), line
    assert len(line) <= 4000


async def test_lines_are_written_at_the_end_too(tmp_path: Path) -> None:
    """AL1, AL5: in the order of the requests; the file is for its user alone."""
    file = tmp_path / "log"
    async with opened(str(file)) as log, trio.open_nursery() as nursery:
        assert log is not None
        nursery.start_soon(log.run)
        for number in range(100):
            log.add(Visit("", "GET", f"/{number}", "1.1"))
            if number % 10 == 0:
                await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    found = [COMBINED.fullmatch(line) for line in file.read_bytes().splitlines(keepends=True)]
    assert [each and each["request"] for each in found] == [
        f"GET /{number} HTTP/1.1".encode() for number in range(100)
    ]
    assert file.stat().st_mode & 0o777 & ~0o600 == 0


async def test_a_file_that_is_full(caplog: pytest.LogCaptureFixture) -> None:
    """AL5: the log says how many lines were lost, and the portal goes on."""
    async with opened("/dev/full") as log:
        assert log is not None
        for _ in range(3):
            log.add(Visit())
    assert "3 lines of the access log were lost: No space left" in caplog.text


async def test_a_file_that_is_too_slow(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """AL5: requests do not wait for it. What does not fit is lost, and each line is whole."""
    pipe, count = tmp_path / "pipe", 15_000
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    async with opened(str(pipe)) as log:
        assert log is not None
        for _ in range(count):
            log.add(Visit("", "GET", "/" + "a" * 500, "1.1"))
    os.set_blocking(reading, True)
    with open(reading, "rb") as read:
        lines = read.read().splitlines(keepends=True)
    assert all(COMBINED.fullmatch(line) for line in lines)
    assert f"{count - len(lines)} lines of the access log were lost" in caplog.text


async def test_a_file_that_cannot_be(tmp_path: Path) -> None:
    """AL1: ConfigError; a pipe that nobody reads too."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "none/log", tmp_path / "pipe", "a\0b"):
        with pytest.raises(ConfigError, match="cannot be written"):
            async with opened(str(path)):
                pass
