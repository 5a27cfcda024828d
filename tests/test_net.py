"""«scripts/test net»: the tests that stay green while the code is restructured."""

import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.skymount_process import output

ROOT = Path(__file__).parent.parent
NET = ROOT / "tests/net.txt"

PROMISED = {
    *("mount/test_tools.py", "mount/test_registry_tools.py", "mount/test_registry_editors.py"),
    *("mount/test_registry.py", "mount/test_differential.py", "mount/test_registry_model.py"),
    *("mount/test_registry_crash.py", "server/storage/cluster/test_kills.py"),
    *("chaos/test_chaos.py", "reference_sdk/test_reference_sdk.py", "browser/test_upload.py"),
    *("contract/test_endpoints.py", "contract/test_functions.py", "contract/test_options.py"),
    *("contract/test_errors_and_limits.py", "server/upload/test_endpoint.py"),
    *("file_api/test_libraries.py", "test_guides.py"),
}
"""Mounts and programs on them, models, crashes, chaos, SDKs, browser, the contract, guides."""


@pytest.mark.timeout(400)
def test_the_net_has_what_is_promised() -> None:
    """It collects each suite that DEVELOPMENT.md names, and each file of its list exists."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n0", "-qq"]
    said = output([*command, "--collect-only", f"@{NET}"], cwd=ROOT, limit=300)
    found = dict(re.findall(r"^tests/(\S+): (\d+)$", said.decode(), re.MULTILINE))
    assert found.keys() >= PROMISED
    assert sum(map(int, found.values())) > 900
    named = [ROOT / line.removeprefix("--ignore=") for line in NET.read_text().splitlines()]
    assert [path for path in named if not path.exists()] == []


def test_the_script_runs_the_net_and_passes_arguments_on(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/test", tmp_path / "scripts/test")
    for name, code in (("scripts/setup", ":"), (".venv/bin/python", 'printf "%s\\n" "$@"')):
        program = tmp_path / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/sh\n{code}\n")
        program.chmod(0o755)
    script = tmp_path / "scripts/test"
    assert output([script, "net", "-k", "a b"]).decode().splitlines()[-3:] == [
        *("@tests/net.txt", "-k", "a b")
    ]
    assert output([script, "net.py"]).decode().splitlines()[-1] == "net.py"
