"""The architecture: imports point in one direction, and commands load no more than they need."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
WEB_STACK = {"hypercorn", "multipart", "python_multipart", "starlette"}
HEAVY = WEB_STACK | {"rich", "pygments", "asyncio"}

IMPORTS = """
import sys
from skymount.cli import {module}
{more}
print(*sys.modules)
"""


def run(*command: str) -> "subprocess.CompletedProcess[str]":
    """Run Python with the package as this process sees it."""
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), *sys.path]))
    return subprocess.run(
        [sys.executable, *command],
        env=os.environ | {"PYTHONPATH": path},
        cwd=ROOT,
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


def loaded(module: str, more: str = "") -> set[str]:
    """Return the top-level packages that are loaded after some imports."""
    done = run("-c", IMPORTS.format(module=module, more=more))
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_mount_command_is_light():
    """What `skymount mount` imports has neither the web stack nor the terminal's."""
    found = loaded("mount", "from skymount import config, daemon")
    assert {"pyfuse3", "trio", "httpx"} <= found
    assert not found & HEAVY


def test_umount_command_is_light():
    """`skymount umount` needs neither a portal nor an event loop."""
    found = loaded("mount", "from skymount.fs import mountpoint")
    assert not found & (HEAVY | {"pyfuse3", "httpx", "trio"})


def test_upload_command_is_light():
    """`skymount upload` has no mount and no portal in it; a progress bar only on a terminal."""
    found = loaded(
        "upload", "from skymount import config; from skymount.portal import upload, client"
    )
    assert not found & (HEAVY | {"pyfuse3"})


@pytest.mark.parametrize("command", ["mount", "umount", "upload", "portal"])
def test_help_is_light(command: str):
    """Asking for help imports hardly anything."""
    done = run("-X", "importtime", "-m", "skymount", command, "--help")
    assert done.returncode == 0
    assert "Usage" in done.stdout
    modules = {
        line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()
    }
    assert "click" in modules
    assert not modules & (HEAVY | {"pyfuse3", "httpx", "trio", "msgspec"})


def test_codec_needs_nothing():
    """The codec can be imported without any library but those of its field."""
    assert not loaded("options", "import skymount.wire.metadata") & (HEAVY | {"trio", "httpx"})
