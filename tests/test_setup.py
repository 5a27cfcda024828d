"""scripts/setup, on a small project of the same form: real environments and a real pip, which
finds its packages in a directory in place of a network.
"""

import base64
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 300.0  # seconds; a run takes about five on an idle machine

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("setup"),
    pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="these tests do not run in a .venv"),
]

PROGRAM = """
def main():
    import pyfuse3
    print("ready", flush=True)
    if input() == "go on":
        import late
        from skymount import own
        print(late.VERSION, own.VERSION, late.__file__)
"""

# Builds the program's package. It waits as long as there is a file `gate`.
BACKEND = """
import glob, os, time, zipfile
def build_editable(directory, config_settings=None, metadata_directory=None):
    return build_wheel(directory, is_editable=True)
def build_wheel(directory, config_settings=None, metadata_directory=None, is_editable=False):
    while os.path.exists(os.path.expanduser("~/gate")):
        time.sleep(0.05)
    about = "Metadata-Version: 2.1\\nName: skymount\\nVersion: 1\\n"
    wheel, entries = "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\n", "[console_scripts]\\n"
    with zipfile.ZipFile(os.path.join(directory, "skymount-1-py3-none-any.whl"), "w") as archive:
        if is_editable:
            archive.writestr("skymount.pth", os.path.abspath("src"))
        for path in [] if is_editable else glob.glob("src/**/*.py", recursive=True):
            archive.write(path, path[4:])
        info = "skymount-1.dist-info/"
        archive.writestr(info + "METADATA", about)
        archive.writestr(info + "WHEEL", wheel + "Tag: py3-none-any\\n")
        archive.writestr(info + "entry_points.txt", entries + "skymount=skymount.program:main\\n")
        archive.writestr(info + "RECORD", "")
    return "skymount-1-py3-none-any.whl"
"""

# "Compiles": setup.py build_ext --build-temp DIRECTORY --build-lib DIRECTORY
COMPILER = """
import pathlib, shutil, sys
target = pathlib.Path(sys.argv[-1], "skymount/wire/_merkle.abi3.so")
target.parent.mkdir(parents=True)
shutil.copy("src/skymount/wire/_merkle.c", target)
"""


@dataclass
class Checkout:
    """A project that scripts/setup sets up."""

    path: Path
    version: int = 0
    network: Mapping[str, str] = field(default_factory=lambda: {"PIP_NO_INDEX": "1"})
    programs: list["subprocess.Popen[str]"] = field(default_factory=list)

    def write(self, name: str, text: str) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def make(self) -> None:
        self.write("scripts/setup", (ROOT / "scripts/setup").read_text())
        (self.path / "scripts/setup").chmod(0o755)
        self.write("src/skymount/program.py", PROGRAM)
        self.write("src/skymount/wire/_merkle.c", "first\n")
        self.write("scripts/backend.py", BACKEND)
        self.write("setup.py", COMPILER)
        self.write(
            "pyproject.toml",
            "[build-system]\nrequires = []\n"
            'build-backend = "backend"\nbackend-path = ["scripts"]\n',
        )
        for name in ("build", "dev", "reference-sdk"):
            self.write(f"requirements/{name}.txt", "")
        for name in ("README.md", "LICENSE", "MANIFEST.in", "systemd/skymount.service"):
            self.write(name, "")
        self.write("src/skymount/own.py", "VERSION = 1\n")
        self.require_another_version()

    def require_another_version(self) -> None:
        """Require a library of another version, as an upgrade does."""
        self.version += 1
        lines = [self._package("pyfuse3", 1), self._package("late", self.version)]
        self.write("requirements/runtime.txt", "\n".join(lines))

    def _package(self, name: str, version: int) -> str:
        """Make a package; return the line that requires it."""
        path = self.path / f"packages/{name}-{version}-py3-none-any.whl"
        path.parent.mkdir(exist_ok=True)
        code, info = f"VERSION = {version}\n", f"{name}-{version}.dist-info"
        about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        wheel = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        files = {f"{name}.py": code, f"{info}/METADATA": about, f"{info}/WHEEL": wheel}
        record = ""
        for file, text in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
            record += f"{file},sha256={digest.decode().rstrip('=')},{len(text)}\n"
        if not path.exists():
            with zipfile.ZipFile(path, "w") as archive:
                for file, text in {**files, f"{info}/RECORD": record}.items():
                    archive.writestr(file, text)
        return f"{name}=={version} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"

    @property
    def _environment(self) -> dict[str, str]:
        return {
            "PATH": f"{os.environ['PATH']}:{self.path}/bin",
            "HOME": str(self.path),
            "PYTHON": sys._base_executable,  # type: ignore[attr-defined]
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_FIND_LINKS": (self.path / "packages").as_uri(),
            **self.network,
        }

    def start_setup(self, *arguments: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [self.path / "scripts/setup", *arguments],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def setup(self, *arguments: str, code: int = 0) -> str:
        """Run it; return what it says."""
        with self.start_setup(*arguments) as running:
            said, _ = running.communicate(timeout=LIMIT)
        assert running.returncode == code, said
        return said

    def start_program(self) -> "subprocess.Popen[str]":
        program = subprocess.Popen(
            [self.path / ".venv/bin/skymount"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.programs.append(program)
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        return program

    def assert_works(self, version: int) -> None:
        """Assert that .venv has a program, with this version of its library."""
        assert late_import(self.start_program())[0] == version

    def environments(self) -> set[str]:
        return {path.name for path in (self.path / ".venvs").glob("env-*")}


def late_import(program: "subprocess.Popen[str]") -> tuple[int, int, str]:
    """Let a program import what it imports late; return the library's version, its own, and where
    the library is.
    """
    said, _ = program.communicate("go on\n", timeout=LIMIT)
    assert program.returncode == 0
    library, own, place = said.split(maxsplit=2)
    return int(library), int(own), place


@pytest.fixture(scope="module")
def _checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    checkout = Checkout(tmp_path_factory.mktemp("setup") / "check out")
    checkout.make()
    checkout.setup()
    yield checkout
    shutil.rmtree(checkout.path)


@pytest.fixture
def checkout(_checkout: Checkout) -> Iterator[Checkout]:
    """A checkout that is set up. Each test leaves it so."""
    yield _checkout
    for program in _checkout.programs:
        program.kill()
        program.communicate()
    _checkout.programs.clear()


def test_what_runs_goes_on_from_what_it_began_with(checkout: Checkout) -> None:
    """An environment that was replaced stays as long as a program runs from it: with its libraries,
    and with the sources of then.
    """
    old = checkout.version
    running = checkout.start_program()
    checkout.require_another_version()
    checkout.write("src/skymount/own.py", "VERSION = 2\n")
    checkout.setup()
    checkout.assert_works(checkout.version)
    assert checkout.setup() == "setup: .venv is up to date\n"
    assert len(checkout.environments()) == 2
    library, own, place = late_import(running)
    assert (library, own) == (old, 1)
    assert not place.startswith(str((checkout.path / ".venv").resolve()))
    checkout.setup()
    assert checkout.environments() == {(checkout.path / ".venv").resolve().name}
    assert late_import(checkout.start_program())[1] == 2


@pytest.mark.parametrize("offline", [True, False])
def test_a_run_that_fails_changes_nothing(
    checkout: Checkout, offline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says whether the network is missing."""
    requirements = checkout.path / "requirements/runtime.txt"
    old = requirements.read_text()
    link, before = os.readlink(checkout.path / ".venv"), checkout.environments()
    if offline:
        nobody = {"PIP_INDEX_URL": "http://127.0.0.1:1/simple", "PIP_RETRIES": "1"}
        monkeypatch.setattr(checkout, "network", nobody)
        requirements.write_text(f"missing==1 --hash=sha256:{'0' * 64}\n")
    else:
        requirements.write_text(f"{checkout._package('late', checkout.version)[:-8]}00000000")
    said = checkout.setup(code=1)
    last = said.splitlines()[-1]
    assert last.startswith("setup: failed: installing the libraries. ")
    assert ("network is missing" in last) == offline
    assert last.endswith(".venv is as it was.")
    assert os.readlink(checkout.path / ".venv") == link
    assert checkout.environments() <= before
    checkout.assert_works(checkout.version)
    requirements.write_text(old)
    assert checkout.setup() == "setup: .venv is up to date\n"


def test_runs_that_are_ended_and_two_at_once(checkout: Checkout) -> None:
    """The old environment works on; later runs make one new one, and leave nothing behind."""
    old = checkout.version
    checkout.require_another_version()
    gate = checkout.path / "gate"
    for number in (signal.SIGKILL, signal.SIGTERM):
        gate.touch()
        with checkout.start_setup() as running:
            assert running.stdout is not None
            assert "setup: installing skymount\n" in running.stdout
            running.send_signal(number)
            gate.unlink()  # what it started ends too
            running.communicate(timeout=LIMIT)
        assert running.returncode != 0
        checkout.assert_works(old)
    gate.touch()
    with checkout.start_setup() as first, checkout.start_setup() as second:
        assert first.stdout is not None
        assert second.stdout is not None
        begun = {first.stdout.readline(), second.stdout.readline()}
        assert "setup: waiting for another run\n" in begun
        gate.unlink()
        said = {each.communicate(timeout=LIMIT)[0] for each in (first, second)}
    assert (first.returncode, second.returncode) == (0, 0)
    assert "setup: .venv is up to date\n" in said
    checkout.assert_works(checkout.version)
    assert len(checkout.environments()) == 1


def test_the_directory_of_an_older_setup(checkout: Checkout) -> None:
    """It becomes a link; links to the program in it go on working."""
    venv = checkout.path / ".venv"
    link = checkout.path / "bin/skymount"
    link.parent.mkdir()
    link.symlink_to(venv / "bin/skymount")
    old = venv.resolve()
    venv.unlink()
    old.rename(venv)
    checkout.setup()
    assert venv.is_symlink()
    checkout.assert_works(checkout.version)
    done = subprocess.run([link], input="no\n", capture_output=True, text=True, check=True)
    assert done.stdout == "ready\n"


def test_developers_run_from_the_sources(checkout: Checkout) -> None:
    """A change of them needs no new environment; their compiled part is made in place."""
    for name in _tools():
        if not shutil.which(name):  # or it would be installed
            checkout.write(f"bin/{name}", "#!/bin/sh\n")
            (checkout.path / "bin" / name).chmod(0o755)
    checkout.setup("--dev")
    before = os.readlink(checkout.path / ".venv")
    checkout.write("src/skymount/own.py", "VERSION = 3\n")
    checkout.write("src/skymount/wire/_merkle.c", "second\n")
    assert checkout.setup() == "setup: compiling skymount\nsetup: .venv is up to date\n"
    made = checkout.path / "src/skymount/wire/_merkle.abi3.so"
    assert made.read_text() == "second\n"
    assert os.readlink(checkout.path / ".venv") == before
    assert late_import(checkout.start_program())[1] == 3


def _tools() -> list[str]:
    found = re.search(r"for name in (rsync .*?);", (ROOT / "scripts/setup").read_text())
    assert found
    return found[1].split()
