"""The log of a daemon in the background."""

import logging
import os
import subprocess
import sys
from pathlib import Path

from skymount.daemon.log import MAX_SIZE, JournalFormatter, LineFormatter
from tests.portal_process import portal_environment

_PRINTS = """
import logging, os, sys
from skymount.daemon.log import log_to
log_to(sys.argv[1], "info")
os.write(2, b"printed first\\n")
for _ in range(2):
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
    assert sorted(os.listdir(tmp_path)) == ["daemon.log", "daemon.log.1"]
    before, now = path.with_name("daemon.log.1").read_text(), path.read_text()
    assert "printed first" in before
    assert "printed later" not in before
    assert "printed later" in now
    assert "ValueError: a bug" in now
    assert "nowhere" not in before + now


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
