"""Commands whose standard streams are closed, as of services and cron jobs."""

import sys
from pathlib import Path

import pytest

from tests.portal_process import portal_process
from tests.skymount_process import Sandbox

SKYMOUNT = (sys.executable, "-m", "skymount")


@pytest.mark.parametrize(
    "arguments",
    [
        "registry set home key",
        "registry set home key -",
        "db set home key -",
        "upload - --name name",
        "portal import -",
        "key import new",
        "skykey add",
    ],
)
def test_a_closed_standard_input_is_an_error(sandbox: Sandbox, arguments: str) -> None:
    """Nothing is stored for it, and nothing published."""
    sandbox.succeed("key", "generate", "home")
    done = sandbox.run("sh", "-c", '"$@" <&-', "-", *SKYMOUNT, *arguments.split())
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "skymount: standard input is closed\n"


def test_content_for_a_closed_standard_output_is_an_error(
    sandbox: Sandbox, portal: str, tmp_path: Path
) -> None:
    box = sandbox.with_env(SKYMOUNT_PORTALS=portal)
    file, data = tmp_path / "file", tmp_path / "data"
    file.write_bytes(bytes(100))
    link = box.succeed("upload", file).strip()
    box.succeed("key", "generate", "home")
    box.succeed("registry", "set", "home", "key", "value")
    with portal_process(data):
        pass
    for arguments in (
        f"cat {link}",
        f"download {link} -",
        f"download --archive tar {link} -",
        "registry get --raw home key",
        f"portal export - --data {data}",
    ):
        done = box.run("sh", "-c", '"$@" >&-', "-", *SKYMOUNT, *arguments.split())
        assert (done.returncode, done.stderr) == (1, "skymount: standard output is closed\n")


def test_no_file_takes_the_place_of_a_closed_stream(sandbox: Sandbox, tmp_path: Path) -> None:
    """What goes to standard output and error is not written into a file that a command opened."""
    sandbox.configure('portals = ["http://127.0.0.1:9"]\n').chmod(0o644)
    sandbox.succeed("key", "generate", "home")
    before = {path: path.read_bytes() for path in sandbox.root.rglob("*") if path.is_file()}
    for arguments in ("key list", "config show", "registry get home key"):
        sandbox.run("sh", "-c", '"$@" <&- >&- 2>&-', "-", *SKYMOUNT, *arguments.split())
    after = {path: path.read_bytes() for path in before}
    assert after == before
