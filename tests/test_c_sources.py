"""The sources in C, as a compiler sees them."""

import os
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from tests.portal_process import SOURCE

SOURCES = sorted(SOURCE.rglob("*.c"))


def test_there_are_some() -> None:
    assert {"_merkle.c", "_pages.c"} <= {path.name for path in SOURCES}


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_it_compiles_without_a_warning(source: Path, tmp_path: Path) -> None:
    """It gives the compiler nothing to say, in whichever form."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    include = Path(sysconfig.get_path("include"))
    if shutil.which(compiler[0]) is None or not (include / "Python.h").exists():
        pytest.skip("no C compiler, or no headers of Python")
    done = subprocess.run(
        [
            *(*compiler, "-std=c11", "-O3", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-I{include}"),
            *("-c", source, "-o", tmp_path / "source.o"),
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
