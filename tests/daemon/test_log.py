"""The log of a daemon in the background."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from skymount.daemon.log import MAX_SIZE, JournalFormatter, LineFormatter
from tests.portal_process import portal_environment

_PRINTS = """
import logging, os, sys
from skymount.daemon.log import log_to
log_to(sys.argv[1], "info")
os.write(2, b"printed first\\n")
for _ in range(3):
    logging.info("x" * int(sys.argv[2]))
os.write(2, b"printed later\\n")
os.write(1, b"nowhere\\n")
raise ValueError("a bug")
"""


def test_what_is_printed_is_in_the_log_also_when_a_new_file_has_begun(tmp_path: Path) -> None:
    """Tracebacks and the words of libraries are never in a file that nobody sees."""
    path = tmp_path / "daemon.log"
    done = subprocess.run(
        [sys.executable, "-c", _PRINTS, path, str(MAX_SIZE // 2)],
        env=portal_environment(),
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")
    assert sorted(os.listdir(tmp_path)) == ["daemon.log", "daemon.log.old"]
    before, now = path.with_name("daemon.log.old").read_text(), path.read_text()
    assert "printed first" in before
    assert "printed later" not in before
    assert "printed later" in now
    assert "ValueError: a bug" in now
    assert "nowhere" not in before + now


_ROTATED = """
import logging, os, sys
from skymount.daemon.log import MAX_SIZE, log_to, reopen_file
path, how = sys.argv[1], sys.argv[2]
log_to(path, "info")
def fill():
    for _ in range(4):
        logging.info("x" * (MAX_SIZE // 2 - 100))
logging.info("first")
if how == "create":
    os.rename(path, path + ".1")
    open(path, "w").close()
elif how == "nocreate":
    os.rename(path, path + ".1")
elif how == "copytruncate":
    open(path + ".1", "wb").write(open(path, "rb").read())
    os.truncate(path, 0)
elif how == "signal":
    os.rename(path, path + ".1")
    reopen_file()
    os.write(2, b"printed\\n")
elif how == "foreign":
    for name in ("old", "1"):
        open(f"{path}.{name}", "w").write("somebody else's")
elif how == "directory":
    os.rename(path, path + ".1")
    os.mkdir(path)
logging.info("second")
fill()
"""

# What each file begins with in the end.
ROTATED = {
    "create": {"": "x", ".1": "first", ".old": "second"},
    "nocreate": {"": "x", ".1": "first", ".old": "second"},
    "copytruncate": {"": "x", ".1": "first", ".old": "second"},
    "signal": {"": "x", ".1": "first", ".old": "printed"},
    "foreign": {"": "first", ".1": "somebody else's", ".old": "somebody else's"},
    "directory": {".1": "first"},
}


@pytest.mark.parametrize("how", ROTATED)
def test_a_log_that_others_rotate(tmp_path: Path, how: str) -> None:
    """Nothing is lost: the log goes on in the file that is there now, which is its owner's alone if
    it was made here; a new file that it begins by itself replaces none of others.
    """
    path = tmp_path / "daemon.log"
    command = [sys.executable, "-c", _ROTATED, path, how]
    subprocess.run(command, env=portal_environment(), check=True, timeout=60)
    found = {each.name[10:]: each.read_text() for each in tmp_path.iterdir() if each.is_file()}
    assert {
        name: text.startswith(ROTATED[how][name]) or f" INFO {ROTATED[how][name]}" in text[:60]
        for name, text in found.items()
    } == dict.fromkeys(ROTATED[how], True)
    text = "".join(found.values())
    assert (text.count(" INFO first"), text.count(" INFO second")) == (1, 1)
    assert text.count(" INFO x") == 4
    if how in ("nocreate", "signal"):
        assert path.stat().st_mode & 0o777 == 0o600


def record(level: int, text: str, error: Exception | None = None) -> logging.LogRecord:
    info = None if error is None else (type(error), error, None)
    return logging.LogRecord("skymount.x", level, "x.py", 1, "%s", (text,), info)


def test_one_line_for_an_event() -> None:
    """E5: Whatever a name or a portal puts into it."""
    line = LineFormatter().format(record(logging.WARNING, "a\n2026-01-01 ERROR b\x1b[0m"))
    assert line.endswith(" WARNING a\\n2026-01-01 ERROR b\\x1b[0m")
    assert "\n" not in line


def test_lines_of_the_journal() -> None:
    """E5: Each has its priority, those of a traceback too."""
    journal = JournalFormatter()
    levels = [logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL]
    lines = [journal.format(record(level, "text")) for level in levels]
    assert lines == ["<7>text", "<6>text", "<4>text", "<3>text", "<3>text"]
    text = journal.format(record(logging.ERROR, "broken", ValueError("a bug")))
    assert text.splitlines() == ["<3>broken", "<3>ValueError: a bug"]
