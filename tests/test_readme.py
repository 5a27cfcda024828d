"""The blocks of README.md run as they stand, in order, as an ordinary user with a real portal."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.mount.namespaces import NOBODY, new_namespace
from tests.skymount_process import clear_mounts, run

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
SCRIPT_LIMIT = 240.0  # seconds

COPIED = ("pyproject.toml", "README.md", "requirements", "scripts", "setup.py", "src", "tests")


def blocks(kind: str, part: str = README) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", part, re.MULTILINE | re.DOTALL)


def console(block: str) -> list[tuple[str, str]]:
    """Return (command, what it prints) of an example with prompts."""
    parts = re.split(r"^\$ (.*)\n", block, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def make_checkout(path: Path) -> None:
    """Copy this checkout; its .venv is up to date, as `scripts/setup --dev` leaves it."""
    ignored = shutil.ignore_patterns("__pycache__")
    path.mkdir()
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, path / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, path / name)
    venv, ours = path / ".venvs/env-0", Path(sys.prefix)
    packages = Path(sysconfig.get_path("purelib"))
    (venv / packages.relative_to(ours)).parent.mkdir(parents=True)
    (venv / packages.relative_to(ours)).symlink_to(packages)
    shutil.copy(ours / "pyvenv.cfg", venv / "pyvenv.cfg")
    shutil.copytree(ROOT / "systemd", venv / "share/systemd/user")  # ROOT may be closed to nobody
    (venv / "bin").mkdir()
    python = venv / "bin/python"
    python.symlink_to(os.path.realpath(sys.executable))
    command = venv / "bin/skymount"
    text = (ours / "bin/skymount").read_text()
    command.write_text(f"#!{python}\n" + text.partition("\n")[2])
    command.chmod(0o755)
    (path / ".venv").symlink_to(".venvs/env-0")
    files = "sed '/^# --- pytest/,$d' pyproject.toml; cat requirements/*.txt scripts/setup"
    total = run(["sh", "-c", f"{{ {files}; }} | sha256sum"], cwd=path).stdout.strip()
    extension = run(["sh", "-c", "cat setup.py src/skymount/*/*.[ch] | sha256sum"], cwd=path).stdout
    (venv / "extension-made-from").write_text(extension)
    version = " ".join(map(str, sys.version_info[:3]))
    marker = f"{path}\n{version} {sys.base_prefix}\n{total}\ndev\n"
    (venv / "made-by-setup").write_text(marker)


@pytest.mark.mount
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(os.getuid() != 0, reason="only root can be someone else")
@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="these tests do not run in a .venv")
def test_every_block_runs_in_order(tmp_path: Path) -> None:
    """Line by line from standard input, as they would be pasted; with the portal of the mount."""
    root = tmp_path / "box"
    home, checkout = root / "home", root / "skymount"
    for path in (root, home, root / "tmp"):
        path.mkdir()
    make_checkout(checkout)
    for each in (root, *root.rglob("*")):
        os.chown(each, NOBODY, NOBODY, follow_symlinks=False)
    quick_start, *others, uninstall = blocks("sh")
    (example,) = blocks("console")
    script = [
        quick_start,
        *(f"{command} > ~/said{n}" for n, (command, _) in enumerate(console(example))),
        ".venv/bin/skymount umount ~/skymount-demo",
        *others,
        'printf \'[mounts.home]\\nmountpoint = "~/sky"\\n\' > "$(skymount config init)"',
        "skymount service install home; skymount service install --portal",
        uninstall,
    ]
    there = {path.name for path in checkout.iterdir()}
    with new_namespace(network=True) as namespace:
        prefix = namespace.as_nobody(root)
        env = {
            "HOME": str(home),
            "PATH": os.environ["PATH"],
            "LC_ALL": "C.UTF-8",
            "TMPDIR": str(root / "tmp"),
            "PYTEST_ADDOPTS": "--collect-only tests/test_errors.py",  # all tests run already
        }
        try:
            done = subprocess.run(
                [*prefix, "sh", "-c", 'cd "$0" && exec bash -eux', checkout],
                input="\n".join(script),
                env=env,
                capture_output=True,
                text=True,
                timeout=SCRIPT_LIMIT,
                check=False,
            )
        finally:
            clear_mounts(root, prefix)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    for number, (command, said) in enumerate(console(example)):
        assert (home / f"said{number}").read_text() == said, command
    assert re.search(r"^=* \d+ tests collected", done.stdout, re.MULTILINE)
    for path in (home / "copy/index.html", home / "hello.html"):
        assert path.read_text() == "<h1>Hello</h1>\n"
    assert done.stdout.count("hello, world\n") == 2  # from the mount, and by `registry get`
    assert "\n<h1>Hello</h1>\n" in done.stdout, "not read from Python"
    left = [path for path in home.rglob("*") if "skymount" in path.name]
    assert left == [home / "skymount-demo"], "uninstalling leaves something"
    made = {path.name for path in checkout.iterdir()} - there
    assert made <= {".venv.lock", ".pytest_cache"}, "something is left in the checkout"
