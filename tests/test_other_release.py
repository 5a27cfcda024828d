"""scripts/test-release, as far as it needs no network."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.ports import unused_port

SCRIPT = Path(__file__).parents[1] / "scripts/test-release"
WITHOUT_THE_RIGHT = ("setpriv", "--bounding-set", "-sys_admin")


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("debootstrap") is None or not os.path.exists("/dev/fuse"),
    reason="needs root, debootstrap and /dev/fuse",
)
@pytest.mark.parametrize(
    ("prefix", "reason"),
    [((), "trixie cannot be downloaded"), (WITHOUT_THE_RIGHT, "namespaces cannot be made here")],
    ids=["no mirror", "no right to mount"],
)
def test_no_root_to_be_had(tmp_path: Path, prefix: tuple[str, ...], reason: str):
    """The status tells it apart from tests that fail; nothing is left behind."""
    mirror = f"http://127.0.0.1:{unused_port()}/debian"
    done = subprocess.run(
        [*prefix, SCRIPT, "trixie"],
        env=os.environ | {"TMPDIR": str(tmp_path), "MIRROR": mirror},
        capture_output=True,
        text=True,
        check=False,
    )
    if "Operation not permitted" in done.stderr and not prefix:
        pytest.skip("namespaces cannot be made here")
    assert (done.returncode, reason in done.stderr) == (77, True), done.stderr
    assert not list(tmp_path.iterdir())
