"""The wheel, the source distribution, and pipx: what an installation from them has."""

import gzip
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from email.parser import Parser
from pathlib import Path

import pytest

from skymount import config, default_portal, keyring
from skymount.content.cache import block_store
from skymount.portal.ledger import ledger
from tests.fuse_device import mounts
from tests.mount.namespaces import Namespace, new_namespace
from tests.skymount_process import Sandbox, clear_mounts

ROOT = Path(__file__).resolve().parent.parent
PIP = "pip==26.1"  # pipx brings an environment of its own for it, of this version at least

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("packaging")]


def run(*command: str | Path, env: Mapping[str, str] | None = None, cwd: Path = ROOT) -> str:
    """Run a command, which must succeed; return its output."""
    words = [os.fspath(word) for word in command]
    done = subprocess.run(
        words, capture_output=True, text=True, env=env, cwd=cwd, timeout=600, check=False
    )
    assert done.returncode == 0, f"{words}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def pip_wheel(directory: Path, *args: str | Path) -> None:
    """Make wheels with the build tools that are installed."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-q"]
    run(*pip, "--no-deps", "--no-build-isolation", "--wheel-dir", directory, *args)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, so that a build leaves nothing in it."""
    copy = tmp_path_factory.mktemp("source") / "skymount"
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Path:
    directory = tmp_path_factory.mktemp("wheels")
    pip_wheel(directory, source)
    return directory


def _wheel(directory: Path) -> Path:
    (found,) = directory.glob("skymount-*.whl")
    return found


def _data(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".data/data/" in name]
        return {name.partition(".data/data/")[2]: archive.read(name) for name in names}


def test_one_wheel_is_for_all_later_versions_of_python(wheels: Path) -> None:
    """Its tag says so, and that of the extension in it."""
    wheel = _wheel(wheels)
    python, abi, _ = wheel.stem.split("-")[2:]
    assert (python, abi) == ("cp311", "abi3")
    with zipfile.ZipFile(wheel) as archive:
        extensions = [name for name in archive.namelist() if name.endswith(".so")]
    assert extensions == ["skymount/wire/_merkle.abi3.so"]


def test_the_wheel_describes_itself(wheels: Path) -> None:
    with zipfile.ZipFile(_wheel(wheels)) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        found = Parser().parsestr(archive.read(name).decode())
    assert found["Description-Content-Type"] == "text/markdown"
    assert str(found.get_payload()).startswith("# skymount")


def test_the_wheel_has_units_man_pages_and_completion(wheels: Path) -> None:
    data = _data(_wheel(wheels))
    units = {f"share/systemd/user/{path.name}" for path in (ROOT / "systemd").iterdir()}
    assert units <= data.keys()
    assert {"share/man/man1/skymount.1", "share/man/man1/skymount-mount.1"} <= data.keys()
    assert b"_SKYMOUNT_COMPLETE=bash_complete" in data["share/bash-completion/completions/skymount"]
    assert b"#compdef skymount" in data["share/zsh/site-functions/_skymount"]
    assert b"--command skymount" in data["share/fish/vendor_completions.d/skymount.fish"]


def test_the_wheel_has_the_pages_of_the_portal(wheels: Path) -> None:
    """Their templates, styles and scripts, besides the modules."""
    pages = Path("skymount/server/pages")
    kept = {path.relative_to(ROOT / "src") for path in (ROOT / "src" / pages).rglob("*.*")}
    expected = {str(path) for path in kept if path.suffix in (".html", ".css", ".js", ".svg")}
    with zipfile.ZipFile(_wheel(wheels)) as archive:
        assert expected <= set(archive.namelist())
    assert len(expected) > 12


def test_a_wheel_of_the_source_distribution_is_the_same(
    tmp_path: Path, source: Path, wheels: Path
) -> None:
    code = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    run(sys.executable, "-c", code, tmp_path, cwd=source)
    (archive,) = tmp_path.glob("skymount-*.tar.gz")
    (tmp_path / "unpacked").mkdir()
    run("tar", "--extract", "--file", archive, "--directory", tmp_path / "unpacked")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    pip_wheel(tmp_path / "again", unpacked)
    again, before = _wheel(tmp_path / "again"), _wheel(wheels)
    assert _data(again) == _data(before)
    with zipfile.ZipFile(again) as one, zipfile.ZipFile(before) as other:
        assert sorted(one.namelist()) == sorted(other.namelist())


@pytest.fixture(scope="module")
def all_wheels(wheels: Path) -> Path:
    """The directory of the wheel, with those of all that it needs, as pinned."""
    pip_wheel(wheels, "--require-hashes", "-r", ROOT / "requirements/runtime.txt")
    return wheels


def test_pipx_installs_the_wheel_without_a_compiler(tmp_path: Path, all_wheels: Path) -> None:
    """docs/install.md: with wheels of all that it needs, no development tool is used."""
    wheels = all_wheels
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "download", "-q", "--no-deps", "--dest", wheels, PIP)
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("sh", "env"):
        (programs / name).symlink_to(str(shutil.which(name)))
    env = {
        "PATH": str(programs),
        "HOME": str(tmp_path / "home"),
        "PIPX_HOME": str(tmp_path / "pipx"),
        "PIPX_BIN_DIR": str(tmp_path / "bin"),
        "PIPX_MAN_DIR": str(tmp_path / "man"),
        "PIPX_COMPLETION_DIR": str(tmp_path / "completion"),
        "LC_ALL": "C.UTF-8",
    }
    offline = f"--no-index --no-compile --only-binary :all: --find-links {wheels}"
    pipx = [sys.executable, "-m", "pipx"]
    said = run(*pipx, "install", "--pip-args", offline, _wheel(wheels), env=env)
    assert "skymount" in said
    program = tmp_path / "bin/skymount"
    assert run(program, "--version", env=env, cwd=tmp_path).startswith("skymount ")
    assert "Usage: skymount mount" in run(program, "mount", "--help", env=env, cwd=tmp_path)
    python = tmp_path / "pipx/venvs/skymount/bin/python"
    run(python, "-c", "import pyfuse3, skymount.wire._merkle", env=env, cwd=tmp_path)
    assert (tmp_path / "man/man1/skymount.1").exists()
    run(*pipx, "uninstall", "skymount", env=env)
    assert not program.exists()


@pytest.mark.skipif(shutil.which("groff") is None, reason="no groff")
def test_roff_has_no_complaint_about_a_man_page(wheels: Path) -> None:
    pages = {name: text for name, text in _data(_wheel(wheels)).items() if "/man/" in name}
    assert len(pages) > 15
    for name, text in pages.items():
        done = subprocess.run(
            ["groff", "-man", "-ww", "-z", "-Tutf8"], input=text, capture_output=True, check=True
        )
        assert done.stderr == b"", name


CONTAINERFILE = (ROOT / "Containerfile").read_text()
HOWTO = (ROOT / "docs/howto/containers.md").read_text()
VOLUMES = {
    "skymount-config": Path("/root/.config/skymount"),
    "skymount-state": Path("/root/.local"),
    "skymount-cache": Path("/root/.cache"),
}


def test_the_volumes_of_the_image_keep_all_that_skymount_keeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """None is declared by the image: it would hide what a volume above it keeps."""
    assert not re.search(r"^(VOLUME|USER)|\bHOME\b|XDG_", CONTAINERFILE, re.MULTILINE)
    for name in [name for name in os.environ if name.startswith("XDG_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", "/root")
    kept = [config.default_path(), keyring.default_path(), default_portal.default_data()]
    kept += [ledger.default_path(), Path(config.default_log_file("/mnt/sky"))]
    kept += [block_store.default_path()]
    for path in kept:
        assert any(path.is_relative_to(volume) for volume in VOLUMES.values()), path
    for page in (ROOT / "docs").rglob("*.md"):
        assert page.name == "containers.md" or "/root/." not in page.read_text(), page


def _examples() -> list[str]:
    """Return the lines of docs that start skymount in a container."""
    pages = [HOWTO, (ROOT / "docs/install.md").read_text()]
    lines = "\n".join(pages).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.lstrip().startswith("podman run")]


def test_examples_of_the_image_have_a_portal_and_its_volumes() -> None:
    mounting = [line for line in _examples() if "/dev/fuse" in line]
    assert len(mounting) == 2
    for line in mounting:
        found = dict(re.findall(r" -v ([^:\s]+):(\S+)", line))
        assert found == {name: str(path) for name, path in VOLUMES.items()}, line
        assert "--cap-add SYS_ADMIN" in line
        assert " -e SKYMOUNT_PORTALS=http" in line
    others = [line for line in _examples() if "skymount ls" in line]
    assert others
    for line in others:
        assert " -e SKYMOUNT_PORTALS=http" in line


def test_process_1_of_the_image_reaps() -> None:
    """Without it zombies of a mount stay, and signals end no other command."""
    assert 'ENTRYPOINT ["tini", "-s", "--", "skymount"]' in CONTAINERFILE
    last_stage = CONTAINERFILE.rpartition("\nFROM ")[2]
    assert re.search(r"apt-get install .*\btini\b", last_stage)


SYSTEM_PYTHON = Path("/usr/bin/python{}.{}".format(*sys.version_info))


@pytest.fixture
def mount_namespace() -> Iterator[Namespace]:
    with new_namespace(network=False) as made:
        yield made


@pytest.fixture
def installed(tmp_path: Path, source: Path, mount_namespace: Namespace) -> Iterator[Path]:
    """A root into which the Debian package is installed; its /opt is that of the name space.

    The machine's own packages stay as they are. Building and removing it leaves nothing.
    """
    if os.getuid() or shutil.which("dpkg-deb") is None or not SYSTEM_PYTHON.exists():
        pytest.skip(f"needs root, dpkg-deb and {SYSTEM_PYTHON}")
    checkout = tmp_path / "checkout"
    shutil.copytree(source, checkout, ignore=shutil.ignore_patterns("build", "*.egg-info"))
    (checkout / ".venv").symlink_to((ROOT / ".venv").resolve())
    before = set(checkout.rglob("*"))
    run(checkout / "scripts/build-deb", tmp_path)
    assert set(checkout.rglob("*")) == before
    (package,) = tmp_path.glob("skymount_*.deb")
    root = tmp_path / "root"
    (root / "var/lib/dpkg").mkdir(parents=True)
    (root / "var/lib/dpkg/status").touch()
    dpkg = ["dpkg", "--root", root, "--log=/dev/null", "--force-depends"]
    run(*dpkg, "--install", package)
    mount_namespace.do("mount", "--bind", root / "opt", "/opt")
    yield root
    mount_namespace.do("umount", "/opt")
    run(*dpkg, "--remove", "skymount")
    left = [path for path in root.rglob("*") if not path.is_relative_to(root / "var")]
    assert [path for path in left if not path.is_dir()] == []


@mounts
def test_the_debian_package_mounts(
    installed: Path, mount_namespace: Namespace, sandbox: Sandbox
) -> None:
    """With its own libraries, by its mount helper; with man pages, completion and units."""
    for name in (
        "usr/share/man/man1/skymount.1.gz",
        "usr/share/man/man8/mount.skymount.8.gz",
        "usr/share/bash-completion/completions/skymount",
        "usr/share/zsh/vendor-completions/_skymount",
        "usr/share/fish/vendor_completions.d/skymount.fish",
        "usr/lib/systemd/user/skymount@.service",
    ):
        assert (installed / name).is_file(), name
    control = (installed / "var/lib/dpkg/status").read_text()
    assert re.search(r"^Depends: .*\bca-certificates\b", control, re.MULTILINE)
    assert re.search(r"^Maintainer: .+ <\S+@\S+>$", control, re.MULTILINE)
    changes = gzip.decompress((installed / "usr/share/doc/skymount/changelog.gz").read_bytes())
    assert changes.startswith(b"skymount (0.")
    inside = mount_namespace.prefix
    env = {name: value for name, value in sandbox.env.items() if name != "PYTHONPATH"}
    program = installed / "usr/bin/skymount"
    assert run(*inside, program, "--version", env=env).startswith("skymount ")
    code = "import sys, pyfuse3, skymount.wire._merkle; print(sys.prefix, pyfuse3.__file__)"
    said = run(*inside, "/opt/skymount/bin/python", "-c", code, env=env)
    assert said.startswith("/opt/skymount /opt/skymount/lib/")
    path = sandbox.directory()
    helper = installed / "usr/sbin/mount.skymount"
    try:
        run(*inside, helper, "http://127.0.0.1:9", path, "-o", "rw,ro", env=env)
        assert "skylinks" in run(*inside, "ls", path)
        assert run(*inside, program, "umount", path, env=env) == ""
    finally:
        clear_mounts(path, inside)
