"""``scripts/demo``, with a mount and where nothing can be mounted."""

import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.mount.namespaces import Namespace, new_namespace
from tests.skymount_process import clear_mounts, run
from tests.test_readme import SCRIPT_LIMIT, blocks, make_checkout

pytestmark = [
    pytest.mark.mount,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.getuid() != 0, reason="only root can hide a device"),
    pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="these tests do not run in a .venv"),
]

SITE = Path(__file__).parent.parent / "scripts/demo-site"
NOTE = SITE / "field notes/2026/first day.txt"
FILES = ["data", "field notes", "index.html"]
LIMIT = 15  # lines that a person reads


def demo(home: Path, namespace: Namespace, prefix: Sequence[str] = ()) -> tuple[list[str], str]:
    """Run it; return what it prints from the first command on, and its errors."""
    checkout = home.parent / "skymount"
    make_checkout(checkout)
    home.mkdir()
    env = {"HOME": str(home), "PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
    command = [*namespace.prefix, *prefix, checkout / "scripts/demo"]
    done = run(command, env=env, limit=SCRIPT_LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    first = f"\n$ skymount mount {home}/skymount-demo\n"
    assert first in done.stdout
    return done.stdout.partition(first)[2].splitlines(), done.stderr


def skylink() -> str:
    """Return the site's name, which the README shows."""
    (example,) = blocks("console")
    (found,) = set(re.findall(r"/skylinks/([\w-]{46})/", example))
    return str(found)


def test_it_ends_in_a_few_lines_for_a_person(tmp_path: Path) -> None:
    """What was published, what `ls` and `cat` show, the page's address, and what to do next."""
    home = tmp_path / "home"
    site = f"{home}/skymount-demo/skylinks/{skylink()}"
    skymount = f"{tmp_path}/skymount/.venv/bin/skymount"
    with new_namespace(network=True) as namespace:
        try:
            said, errors = demo(home, namespace)
            page = namespace.python(
                "import sys, urllib.request as r; print(r.urlopen(sys.argv[1]).read().decode())",
                address := said[-4].split()[-1],
            )
            assert namespace.do("cat", f"{site}/index.html") == (SITE / "index.html").read_text()
            namespace.do(*said[-1].removeprefix("To unmount:").split())
        finally:
            clear_mounts(tmp_path, namespace.prefix)
    assert errors == ""
    assert said[:-6] == [
        "$ skymount upload scripts/demo-site",
        skylink(),
        f"$ ls {site}/",
        *FILES,
        f"$ cat '{site}/{NOTE.relative_to(SITE)}'",
        NOTE.read_text().rstrip(),
    ]
    assert len(said) <= LIMIT
    assert address == f"http://127.0.0.1:4280/{skylink()}/"
    assert page == (SITE / "index.html").read_text() + "\n"
    assert f"{skymount} upload PATH" in said[-3]
    assert said[-1].endswith(f"{skymount} umount {home}/skymount-demo")


def test_what_the_page_says_is_true_wherever_it_is_read() -> None:
    """Its links lead to files of the site, by paths that a browser and a mount share."""
    text = (SITE / "index.html").read_text()
    links = re.findall(r'(?:href|src)="([^"]+)"', text)
    assert len(links) == 3
    assert all((SITE / link.replace("%20", " ")).is_file() for link in links)
    assert "you are reading" not in text


@pytest.mark.parametrize("refusal", ["no device", "no right"])
def test_it_goes_on_without_a_mount(tmp_path: Path, refusal: str) -> None:
    """The same by `ls`, `cat` and `download`, once `skymount mount` has said that it is needed."""
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed")
    prefix: list[str] = []
    with new_namespace(network=True) as namespace:
        if refusal == "no device":
            namespace.hide_fuse_device(tmp_path / "dev")
        else:
            prefix = ["setpriv", "--bounding-set=-sys_admin"]
        said, errors = demo(tmp_path / "home", namespace, prefix)
    assert re.fullmatch(r"skymount: .*in a container pass `--device /dev/fuse.*\n", errors)
    assert said[0] == "So this is the tour without a mount, on a portal that ends with it."
    assert len(said) <= LIMIT
    assert said[1:-4] == [
        "$ skymount upload scripts/demo-site",
        skylink(),
        f"$ skymount ls {skylink()}",
        "data/",
        "field notes/",
        "index.html",
        f"$ skymount cat '{skylink()}/field%20notes/2026/first%20day.txt'",
        NOTE.read_text().rstrip(),
        f"$ skymount download {skylink()} copy; grep Tuesday copy/data/tides.csv",
        "Tuesday,3.3,0.3",
    ]
    assert f"{tmp_path}/skymount/.venv/bin/skymount portal serve" in said[-3]
    assert not (tmp_path / "home/skymount-demo/skylinks").exists()
