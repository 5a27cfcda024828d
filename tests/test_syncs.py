"""What is acknowledged survives a power cut: files are synced before they get their name, and the
directory that holds the name before anybody is told. Seen from real processes, which note what
they sync and rename, in that order.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.portal_process import portal_environment
from tests.server.http_client import Client
from tests.skymount_process import end, run

_BIG = bytes(9 << 20)
_LINK = "AABsdvY0MzM9fsdHVWdqiw1Rj4Kp9KAZwYNbHO-ksMFHkg"

_NOTING = """
import os, sys

notes = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

def name_of(what):
    path = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else os.fsdecode(what)
    return os.path.basename(path)

def noted(call):
    real = getattr(os, call)
    def noting(*args, **more):
        names = [name_of(each) for each in args[: 1 if call == "fsync" else 2]]
        result = real(*args, **more)
        os.write(notes, (" ".join([call, *names]) + "\\n").encode())
        return result
    setattr(os, call, noting)

for call in ("fsync", "rename", "replace", "link"):
    noted(call)
"""
_COMMAND = _NOTING + "from skymount.cli import main\nsys.argv[1:2] = []\nmain()\n"
_DOWNLOAD = (
    _NOTING
    + """
from skymount.portal.client.sync import SyncPortalClient
with SyncPortalClient(sys.argv[2]) as client:
    client.download_file(sys.argv[4], sys.argv[3])
"""
)


class Notes:
    """What a process has done so far: lines of a call and its names."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def command(self, *args: str | Path, code: str = _COMMAND) -> list[str]:
        """Return the command line of ``skymount`` with these arguments that takes the notes."""
        return [sys.executable, "-c", code, str(self.path), *map(str, args)]

    def take(self) -> list[list[str]]:
        found = [line.split() for line in self.path.read_text().splitlines()]
        os.truncate(self.path, 0)
        return found


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path / "notes")


@contextmanager
def _portal(notes: Notes, data: Path) -> Iterator[str]:
    process = subprocess.Popen(
        notes.command("portal", "serve", "--listen", "127.0.0.1:0", "--data", data),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=portal_environment(),
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().decode().split()[-1]
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    finally:
        end(process)


@pytest.fixture
def portal(notes: Notes, tmp_path: Path) -> Iterator[str]:
    with _portal(notes, tmp_path / "data") as url:
        yield url


def _place(lines: list[list[str]], *expected: str) -> int:
    """Return at which place something was done, exactly once."""
    (at,) = (at for at, line in enumerate(lines) if line == list(expected))
    return at


def test_a_large_upload(notes: Notes, portal: str) -> None:
    """Payload, base, their directory, the new name, its directory; then the answer."""
    with Client(base_url=portal, timeout=60) as client:
        notes.take()
        link = client.upload_file("big", _BIG)
        lines = notes.take()
    (renamed,) = (line for line in lines if line[0] == "rename")
    assert renamed[2] == link
    at = lines.index(renamed)
    assert _place(lines, "fsync", "payload") < at
    assert _place(lines, "fsync", "base") < at
    assert at - 1 == _place(lines, "fsync", renamed[1])
    assert [line[0] for line in lines[at + 1 :]] == ["fsync"]
    assert len(lines[at + 1][1]) == 2  # the directory that the name is in


def test_skykeys(notes: Notes, portal: str) -> None:
    """The whole file, its name, the directory; then the answer."""
    notes.take()
    answer = httpx.post(f"{portal}/svc/createskykey?name=n&type=private-id")
    assert answer.status_code == 200
    assert notes.take() == [
        ["fsync", "skykeys.json.new"],
        ["rename", "skykeys.json.new", "skykeys.json"],
        ["fsync", "data"],
    ]


def test_names(notes: Notes, tmp_path: Path) -> None:
    """Likewise the file of names, before the command ends."""
    command = notes.command("portal", "hns", "set", "a", _LINK, "--data", tmp_path / "data")
    assert run(command, env=portal_environment()).returncode == 0
    assert notes.take() == [
        ["fsync", "hns.zone.new"],
        ["rename", "hns.zone.new", "hns.zone"],
        ["fsync", "data"],
    ]


def test_a_key(notes: Notes, tmp_path: Path) -> None:
    """Likewise a key of the keyring."""
    env = portal_environment() | {"XDG_DATA_HOME": str(tmp_path)}
    assert run(notes.command("key", "generate", "home"), env=env).returncode == 0
    assert notes.take() == [["fsync", ".new"], ["rename", ".new", "home"], ["fsync", "keys"]]


def test_a_file_that_the_library_downloads(notes: Notes, portal: str, tmp_path: Path) -> None:
    """It is on the disk before it takes the place of what was there."""
    with Client(base_url=portal, timeout=60) as client:
        link = client.upload_file("big", _BIG)
    notes.take()
    target = tmp_path / "target"
    command = notes.command(portal, link, target, code=_DOWNLOAD)
    assert run(command, env=portal_environment()).stderr == ""
    assert target.read_bytes() == _BIG
    synced, replaced = notes.take()
    assert synced == ["fsync", replaced[1]]
    assert replaced[1].endswith(".part")
    assert [replaced[0], replaced[2]] == ["replace", "target"]


@pytest.mark.parametrize("force", [False, True])
def test_a_file_that_the_command_saves(
    notes: Notes, portal: str, tmp_path: Path, force: bool
) -> None:
    """Likewise; it is linked to its name, or with --force renamed to it."""
    with Client(base_url=portal, timeout=60) as client:
        link = client.upload_file("big", _BIG)
    notes.take()
    flags = ["--force"] if force else []
    target = tmp_path / "target"
    env = portal_environment() | {"XDG_CACHE_HOME": str(tmp_path)}
    done = run(notes.command("download", "--portal", portal, *flags, link, target), env=env)
    assert (done.returncode, target.read_bytes()) == (0, _BIG)
    lines = notes.take()
    (named,) = (line for line in lines if line[2:] == ["target"])
    assert named[0] == ("rename" if force else "link")
    assert _place(lines, "fsync", named[1]) < lines.index(named)
