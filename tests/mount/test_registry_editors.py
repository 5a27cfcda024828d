"""Editors save to ``registry/``, whatever their way: each save is one post, and nothing is left."""

import os
import pty
import re
import select
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from tests.mount.keys import Owner, needs
from tests.skymount_process import LIMIT, end, output, run

VIM = ["vim", "--not-a-term", "-T", "dumb"]
PLAIN = ["-u", "NONE"]
# What vim does without a vimrc; its files are not spared in /tmp here, as they are there.
DEFAULTS = ["-u", "NONE", "-c", "source $VIMRUNTIME/defaults.vim", "-c", "set backupskip="]
WAYS = {
    "plain": PLAIN,
    "defaults": DEFAULTS,
    **{way: [*DEFAULTS, "-c", f"set backupcopy={way}"] for way in ("auto", "yes", "no")},
    "backup": [*DEFAULTS, "-c", "set backup backupdir=. writebackup"],
    "backup by rename": [*DEFAULTS, "-c", "set backup backupdir=. backupcopy=no"],
    "no backup": [*DEFAULTS, "-c", "set nowritebackup"],
    "undo file": [*DEFAULTS, "-c", "set undofile undodir=/dev/null"],
}


def vim(owner: Owner, files: Path, *args: str) -> None:
    """Run vim, which must have nothing to complain about."""
    done = run([*VIM, *args], env={**owner.sandbox.env, "TERM": "dumb"}, cwd=files)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not [line for line in done.stdout.splitlines() if line.startswith("E")], done.stdout
    assert "changed since" not in done.stdout + done.stderr


@needs("vim")
@pytest.mark.parametrize("way", WAYS)
def test_vim(owner: Owner, files: Path, way: str) -> None:
    """G14: Scratch files of editors live in memory, never posted.

    G8: posted, once: each save is one revision. A new file is made, then edited and saved twice
    in one session, then saved without a change.
    """
    name = f"vim {way}".replace(" ", "-")
    vim(owner, files, *WAYS[way], "-c", "normal ione", "-c", "wq", name)
    assert (owner.data(name), owner.revision(name)) == (b"one\n", 0)
    steps = ["-c", "normal A two", "-c", "w", "-c", "normal A three", "-c", "w", "-c", "q"]
    vim(owner, files, *WAYS[way], *steps, name)
    assert (owner.data(name), owner.revision(name)) == (b"one two three\n", 2)
    vim(owner, files, *WAYS[way], "-c", "w", "-c", "q", name)
    assert owner.revision(name) == 2
    left = [found for found in output(["ls", "-A"], cwd=files).decode().split() if name in found]
    kept = [f"{name}~"] if "backup" in way and way != "no backup" else []
    assert sorted(left) == sorted([name, *kept])


@needs("vim")
def test_vim_sees_a_change_by_somebody_else(owner: Owner, files: Path) -> None:
    """G5: A change by somebody else changes the modification time: so vim reads the file again."""
    owner.put("shared", b"one\n")
    script = [
        "-c", "call writefile(['1'], $FLAG) | while !filereadable($GO) | sleep 50m | endwhile",
        "-c", "checktime", "-c", "echo getline(1)", "-c", "q!",
    ]  # fmt: skip
    flag, go = owner.sandbox.root / "flag", owner.sandbox.root / "go"
    env = {**owner.sandbox.env, "TERM": "dumb", "FLAG": str(flag), "GO": str(go)}
    process = subprocess.Popen(
        [*VIM, *DEFAULTS, "-c", "set autoread", *script, "shared"],
        env=env, cwd=files, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while not flag.exists():
            assert process.poll() is None
            select.select([], [], [], 0.02)
        owner.put("shared", b"theirs\n")
        select.select([], [], [], 0.5)  # longer than a stat may be old
        go.touch()
        shown, _ = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
        process.wait()
    assert b"theirs" in shown


class Terminal:
    """A program that has a terminal to itself."""

    def __init__(self, command: list[str], owner: Owner, files: Path) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            command,
            env={**owner.sandbox.env, "TERM": "xterm"},
            cwd=files,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self.shown = b""

    def type_after(self, pattern: bytes, keys: bytes) -> None:
        """Wait for a text on the screen, then type."""
        seen = len(self.shown)
        while not re.search(pattern, self.shown[seen:]):
            assert self._read(), self.shown
        os.write(self._master, keys)

    def _read(self) -> bytes:
        ready, _, _ = select.select([self._master], [], [], LIMIT)
        try:
            piece = os.read(self._master, 4096) if ready else b""
        except OSError:  # the program is gone
            piece = b""
        self.shown += piece
        return piece

    def wait(self) -> None:
        while self._read():
            pass
        assert self.process.wait(LIMIT) == 0

    def close(self) -> None:
        """End it, if it has not ended."""
        end(self.process)
        os.close(self._master)


@needs("nano")
@pytest.mark.parametrize("options", [[], ["--backup"], ["--locking"]], ids=str)
def test_nano(owner: Owner, files: Path, options: list[str]) -> None:
    """G8: posted, once, by nano; with a backup file and a lock file too."""
    name = "nano" + "".join(options)
    owner.put(name, b"old\n")
    command = ["nano", "--ignorercfiles", *options, name]
    with closing(Terminal(command, owner, files)) as nano:
        nano.type_after(b"old", b"new \x0f")
        nano.type_after(b"File Name to Write|Write to File", b"\r")  # nano 7, nano 8
        nano.type_after(b"Wrote", b"\x18")
        nano.wait()
    assert (owner.data(name), owner.revision(name)) == (b"new old\n", 1)
    left = [found for found in output(["ls", "-A"], cwd=files).decode().split() if name in found]
    assert left == ([name, f"{name}~"] if "--backup" in options else [name])
