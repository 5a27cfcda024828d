"""Which files of a directory are uploaded."""

import os
from pathlib import Path

import pytest

from skymount.errors import MalformedError
from skymount.portal.client.upload_source import directory_sources, empty_directories
from skymount.upload_selection import UploadSelection

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nAAAA\n"


def make(root: Path, *names: str, **contents: str) -> Path:
    for name in (*names, *contents):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(contents.get(name, "x"))
    return root


def taken(root: Path, selection: UploadSelection) -> list[str]:
    return [source.name for source in directory_sources(root, selection.skips)]


@pytest.mark.parametrize(
    "name",
    [
        *(".git/config", "a/.git/HEAD", ".hg/store", ".svn/entries", "CVS/Root"),
        *(".env", ".env.local", "a/.envrc", ".ssh/known_hosts", ".gnupg/pubring.kbx", "me.p12"),
        *(".notes.swp", "notes~", "#notes#", ".#notes", ".DS_Store", ".skymountignore"),
    ],
)
def test_what_is_hardly_meant_is_left_out(tmp_path: Path, name: str) -> None:
    make(tmp_path, "index.html", name)
    assert taken(tmp_path, UploadSelection()) == ["index.html"]
    assert taken(tmp_path, UploadSelection(take_all=True)) == sorted(["index.html", name])


def test_a_private_key_is_known_by_its_content(tmp_path: Path) -> None:
    """A certificate and a presentation are not one."""
    names = {"id_ed25519": KEY, "tls.pem": KEY, "tls.key": KEY, "my_rsa": KEY}
    make(
        tmp_path, **names, **{"ca.pem": CERTIFICATE, "talk.key": "slides", "id_rsa.pub": "ssh-rsa"}
    )
    selection = UploadSelection()
    assert taken(tmp_path, selection) == ["ca.pem", "id_rsa.pub", "talk.key"]
    assert sorted(selection.left_out) == sorted(names)


@pytest.mark.parametrize(
    "header",
    [
        "-----BEGIN PRIVATE KEY-----",
        "-----BEGIN RSA PRIVATE KEY-----",
        "\n-----BEGIN ENCRYPTED PRIVATE KEY-----",
        "-----BEGIN PGP PRIVATE KEY BLOCK-----",
        "PuTTY-User-Key-File-3: ssh-ed25519",
        "AGE-SECRET-KEY-1QQ",
    ],
)
def test_a_file_that_begins_as_a_private_key_does(tmp_path: Path, header: str) -> None:
    """It is left out whatever its name is; a text about keys, or a large file, is not."""
    key = f"{header}\nAAAA\n"
    about, large = f"It begins with {header}", key + "x" * (64 << 10)
    make(tmp_path, **{"deploy": key, "about.txt": about, "large.bin": large})
    selection = UploadSelection()
    assert taken(tmp_path, selection) == ["about.txt", "large.bin"]
    assert selection.left_out == ["deploy"]


def test_patterns_and_ignore_files_below_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pattern that is given does not hide the ignore file of ``.``."""
    make(tmp_path, "index.html", "draft.txt", "a.log", **{".skymountignore": "draft.txt\n"})
    monkeypatch.chdir(tmp_path)
    assert taken(Path("."), UploadSelection(excludes=("*.log",))) == ["index.html"]


def test_a_pipe_is_not_looked_into(tmp_path: Path) -> None:
    """Nobody writes to it."""
    os.mkfifo(tmp_path / "id_pipe")
    assert not UploadSelection().skips(tmp_path, tmp_path / "id_pipe", False)


@pytest.mark.parametrize("name", ["environment.txt", "git/x", "a.envoy", "notes.swpx", "~notes"])
def test_other_names_are_taken(tmp_path: Path, name: str) -> None:
    assert taken(make(tmp_path, name), UploadSelection()) == [name]


def test_an_ignore_file_has_the_syntax_of_gitignore(tmp_path: Path) -> None:
    """The one nearest to a file decides; a directory that is left out is not looked into."""
    make(tmp_path, "a.log", "keep.log", "b/c.log", "b/d.txt", "build/x", "b/build", "top/e")
    (tmp_path / ".skymountignore").write_text("# logs\n*.log\n!keep.log\nbuild/\n/top\n")
    (tmp_path / "b/.skymountignore").write_text("!c.log\nd.txt\n")
    (tmp_path / "build/.skymountignore").write_text("!x\n")
    selection = UploadSelection()
    assert taken(tmp_path, selection) == ["b/build", "b/c.log", "keep.log"]
    assert selection.left_out == []  # the user asked for it


def test_exclude_comes_before_the_ignore_file(tmp_path: Path) -> None:
    make(tmp_path, "a.txt", "b.txt", "c/d.txt")
    (tmp_path / ".skymountignore").write_text("!a.txt\n")
    assert taken(tmp_path, UploadSelection(excludes=("a.*", "/c"))) == ["b.txt"]


def test_an_ignore_file_that_cannot_be_used(tmp_path: Path) -> None:
    make(tmp_path, "a")
    (tmp_path / ".skymountignore").write_text("x\n" * (1 << 20))
    with pytest.raises(MalformedError, match="larger than 1 MiB"):
        taken(tmp_path, UploadSelection())


def test_empty_directories_that_are_left_out_are_no_matter(tmp_path: Path) -> None:
    (tmp_path / ".git/refs").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    assert empty_directories(tmp_path, UploadSelection().skips) == [str(tmp_path / "empty")]
