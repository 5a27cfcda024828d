"""The sources in C, as a compiler sees them."""

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.portal_process import SOURCE

SOURCES = sorted(SOURCE.rglob("*.c"))


def _compiler() -> list[str]:
    """Return the command of the compiler, with Python's headers."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    include = Path(sysconfig.get_path("include"))
    if shutil.which(compiler[0]) is None or not (include / "Python.h").exists():
        pytest.skip("no C compiler, or no headers of Python")
    return [*compiler, f"-I{include}"]


def test_there_are_some() -> None:
    assert [path.name for path in SOURCES] == ["_merkle.c"]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_it_compiles_without_a_warning(source: Path, tmp_path: Path) -> None:
    """It gives the compiler nothing to say, in whichever form."""
    done = subprocess.run(
        [
            *(*_compiler(), "-std=c11", "-O3", "-fPIC", "-Wall", "-Wextra", "-Werror"),
            *("-c", source, "-o", tmp_path / "source.o"),
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def _sanitizer(compiler: list[str]) -> Path:
    """Return the library of AddressSanitizer that goes with the compiler."""
    for name in ("libasan.so", f"libclang_rt.asan-{platform.machine()}.so"):
        said = subprocess.run(
            [*compiler, f"-print-file-name={name}"], check=True, capture_output=True, text=True
        )
        found = Path(said.stdout.strip())
        if found.is_absolute() and found.read_bytes()[:4] == b"\x7fELF":
            return found
    pytest.skip("the compiler has no AddressSanitizer that can be loaded")


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The package with its C sources compiled to watch their memory, and what that needs.

    Where they were compiled otherwise, or not at all, does not matter.
    """
    compiler = _compiler()
    library = _sanitizer(compiler)
    root = tmp_path_factory.mktemp("sanitized") / "src"
    compiled = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
    shutil.copytree(SOURCE, root, ignore=compiled)
    flags = ["-std=c11", "-O1", "-g", "-fPIC", "-shared", "-fno-omit-frame-pointer"]
    flags += ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    for source in SOURCES:
        target = root / source.relative_to(SOURCE).with_suffix(".so")
        done = subprocess.run(
            [*compiler, *flags, "-o", target, source],
            check=False,
            capture_output=True,
            text=True,
            timeout=100,
        )
        if done.returncode:
            pytest.skip(f"the compiler has no sanitizers: {done.stderr[-200:]}")
    environment = {
        **os.environ,
        "PYTHONPATH": str(root),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONMALLOC": "malloc",  # else it would see one block in which all objects are
        "LD_PRELOAD": str(library),
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",  # Python itself leaks at exit
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    }
    return root, environment


def _run(command: list[str | Path], environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-P", *command],
        check=False,
        capture_output=True,
        text=True,
        timeout=110,
        cwd=SOURCE.parent,
        env=environment,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


@pytest.mark.xdist_group("c sources")
def test_it_keeps_to_its_memory(sanitized: tuple[Path, dict[str, str]]) -> None:
    """At the ends of buffers, with odd sizes and wrong arguments, under two sanitizers."""
    root, environment = sanitized
    driver = Path(__file__).with_name("sanitized.py")
    _run([driver, root], environment)
