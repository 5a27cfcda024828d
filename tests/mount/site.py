"""The source tree that is published for the tests, and the mount of it that they share."""

import random
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from tests.skymount_process import Mount, Sandbox

BIG = "big/random.bin"
"""A file of several sectors, which does not end on the border of one."""

BIG_SIZE = (9 << 20) + 12_345

EXECUTABLE = "bin/run.sh"
DATABASE = "data/rows.sqlite"
DEEP = "/".join(f"level{depth}" for depth in range(30))

ODD_NAMES = [
    "two words",
    " blanks around ",
    "quote'single",
    'quote"double',
    "`back`tick`",
    "100%",
    "%41",
    "%2F",
    "%00",
    "hash#tag",
    "#",
    "question?mark",
    "?",
    "plus+plus",
    "am&per=sand;semi,comma:colon",
    "back\\slash",
    "trailing\\",
    "new\nline",
    "carriage\rreturn",
    "tab\tstop",
    "control\x01\x1b[31m\x7f",
    "*?[a-z]{x,y}$(z)|<>!~^@",
    "-leading-dash",
    "--help",
    ".hidden",
    "...",
    "..two",
    "~",
    "emoji \U0001f600 \U0001f469\u200d\U0001f680",
    "composed \u00e9",
    "decomposed e\u0301",
    "日本語",
    "עברית",
    "x" * 255,
    "\u00e9" * 127 + "y",
    "AAAA3_AfkjcFWO6hpVcoAiFtKU8IHamtNgRs0r75WYuSkA",
]

MODES = {"plain": 0o644, "private": 0o600, "script": 0o755, "own script": 0o700, "fixed": 0o444}


@dataclass(frozen=True)
class Site:
    """A published directory: where it was taken from, its skylink, and its mount."""

    source: Path
    skylink: str
    mount: Mount
    sandbox: Sandbox
    portal: str

    @property
    def tree(self) -> Path:
        """The mounted directory."""
        return self.mount.skylink(self.skylink)

    @property
    def files(self) -> list[str]:
        """The paths of all files, in order."""
        found = [p for p in self.source.rglob("*") if p.is_file()]
        return sorted(str(path.relative_to(self.source)) for path in found)


def make_source(root: Path) -> Path:
    """Write the tree; the same bytes each time."""
    noise = random.Random(4280)

    def write(path: str, content: bytes, mode: int = 0o644) -> None:
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        file.chmod(mode)

    write("empty", b"")
    write("empty files/also empty.txt", b"")
    write("one byte", b"x")
    write("text.txt", b"needle in a haystack\nno final newline")
    write("page.html", b"<!doctype html><title>needle</title>\n")
    write("picture.png", b"\x89PNG\r\n\x1a\n" + noise.randbytes(5000))
    write("long text.txt", b"".join(b"line %d\n" % number for number in range(20_000)))
    write(BIG, noise.randbytes(BIG_SIZE))
    write("big/one sector", noise.randbytes(4 << 20))
    write(EXECUTABLE, b"#!/bin/sh\necho it runs\n", 0o755)
    for name, mode in MODES.items():
        write(f"modes/{name}", name.encode(), mode)
    for number, name in enumerate(ODD_NAMES):
        write(f"names/{name}", f"needle {number}: {name}".encode())
    write("directories/two words/100%/#/?/new\nline/\U0001f600/file", b"needle at the end")
    write(f"deep/{DEEP}/bottom", b"needle at the bottom")
    for number in range(600):
        write(f"many/{number % 10}/{number:04}.dat", noise.randbytes(number))
    _write_database(root / DATABASE)
    return root


def _write_database(path: Path) -> None:
    path.parent.mkdir()
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("create table rows (id integer primary key, name text, half real)")
        connection.execute("create index by_name on rows (name)")
        connection.executemany(
            "insert into rows values (?, ?, ?)",
            [(number, f"row {number * 7919 % 5000}", number / 2) for number in range(5000)],
        )
    connection.close()
