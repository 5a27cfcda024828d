"""The architecture: imports point in one direction, and commands load no more than they need."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from skymount.cli import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
WEB_STACK = {"multipart", "python_multipart"}
NOT_FOR_CLIENTS = ("skymount.server", "skymount.content.fetch.skyfile_loader", "skymount.fs.fuse")
HEAVY = WEB_STACK | {"rich", "pygments", "asyncio"}

IMPORTS = """
import sys
from skymount.cli.commands import {module}
{more}
print(*sys.modules)
"""


RUNS = """
import sys
from skymount.cli import main
try:
    main()
finally:
    print(*(name for name, module in sys.modules.items() if module), file=sys.stderr)
"""


def run(*command: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run Python with the package as this process sees it."""
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), *sys.path]))
    return subprocess.run(
        [sys.executable, *command],
        env=os.environ | {"PYTHONPATH": path, **environment},
        cwd=ROOT,
        input="{}",
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def test_import_directions():
    """import-linter finds every contract of pyproject.toml kept."""
    pytest.importorskip("importlinter", reason="import-linter is not installed")
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())"
    done = run("-c", code)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", NOT_FOR_CLIENTS)
def test_modules_that_are_named_here_exist(name: str):
    """Otherwise the tests below would prove nothing."""
    assert importlib.util.find_spec(name) is not None


def loaded(module: str, more: str = "") -> set[str]:
    """Return the top-level packages that are loaded after some imports."""
    done = run("-c", IMPORTS.format(module=module, more=more))
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_mount_command_is_light():
    """What `skymount mount` imports has neither the web stack nor the terminal's."""
    found = loaded("mount", "from skymount.daemon import daemonize")
    assert {"pyfuse3", "trio", "httpx"} <= found
    assert not found & (HEAVY | {"nacl", "sqlite3"})


def test_mount_command_loads_before_garbage_is_looked_for():
    """Nothing that a start makes becomes garbage, so looking through all of it is time lost."""
    code = (
        "import gc; gc.disable()\n"
        "from skymount.__main__ import GC_THRESHOLD\n"
        "from skymount.cli.commands import mount\n"
        "from skymount.daemon import daemonize\n"
        "print(gc.get_count()[0] < GC_THRESHOLD)"
    )
    assert run("-c", code).stdout == "True\n"


def test_umount_command_is_light():
    """`skymount umount` needs neither a portal nor an event loop."""
    found = loaded("mount", "from skymount.fs import mountpoint")
    assert not found & (HEAVY | {"pyfuse3", "httpx", "trio"})


def loaded_by(home: Path, *arguments: str) -> set[str]:
    """Run a command, which must succeed; return the packages and our modules that it loaded."""
    places = {"HOME": str(home), "XDG_DATA_HOME": str(home)}
    done = run("-c", RUNS, *arguments, **places, SKYMOUNT_PORTALS="http://portal.example")
    assert done.returncode == 0, done.stderr
    names = done.stderr.split()
    ours = {name for name in names if name.startswith("skymount.")}
    return ours | {name.partition(".")[0] for name in names}


def test_upload_command_is_light(portal: str, tmp_path: Path):
    """`skymount upload` has no mount, portal or key in it; a progress bar only on a terminal."""
    (tmp_path / "file").touch()
    found = loaded_by(tmp_path, "upload", "--portal", portal, str(tmp_path / "file"))
    assert {"trio", "httpx"} <= found
    assert not found & (HEAVY | {"pyfuse3", "sqlite3"})
    assert not any(name.startswith(NOT_FOR_CLIENTS) for name in found)


@pytest.mark.parametrize(
    "command",
    [
        ["registry", "set", "home", "key", "text"],
        ["db", "set", "home", "key", "/dev/stdin"],
        ["skykey", "list"],
    ],
    ids=" ".join,
)
def test_commands_that_ask_a_portal_have_none_in_them(
    portal: str, tmp_path: Path, command: list[str]
):
    """Nor do they load what reads content, or a file system; a database only what signs."""
    loaded_by(tmp_path, "key", "generate", "home")
    found = loaded_by(tmp_path, *command, "--portal", portal)
    assert {"trio", "httpx"} <= found
    assert not found & (HEAVY | {"pyfuse3"})
    assert ("sqlite3" in found) == (command[0] != "skykey")
    assert not any(name.startswith((*NOT_FOR_CLIENTS, "skymount.fs")) for name in found)


@pytest.mark.parametrize(
    "command",
    [
        ["registry", "url", "ab" * 32, "key"],
        ["registry", "link", "ab" * 32, "key"],
        ["key", "list"],
        ["skylink", "parse", "AABsdvY0MzM9fsdHVWdqiw1Rj4Kp9KAZwYNbHO-ksMFHkg"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_commands_without_network_traffic_load_nothing_for_it(tmp_path: Path, command: list[str]):
    """So that they start without the time that it takes."""
    assert not loaded_by(tmp_path, *command) & (HEAVY | {"pyfuse3", "trio", "httpx", "sqlite3"})


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_is_light(command: str):
    """Asking for help imports hardly anything."""
    done = run("-X", "importtime", "-m", "skymount", *command.split(), "--help")
    assert done.returncode == 0
    assert "Usage" in done.stdout
    modules = {
        line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()
    }
    assert "click" in modules
    assert not modules & (HEAVY | {"pyfuse3", "httpx", "trio", "msgspec", "nacl", "sqlite3"})


def test_codec_needs_nothing():
    """The codec can be imported without any library but those of its field."""
    assert not loaded("skylink", "import skymount.wire.metadata") & (HEAVY | {"trio", "httpx"})
