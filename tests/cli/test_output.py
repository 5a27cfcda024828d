"""How results, warnings and progress are printed."""

import json
import os
import sys

import pytest

from skymount.cli.output import emit, warn
from tests.skymount_process import Sandbox

LINK = "XABvi7JtJbQSMAcDwnUnmp2FKDPjg8_tTTFP4BwMSxVdEg"


def test_odd_paths_are_one_line(sandbox: Sandbox) -> None:
    path = "/\x1b[2J\n" + os.fsdecode(b"\xe9")
    assert sandbox.succeed("skylink", "parse", LINK + path) == f"{LINK}/\\x1b[2J\\n\\xe9\n"
    as_json = sandbox.succeed("skylink", "parse", "--json", LINK + path)
    assert as_json.isascii()
    assert json.loads(as_json)["path"] == path


@pytest.mark.parametrize("charset", ["ascii", "latin-1", "utf-8"])
def test_any_character_set_will_do(sandbox: Sandbox, charset: str) -> None:
    strange = sandbox.with_env(PYTHONIOENCODING=charset)
    shown = strange.succeed("skylink", "parse", f"{LINK}/ä\u65e5")
    expected = "ä\u65e5".encode(charset, "backslashreplace")
    assert shown == f"{LINK}/{os.fsdecode(expected)}\n"


def test_a_full_disk_is_no_traceback(sandbox: Sandbox) -> None:
    done = sandbox.run(
        "sh", "-c", '"$@" > /dev/full', "-", sys.executable, "-m", "skymount", "skylink",
        "parse", LINK,
    )  # fmt: skip
    assert done.returncode
    assert done.stderr.startswith("skymount: standard output: No space left on device\n")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_traceback(sandbox: Sandbox, closed: str) -> None:
    command = (sys.executable, "-m", "skymount", "skylink", "parse", LINK)
    done = sandbox.run("sh", "-c", f'"$@" {closed}', "-", *command)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_result_is_json_or_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON is one line of ASCII; each line for people is one line of the terminal."""
    emit({"a": "é\n", "b": [1, None]}, True, ["not shown"])
    emit({"not": "shown"}, False, ["two\nlines", "é"])
    assert capsys.readouterr().out == '{"a":"\\u00e9\\n","b":[1,null]}\ntwo\\nlines\né\n'


def test_a_warning_is_a_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    warn("odd\x1b[2J\nname")
    assert capsys.readouterr() == ("", "skymount: warning: odd\\x1b[2J\\nname\n")
