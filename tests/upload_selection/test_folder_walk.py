"""W7: What is uploaded of a folder is settled before the first byte is sent."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skymount.errors import MalformedError
from skymount.upload_selection.folder_walk import select
from skymount.upload_selection.own_state import refuse_secret
from skymount.upload_selection.selection import (
    EVERYTHING,
    Selection,
    SelectionRules,
    UnusableFilesError,
)

USUAL = SelectionRules()
KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n"
LINKS = "-> "


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "site"
    path.mkdir()
    return path


def make(root: Path, *names: str, **contents: str) -> Path:
    """Make files; a content `-> x` makes a link to x, a name with a slash at its end a folder."""
    for name in (*names, *contents):
        path, content = root / name, contents.get(name, "x")
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            path.mkdir(exist_ok=True)
        elif content.startswith(LINKS):
            path.symlink_to(content.removeprefix(LINKS))
        else:
            path.write_text(content)
    return root


def taken(root: Path, rules: SelectionRules = USUAL) -> list[str]:
    return [file.name for file in select(root, rules).files]


def reasons(root: Path, found: Selection) -> dict[str, str]:
    return {os.path.relpath(each.path, root): each.reason for each in found.left_out}


def unusable(root: Path, rules: SelectionRules = USUAL) -> dict[str, str]:
    with pytest.raises(UnusableFilesError) as caught:
        select(root, rules)
    return {os.path.relpath(each.path, root): each.reason for each in caught.value.files}


# Links


def test_links_inside_are_followed_as_by_cp(root: Path) -> None:
    """To files and to folders, in chains, relative and absolute: the result is that of `cp -rL`."""
    make(root, "a/b/x", "a/y", "c/", **{"c/to-b": "-> ../a/b", "f": "-> c/to-b/x", "g": "-> f"})
    make(root, **{"absolute": f"-> {root}/a", "a/b/up": "-> ../../c"})
    (root / "a/b/up").unlink()
    copy = root.parent / "copy"
    subprocess.run(["cp", "-rL", root, copy], check=True)
    expected = sorted(str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file())
    found = select(root, USUAL)
    assert [file.name for file in found.files] == expected
    assert found.left_out == []
    assert all(not os.path.islink(file.path) for file in found.files)


@pytest.mark.parametrize("target", [".", "..", "../sub", "deep/.."])
def test_a_folder_that_is_on_the_way_down_already(root: Path, target: str) -> None:
    make(root, "sub/deep/x", **{"sub/loop": f"-> {target}"})
    found = select(root, USUAL)
    assert reasons(root, found) == {"sub/loop": "it leads to a directory that it is in"}
    assert [file.name for file in found.files] == ["sub/deep/x"]


def test_two_links_that_lead_into_each_other(root: Path) -> None:
    make(root, "a/x", "b/y", **{"a/b": "-> ../b", "b/a": "-> ../a"})
    found = select(root, USUAL)
    assert [file.name for file in found.files] == ["a/b/y", "a/x", "b/a/x", "b/y"]
    assert sorted(reasons(root, found)) == ["a/b/a", "b/a/b"]


def test_links_multiply_within_limits(root: Path) -> None:
    """Each folder has two links to the next one: there would be 2**40 files."""
    for number in range(40):
        below = f"-> ../d{number + 1}"
        make(root, f"d{number}/x", **{f"d{number}/l": below, f"d{number}/r": below})
    make(root, "d40/x")
    with pytest.raises(MalformedError, match="more than 5000 files and directories"):
        select(root, USUAL, limit=5000)


def test_what_lies_outside(root: Path) -> None:
    """By its resolved path: a chain of links that leaves the folder and comes back stays inside."""
    outside = make(root.parent / "outside", "sub/f", "g", "sub/.env", back=f"-> {root}/in")
    make(root, "in", dir="-> ../outside/sub", file=f"-> {outside}/g")
    make(root, back="-> ../outside/back", gone="-> ../nowhere")
    found = select(root, USUAL)
    assert [file.name for file in found.files] == ["back", "in"]
    assert reasons(root, found) == {
        "dir": f"it leads to {outside}/sub, which is outside",
        "file": f"it leads to {outside}/g, which is outside",
        "gone": f"it leads to {root.parent}/nowhere, which is outside",
    }
    assert {each.option for each in found.left_out} == {"follow_outside"}
    (root / "gone").unlink()
    everything = SelectionRules(follow_outside=True)
    assert taken(root, everything) == ["back", "dir/f", "file", "in"]
    assert reasons(root, select(root, everything)) == {"dir/.env": "secrets, by its name"}


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (".env", "it leads to .env: secrets, by its name"),
        (".ssh/config", "it leads through .ssh: secrets, by its name"),
        (".git", "it leads to .git: version control"),
        (".skymountignore", "it leads to .skymountignore, which is left out"),
        ("drafts/one", "it leads through drafts, which is left out"),
        ("drafts", "it leads to drafts, which is left out"),
        ("sub/draft.txt", "it leads to sub/draft.txt, which is left out"),
        ("sub", None),
        ("key", "it leads to {root}/key: a private key"),
    ],
)
def test_a_link_to_what_is_left_out(root: Path, target: str, reason: str | None) -> None:
    make(root, ".env", ".ssh/config", ".git/HEAD", "drafts/one", "sub/draft.txt", "sub/x", key=KEY)
    make(root, **{".skymountignore": "/drafts/\n", "sub/.skymountignore": "draft.txt\n"})
    make(root, link=f"-> {target}")
    found = select(root, USUAL)
    shown = None if reason is None else reason.format(root=root)
    assert reasons(root, found).get("link") == shown
    assert [file.name for file in found.files] == [*([] if shown else ["link/x"]), "sub/x"]


def test_each_link_of_a_chain_is_judged(root: Path) -> None:
    """Also outside, and by the patterns of the path where the link really is."""
    make(root.parent, "dot/netrc", "dot/aws/credentials", "mine")
    make(root.parent, **{".netrc": "-> dot/netrc", ".aws": "-> dot/aws", "plain": "-> mine"})
    make(root, "prod", "b/x", **{".env": "-> prod", "settings": "-> .env", "now": "-> draft"})
    make(root, **{"draft": "-> prod", "b/y": "-> x", "c": "-> b", ".skymountignore": "draft\n/b/y"})
    make(root, creds="-> ../.netrc", cloud="-> ../.aws/credentials", plain="-> ../plain")
    found = select(root, SelectionRules(follow_outside=True))
    assert [file.name for file in found.files] == ["b/x", "c/x", "plain", "prod"]
    assert reasons(root, found) == {
        ".env": "secrets, by its name",
        "settings": "it leads through .env: secrets, by its name",
        "now": "it leads through draft, which is left out",
        "c/y": "it leads through b/y, which is left out",
        "creds": f"it leads through {root.parent}/.netrc: secrets, by its name",
        "cloud": f"it leads through {root.parent}/.aws: secrets, by its name",
    }


def test_an_ignored_link(root: Path) -> None:
    """A pattern for files holds for a link to a folder too, as in git."""
    make(root, "b/x", **{"link": "-> b", "linked/": "", ".skymountignore": "link\n!link/\n"})
    assert taken(root) == ["b/x"]


def test_below_a_link_the_patterns_of_both_paths_hold(root: Path) -> None:
    make(root, "b/one", "b/two", "b/three", link="-> b")
    make(root, **{".skymountignore": "/link/one\n/b/two\n"})
    assert taken(root) == ["b/one", "b/three", "link/three"]


def test_the_folder_itself_may_be_a_link(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(root, "a/x", b="-> a")
    (root.parent / "link").symlink_to("site")
    monkeypatch.chdir(root)
    for path in (root.parent / "link", Path("."), Path("../link"), Path("b/..")):
        assert taken(path) == ["a/x", "b/x"]


# What is left out


@pytest.mark.parametrize(
    "name", [".git/config", "a/.git/HEAD", ".env", "a/.ENV", ".ssh/known_hosts", "notes~"]
)
def test_what_is_hardly_meant_is_left_out(root: Path, name: str) -> None:
    make(root, "index.html", name)
    assert taken(root) == ["index.html"]
    [found] = select(root, USUAL).left_out
    assert (found.option, found.path.startswith(f"{root}/")) == ("take_all", True)
    assert taken(root, SelectionRules(take_all=True)) == sorted(["index.html", name])


def test_files_are_known_by_their_form(root: Path) -> None:
    """A token counts in a file of that name, or behind a link of that name."""
    make(root, "a", **{"deploy": KEY, "npmrc": "_authToken=x", ".npmrc": "-> npmrc"})
    found = select(root, USUAL)
    assert [file.name for file in found.files] == ["a", "npmrc"]
    assert reasons(root, found) == {
        "deploy": "a private key",
        ".npmrc": f"it leads to {root}/npmrc: a token or a password",
    }


def test_what_belongs_to_a_ledger(root: Path) -> None:
    make(root, "other.db", "other.db-wal", "x.db-wal", "x.db-shm")
    (root / "x.db").write_bytes(b"SQLite format 3\0" + bytes(52) + b"skyl")
    assert taken(root) == ["other.db", "other.db-wal"]


def test_patterns(root: Path) -> None:
    """The nearest ignore file decides; a folder that is left out is not looked into."""
    make(root, "a.log", "keep.log", "b/c.log", "b/d.txt", "build/x", "b/build", "top/e")
    make(root, **{".skymountignore": "# logs\n*.log\n!keep.log\nbuild/\n/top\n"})
    make(root, **{"b/.skymountignore": "!c.log\nd.txt\n", "build/.skymountignore": "!x\n"})
    found = select(root, USUAL)
    assert [file.name for file in found.files] == ["b/build", "b/c.log", "keep.log"]
    assert found.left_out == []
    assert len(taken(root, EVERYTHING)) == 10  # it reads no ignore file


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_mark_of_utf_8_at_the_beginning(root: Path, mark: str) -> None:
    make(root, "secret.txt", "a", **{".skymountignore": f"{mark}secret.txt\n"})
    assert taken(root) == ["a"]


def test_excludes_come_before_ignore_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(root, "a.txt", "b.txt", "c/d.txt", "e", **{".skymountignore": "!a.txt\ne\n"})
    monkeypatch.chdir(root)
    for path in (root, Path(".")):
        assert taken(path, SelectionRules(excludes=("a.*", "/c"))) == ["b.txt"]


def test_an_ignore_file_that_cannot_be_used(root: Path) -> None:
    make(root, "a", "sub/b")
    os.mkfifo(root / "sub/.skymountignore")
    with pytest.raises(
        MalformedError, match=r"site/sub/\.skymountignore: it is not a regular file"
    ):
        select(root, SelectionRules(skip_special=True))


def test_empty_folders(root: Path) -> None:
    make(root, "a", "empty/", ".git/refs/", "only/.env")
    assert select(root, USUAL).empty == [f"{root}/empty"]


# What cannot be uploaded


def test_all_that_cannot_be_uploaded_is_named_at_once(root: Path) -> None:
    make(root, "a", dangling="-> absent", loop="-> loop", through="-> a/b")
    make(root, **{"sub/to-fifo": "-> ../fifo"})
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(root / "socket"))
    (root / os.fsdecode(b"caf\xe9")).touch()
    expected = {
        "dangling": "a link to nothing",
        "through": "a link to nothing",
        "loop": "a link that leads to itself",
        "fifo": "a FIFO",
        "sub/to-fifo": "a FIFO",
        "socket": "a socket",
        os.fsdecode(b"caf\xe9"): "the name is not valid UTF-8",
    }
    assert unusable(root) == expected
    found = select(root, SelectionRules(skip_special=True))
    assert reasons(root, found) == expected
    assert [file.name for file in found.files] == ["a"]


def test_what_is_left_out_anyway_is_no_matter(root: Path) -> None:
    make(root, "a", **{".env": "-> absent", "b.log": "-> absent", ".skymountignore": "*.log\n"})
    os.mkfifo(root / "c~")
    assert taken(root) == ["a"]


def test_a_device(root: Path) -> None:
    (root / "null").symlink_to("/dev/null")
    assert unusable(root, SelectionRules(follow_outside=True)) == {"null": "a device"}


UNPRIVILEGED = """
import os
from pathlib import Path
import platformdirs
from skymount.upload_selection.folder_walk import select
from skymount.upload_selection.selection import SelectionRules
os.setgid(65534)
os.setuid(65534)
for take_all in (False, True):
    try:
        select(Path("."), SelectionRules(take_all=take_all))
    except ValueError as error:
        print(error)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_what_may_not_be_read(root: Path) -> None:
    """Also where the folders above are closed to the user."""
    make(root, "a", "secret", "closed/x", "listed/y")
    root.chmod(0o755)
    (root / "secret").chmod(0)
    (root / "closed").chmod(0)
    (root / "listed").chmod(0o444)
    done = subprocess.run(
        [sys.executable, "-c", UNPRIVILEGED], cwd=root, capture_output=True, text=True, check=False
    )
    refused = [f"./{name}: Permission denied" for name in ("closed", "listed/y", "secret")]
    assert done.stdout.splitlines() == ["; ".join(refused)] * 2, done.stderr


def test_an_error_of_many_files_is_short(root: Path) -> None:
    for number in range(30):
        (root / f"{number:02}").symlink_to("absent")
    with pytest.raises(UnusableFilesError) as caught:
        select(root, USUAL)
    assert len(caught.value.files) == 30
    assert str(caught.value).endswith("/19: a link to nothing; and 10 more")


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        select(tmp_path / "none", USUAL)


@pytest.mark.parametrize("depth", [990, 1001])
def test_a_deep_folder(root: Path, depth: int) -> None:
    """Deeper than Python calls itself."""
    here = os.open(root, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        here, above = os.open("d", os.O_RDONLY, dir_fd=here), here
        os.close(above)
    os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)
    try:
        if depth > 1000:
            with pytest.raises(MalformedError, match="more than 1000 directories deep"):
                select(root, USUAL)
        else:
            assert taken(root) == ["d/" * depth + "f"]
    finally:
        subprocess.run(["rm", "-rf", root], check=True)


# What changes meanwhile


def test_what_was_looked_at_is_what_is_opened(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file or folder that becomes another one between two looks is not taken."""
    make(root, "a/x", "b", "other/y", "z")
    swaps = {"b": "other/y", "a": "other"}
    real_open = os.open

    def swapping(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        name = os.path.basename(path)
        if name in swaps:
            target = swaps.pop(name)
            os.rename(root / name, root.parent / name)
            os.rename(root / target, root / name)
        return real_open(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", swapping)
    found = unusable(root)
    assert {found["a"], found["b"]} == {"another one is in its place now"}


# Our own state


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with state of ours in unusual places."""
    home = make(tmp_path / "home", "site/index.html", "a")
    for kind in ("CONFIG", "DATA", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", f"{home}/xdg/{kind}")
        make(home, f"xdg/{kind}/skymount/sub/file", f"xdg/{kind}/other")
    return home


def test_our_own_state_is_left_out(home: Path) -> None:
    make(
        home, **{"site/state": "-> ../xdg/DATA/skymount/sub", "f": "-> xdg/DATA/skymount/sub/file"}
    )
    found = select(home, USUAL)
    assert [file.name for file in found.files] == [
        *("a", "site/index.html", *(f"xdg/{kind}/other" for kind in ("CACHE", "CONFIG", "DATA"))),
        "xdg/STATE/other",
    ]
    assert {reason.rpartition(": ")[2] for reason in reasons(home, found).values()} == {
        "skymount's own state"
    }
    assert len(found.left_out) == 6
    assert len(taken(home, SelectionRules(take_all=True))) == 12


@pytest.mark.parametrize("kind", ["CONFIG", "DATA", "STATE", "CACHE"])
def test_our_own_state_that_is_named_is_refused(home: Path, kind: str) -> None:
    """Itself, what is below it, and by a link."""
    own = home / f"xdg/{kind}/skymount"
    make(home, link=f"-> {own}/sub", file=f"-> {own}/sub/file")
    for folder in (own, own / "sub", home / "link", home / "link/../sub"):
        with pytest.raises(MalformedError, match="skymount's own state"):
            select(folder, USUAL)
        assert taken(folder, SelectionRules(take_all=True))
    for file in (own / "sub/file", home / "file"):
        with pytest.raises(MalformedError, match="skymount's own state"):
            refuse_secret(file)
    refuse_secret(home / "a")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("copy", "copy: a private key of skymount"),
        ("to-copy", "to-copy: a private key of skymount"),
        ("deploy", "deploy: a private key"),
        ("npmrc-link", "npmrc-link: a token or a password"),
        (".ENV", ".ENV: secrets, by its name"),
        ("to-env", "to-env: it leads through {home}/.netrc: secrets, by its name"),
        (".aws", ".aws: secrets, by its name"),
        (".aws/credentials", "credentials: it leads through {home}/.aws: secrets, by its name"),
        (".ssh", ".ssh: secrets, by its name"),
        (".ssh/id.pub", "id.pub: it leads through {home}/.ssh: secrets, by its name"),
        (".config/gh", "gh: secrets, by its name"),
        ("site", ""),
        ("a", ""),
        ("absent", ""),  # the upload says what is wrong
    ],
)
def test_a_secret_that_is_named_itself_is_refused(home: Path, name: str, reason: str) -> None:
    """A file or a folder, by each name on the way to it and by its form."""
    make(home, ".ENV", ".ssh/id.pub", ".config/gh/hosts.yml", "dot/aws/credentials", deploy=KEY)
    make(home, copy='{"version":1,"private_key":"%s"}' % ("ab" * 64), **{"to-copy": "-> copy"})
    make(home, **{"to-env": "-> .netrc", ".netrc": "-> dot/netrc", "dot/netrc": "x"})
    make(home, **{"npmrc-link": "-> .npmrc", ".npmrc": "_authToken=x", ".aws": "-> dot/aws"})
    if not reason:
        refuse_secret(home / name)
        return
    with pytest.raises(MalformedError) as caught:
        refuse_secret(home / name)
    assert str(caught.value).endswith(f"/{reason.format(home=home)}")


def test_the_rules_of_everything_take_everything(home: Path) -> None:
    rules: Mapping[str, object] = {"follow_outside": True}
    make(home, ".env", "site/.git/HEAD", key=KEY)
    assert len(taken(home, replace(EVERYTHING, **rules))) == 13
