"""A user without a home: HOME is not set, and the system does not know the user id, as in
containers that run under any one.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.mount.namespaces import why_impossible
from tests.portal_process import portal_process
from tests.skymount_process import LIMIT, Done, Sandbox

_USER = 12345
_SHARED = ("--store", "s3://bucket/", "--database", "postgresql://127.0.0.1:9/portal")
_SAID = "there is no home directory: set HOME, or XDG_{}_HOME, to an absolute path"


class Homeless:
    """Runs programs as such a user."""

    def __init__(self, sandbox: Sandbox, **environment: str) -> None:
        kept = {
            name: value
            for name, value in sandbox.env.items()
            if name not in ("HOME", "XDG_RUNTIME_DIR") and not name.endswith("_HOME")
        }
        self._environment = {**kept, **environment}
        self._place = sandbox.root

    def python(self, *arguments: str | Path, **more: str) -> Done:
        return subprocess.run(
            ["unshare", "--user", f"--map-user={_USER}", sys.executable, *arguments],
            env={**self._environment, **more},
            cwd=self._place,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT,
        )

    def skymount(self, *arguments: str | Path) -> Done:
        return self.python("-m", "skymount", *arguments)


@pytest.fixture
def homeless(sandbox: Sandbox, portal: str) -> Homeless:
    if reason := why_impossible():
        pytest.skip(f"no name spaces here: {reason}")
    return Homeless(sandbox, SKYMOUNT_PORTALS=portal)


def test_what_needs_no_state_works(
    homeless: Homeless, sandbox: Sandbox, portal: str, tmp_path: Path
) -> None:
    file, data = tmp_path / "file", tmp_path / "data"
    file.write_text("content\n")
    with portal_process(data):
        pass
    link = homeless.skymount("upload", file).stdout.strip()
    for arguments, shown in (
        (("--help",), "Usage: "),
        (("portal", "serve", "--help"), "data directory"),
        (("completion", "bash"), "_SKYMOUNT_COMPLETE"),
        (("skylink", "parse", link), link),
        (("ls", link), "file\n"),
        (("cat", link), "content\n"),
        (("metadata", link), '"filename"'),
        (("download", link, "-"), "content\n"),
        (("config", "show"), "default"),
        (("config", "check"), "no home directory"),
        (("portal", "list", "--data", data), ""),
        (("portal", "hns", "list", "--data", data), ""),
    ):
        done = homeless.skymount(*arguments)
        assert (done.returncode, done.stderr) == (0, ""), arguments
        assert shown in done.stdout


def test_what_needs_state_says_which_variable_to_set(homeless: Homeless) -> None:
    for arguments, variable in (
        (("key", "list"), "DATA"),
        (("key", "generate", "home"), "DATA"),
        (("registry", "set", "home", "key", "data"), "DATA"),
        (("registry", "pending"), "STATE"),
        (("mount", "mnt"), "STATE"),
        (("mount", "--foreground", "mnt"), "STATE"),
        (("cache", "info"), "CACHE"),
        (("config", "init"), "CONFIG"),
        (("config", "path"), "CONFIG"),
        (("portal", "serve"), "DATA"),
        (("portal", "serve", *_SHARED, "--upstream", "http://127.0.0.1:9"), "DATA"),
        (("portal", "hns", "list"), "DATA"),
        (("service", "install", "home"), "CONFIG"),
    ):
        done = homeless.skymount(*arguments)
        assert done.returncode in (1, 2), arguments
        assert done.stderr.count("\n") == 1, done.stderr
        assert _SAID.format(variable) in done.stderr


def test_an_entry_is_read_with_a_warning(homeless: Homeless, sandbox: Sandbox, portal: str) -> None:
    box = sandbox.with_env(SKYMOUNT_PORTALS=portal)
    key = box.succeed("key", "generate", "home").strip()
    box.succeed("registry", "set", "home", "key", "value")
    done = homeless.skymount("registry", "get", key, "key")
    assert (done.returncode, done.stdout) == (0, "value\n")
    assert "warning: " + _SAID.format("STATE") in done.stderr
    done = homeless.skymount("registry", "get", "--verify", "require", key, "key")
    assert (done.returncode, done.stdout) == (1, "")


_LIBRARY = """
import sys, skymount
with skymount.open(sys.argv[1], "rb") as file:
    print(file.read().decode())
"""


def test_the_library_reads(homeless: Homeless, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    link = homeless.skymount("upload", tmp_path / "file").stdout.strip()
    done = homeless.python("-c", _LIBRARY, link)
    assert (done.returncode, done.stdout) == (0, "content\n"), done.stderr


@pytest.mark.parametrize("home", ["", "relative"])
def test_a_home_that_is_no_absolute_path_is_none(homeless: Homeless, home: str) -> None:
    done = homeless.python("-m", "skymount", "key", "list", HOME=home)
    assert _SAID.format("DATA") in done.stderr


def test_a_home_that_is_not_writable(homeless: Homeless, tmp_path: Path) -> None:
    """What keeps nothing works; the rest names the place that cannot be written."""
    home, file = (tmp_path / name for name in ("home", "file"))
    home.mkdir(mode=0o555)
    file.write_text("content\n")

    def skymount(*arguments: str | Path) -> Done:
        return homeless.python("-m", "skymount", *arguments, HOME=str(home))

    uploaded = skymount("upload", file)
    assert (uploaded.returncode, uploaded.stderr) == (0, "")
    link = uploaded.stdout.strip()
    for arguments in (("cat", link), ("ls", link), ("key", "list"), ("cache", "clear")):
        done = skymount(*arguments)
        assert (done.returncode, done.stderr) == (0, ""), arguments
    for arguments, place in (
        (("key", "generate", "home"), ".local/share/skymount/keys"),
        (("registry", "pending"), ".local/state/skymount/ledger.sqlite3"),
        (("config", "init"), ".config"),
        (("portal", "serve"), ".local/share/skymount/portal"),
    ):
        done = skymount(*arguments)
        assert done.returncode == 1, arguments
        assert done.stderr.count("\n") == 1, done.stderr
        assert f"{home / place}" in done.stderr
        assert "Permission denied" in done.stderr
    assert list(home.iterdir()) == []
