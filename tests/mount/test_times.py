"""S7: the times of what moves, as programs use them that copy what is newer."""

import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from tests.mount.test_hns import lead, mounting, publish, read, until
from tests.nginx import needs_nginx, serving
from tests.portal_process import PortalProcess, portal_process
from tests.skymount_process import Mount, Sandbox, output

_V1 = 1577836800  # 2020-01-01


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PortalProcess]:
    with portal_process(tmp_path_factory.mktemp("names") / "data") as running:
        yield running


@pytest.fixture
def versions(sandbox: Sandbox, names: PortalProcess) -> tuple[str, str]:
    """Two skylinks of files of the same names and sizes."""
    one = publish(sandbox, names, "one", {"a/f.txt": "old", "same": "x"})
    two = publish(sandbox, names, "two", {"a/f.txt": "new", "same": "x"})
    lead(sandbox, names, "moving", one)
    return one, two


@pytest.fixture
def quick(sandbox: Sandbox, names: PortalProcess, versions: tuple[str, str]) -> Iterator[Mount]:
    """A mount that resolves names again at once."""
    with mounting(sandbox, 0.1).mounted("--portal", names.url) as mount:
        yield mount


def move(sandbox: Sandbox, names: PortalProcess, file: Path, target: str, content: str) -> None:
    """Let the domain lead elsewhere, and wait until the mount shows that."""
    lead(sandbox, names, "moving", target)
    until(lambda: read(file) == content)


COPIES = {
    "rsync": ["rsync", "-a", "{0}/", "copy"],
    "cp": ["cp", "-ru", "--no-preserve=mode", "{0}/.", "copy"],
    "make": ["make", "-s"],
}


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(
            name,
            marks=pytest.mark.skipif(not shutil.which(name), reason=f"{name} is not installed"),
        )
        for name in COPIES
    ],
)
def test_copies_follow_a_name(
    sandbox: Sandbox,
    names: PortalProcess,
    versions: tuple[str, str],
    quick: Mount,
    program: str,
    tmp_path: Path,
) -> None:
    """Also of files of the same size, there and back again."""
    tree = quick.path / "hns/moving"
    (tmp_path / "copy/a").mkdir(parents=True)
    rule = f"copy/a/f.txt: {tree}/a/f.txt\n\tcp --no-preserve=mode {tree}/a/f.txt $@\n"
    (tmp_path / "Makefile").write_text(rule)
    command = [word.format(tree) for word in COPIES[program]]
    for round_, content in enumerate(("old", "new", "old", "new")):
        move(sandbox, names, tree / "a/f.txt", versions[round_ % 2], content)
        time.sleep(1.1)  # make would warn of a time that is still to come
        output(command, cwd=tmp_path)
        assert (tmp_path / "copy/a/f.txt").read_text() == content


def test_times_of_a_name_and_of_its_versions(
    sandbox: Sandbox, names: PortalProcess, versions: tuple[str, str]
) -> None:
    """All of a tree has one time; v1 trees have theirs, and a remount changes nothing."""
    found = []
    for round_ in range(2):
        with mounting(sandbox, 0.1).mounted("--portal", names.url) as mount:
            tree = mount.path / "hns/moving"
            assert os.stat(mount.skylink(versions[0]) / "a/f.txt").st_mtime == _V1
            if round_:
                assert read(tree / "a/f.txt") == "new"
                assert os.stat(tree / "a/f.txt").st_mtime == found[-1]
                continue
            for target, content in ((versions[0], "old"), (versions[1], "new")):
                move(sandbox, names, tree / "a/f.txt", target, content)
                listed = output(["find", tree, "-printf", "%T@ %C@ %A@\n"]).split()
                assert len(set(map(float, listed))) == 1
                found.append(float(listed[0]))
    assert found[1] > found[0]
    assert abs(found[0] - time.time()) < 600
    assert found[0].is_integer()


def test_a_name_whose_time_cannot_be_kept(
    sandbox: Sandbox, names: PortalProcess, versions: tuple[str, str]
) -> None:
    """It is that of the mount; a version that follows is later all the same."""
    ledger = sandbox.root / "state/skymount/ledger.sqlite3"
    ledger.parent.mkdir(parents=True, exist_ok=True)
    ledger.write_text("no database" * 1000)
    ledger.chmod(0o600)
    with mounting(sandbox, 0.1).mounted("--portal", names.url) as mount:
        tree = mount.path / "hns/moving"
        first = os.stat(tree / "same").st_mtime
        move(sandbox, names, tree / "a/f.txt", versions[1], "new")
        second = os.stat(tree / "same").st_mtime
        assert second > first
        move(sandbox, names, tree / "a/f.txt", versions[0], "old")
        assert os.stat(tree / "same").st_mtime > second


def test_a_ledger_that_fails_later(
    sandbox: Sandbox, names: PortalProcess, versions: tuple[str, str]
) -> None:
    """A version that cannot be kept is later than the one before all the same."""
    ledger = sandbox.root / "state/skymount/ledger.sqlite3"
    with mounting(sandbox, 0.1).mounted("--portal", names.url) as mount:
        time.sleep(1.5)
        tree = mount.path / "hns/moving"
        first = os.stat(tree / "same").st_mtime
        with closing(sqlite3.connect(ledger, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            move(sandbox, names, tree / "a/f.txt", versions[1], "new")
            assert os.stat(tree / "same").st_mtime > first


@needs_nginx
def test_a_web_server_sends_the_new_version(
    sandbox: Sandbox,
    names: PortalProcess,
    versions: tuple[str, str],
    quick: Mount,
    tmp_path: Path,
) -> None:
    """To browsers that ask for what changed since; its entity tag is the time and the size."""
    tree = quick.path / "hns/moving"
    with serving(tree, tmp_path / "nginx") as url:
        first = httpx.get(f"{url}/a/f.txt")
        assert first.text == "old"
        known = {"If-None-Match": first.headers["etag"]}
        since = {"If-Modified-Since": first.headers["last-modified"]}
        for headers in (known, since):
            assert httpx.get(f"{url}/a/f.txt", headers=headers).status_code == 304
        move(sandbox, names, tree / "a/f.txt", versions[1], "new")
        for headers in (known, since):
            answer = httpx.get(f"{url}/a/f.txt", headers=headers)
            assert (answer.status_code, answer.text) == (200, "new")


def test_the_portal_sends_no_time(names: PortalProcess, versions: tuple[str, str]) -> None:
    """Portals of one store would differ."""
    for path in (f"{versions[0]}/same", "hns/moving/same"):
        assert "last-modified" not in httpx.get(f"{names.url}/{path}").headers


def test_two_mounts_have_the_same_times(
    sandbox: Sandbox, names: PortalProcess, versions: tuple[str, str], quick: Mount
) -> None:
    where = sandbox.directory("second")
    with mounting(sandbox, 0.1).mounted("--portal", names.url, at=where) as second:
        one, two = (each.path / "hns/moving/a/f.txt" for each in (quick, second))
        assert os.stat(one).st_mtime == os.stat(two).st_mtime
        move(sandbox, names, one, versions[1], "new")
        until(lambda: read(two) == "new")
        assert os.stat(one).st_mtime == os.stat(two).st_mtime
