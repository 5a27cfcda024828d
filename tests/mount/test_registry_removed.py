"""Entries and scratch files that are removed, renamed or replaced while programs have them open."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.mount.keys import HOME, Owner, Program, needs, program, until
from tests.mount.test_registry_editors import DEFAULTS, vim
from tests.skymount_process import output

# What programs do with $f, which holds OLD, and what is in it then, in `skydb` in capital letters.
REWRITES = [
    ("through its old descriptor", "{ rm $f; tr a-z A-Z > $f; } < $f"),
    ("through a descriptor of a variable", "exec 3<$f; rm $f; tr a-z A-Z <&3 > $f"),
    ("by a rename", "{ tr a-z A-Z > $f.tmp; mv $f.tmp $f; } < $f"),
    ("by a rename of an entry", "{ tr a-z A-Z > other$f; mv other$f $f; } < $f"),
    ("renamed away", "{ mv $f other$f; tr a-z A-Z > $f; rm other$f; } < $f"),
    ("renamed to a scratch file", "{ mv $f $f~; tr a-z A-Z > $f; rm $f~; } < $f"),
    ("twice", "{ rm $f; tr a-z A-Z > $f; } < $f; { rm $f; cat > $f; } < $f"),
    ("in many writes", "{ rm $f; tr a-z A-Z | dd bs=1 status=none > $f; } < $f"),
    ("with a writer behind it", "{ rm $f; tr a-z A-Z > $f; } <> $f"),
    ("moved back", "{ mv $f $f~; tr a-z A-Z <&3 > new$f; mv new$f $f; rm $f~; } 3<$f"),
    ("sponge", "$python -c '$sponge' $f"),
]  # fmt: skip

SPONGE = """
import os, sys
with open(sys.argv[1]) as old:
    os.unlink(sys.argv[1])
    with open(sys.argv[1], "x") as new:
        for line in old:
            new.write(line.upper())
"""

OLD, NEW = b'{"key": "text"}', b'{"KEY": "TEXT"}'


@pytest.fixture(params=["registry", "skydb"])
def place(request: pytest.FixtureRequest, owner: Owner, files: Path) -> Path:
    """The key's directory in either subtree."""
    return files.parent.parent / request.param / HOME


@pytest.fixture
def name(request: pytest.FixtureRequest, place: Path) -> Iterator[str]:
    """A file of that directory, with the content OLD."""
    found = f"e{abs(hash(request.node.name))}.json"
    (place / found).write_bytes(OLD)
    yield found
    (place / found).unlink(missing_ok=True)


def read(place: Path, name: str) -> bytes:
    return output(["cat", name], cwd=place)


def compact(content: bytes) -> bytes:
    """Return a document without the indentation that `skydb` shows."""
    return b"".join(content.split()).replace(b":", b": ")


@pytest.mark.parametrize("script", [row[1] for row in REWRITES], ids=[row[0] for row in REWRITES])
def test_rewritten(owner: Owner, place: Path, name: str, script: str) -> None:
    """G13: Nothing that is made under the name later shows through what is open."""
    script = script.replace("$sponge", SPONGE)
    env = owner.sandbox.env | {"f": name, "python": sys.executable}
    output(["bash", "-e", "-c", script], env=env, cwd=place)
    assert compact(read(place, name)) == NEW
    left = output(["ls", "-A"], cwd=place).decode().split()
    assert [found for found in left if name in found] == [name]


def test_name_that_was_moved_away_is_free(place: Path, name: str) -> None:
    """G14: `mv -n` asks the kernel not to replace anything (RENAME_NOREPLACE)."""
    script = "mv $f $f~; echo '[1]' > new$f; mv -n new$f $f; rm $f~"
    output(["bash", "-e", "-c", script], env={"PATH": os.defpath, "f": name}, cwd=place)
    assert compact(read(place, name)) == b"[1]"
    assert not (place / f"new{name}").exists()


REMOVALS = {
    "unlink": "os.unlink({0!r})",
    "replaced by a scratch file": "[open({0!r} + '~', 'w').write('[1]'), "
    "os.rename({0!r} + '~', {0!r})]",
    "replaced by an entry": "[open('other-' + {0!r}, 'w').write('[1]'), "
    "os.rename('other-' + {0!r}, {0!r})]",
    "renamed": "os.rename({0!r}, 'other-' + {0!r})",
    "renamed to a scratch file": "os.rename({0!r}, {0!r} + '~')",
}
STAT = "[(s.st_size, s.st_nlink, s.st_mode, s.st_mtime_ns) for s in [os.fstat({})]][0]"
MAKE = "open({!r}, 'w').write('[2, 3]')"


@contextmanager
def opened(place: Path, name: str, flags: str = "os.O_RDONLY") -> Iterator[Program]:
    """A program that has a file open as `f`, and has read it."""
    with program(place) as tool:
        assert tool.do(f"(f := os.open({name!r}, {flags})) and None") == "None"
        assert tool.do("[seen := os.pread(f, 1000, 0)] and None") == "None"
        assert tool.do("(was := os.fstat(f)) and None") == "None"
        yield tool


def keeps(tool: Program) -> None:
    """Check that it has what it had, without a name."""
    assert tool.do("os.pread(f, 1000, 0) == seen") == "True"
    assert tool.do("os.pread(f, 1000, 5) == seen[5:]") == "True"
    assert tool.do("os.pread(f, 1000, len(seen))") == "b''"
    same = "[[getattr(s, k) for k in ('st_ino', 'st_size', 'st_mtime_ns', 'st_mode')]"
    assert tool.do(f"{same} for s in (was, os.fstat(f))] and os.fstat(f).st_nlink") == "0"
    assert tool.do(f"(lambda a, b: a == b)(*{same} for s in (was, os.fstat(f))])") == "True"


def clear(place: Path, name: str) -> None:
    output(["sh", "-c", 'rm -f "other-$1" "$1~"', "-", name], cwd=place)


@pytest.mark.parametrize("how", REMOVALS)
def test_what_is_open_keeps_what_it_had(place: Path, name: str, how: str) -> None:
    """G13: It keeps content, size, times and attributes, and has a link count of 0.

    G17: A file that is made meanwhile has another inode number.
    """
    with opened(place, name) as tool, opened(place, name) as other:
        revision = tool.do("os.getxattr(f, 'user.skymount.revision')")
        with program(place) as remover:
            assert remover.do(REMOVALS[how].format(name)) != "EIO"
            keeps(tool)
            assert remover.do(MAKE.format(name)) == "6"
            keeps(tool)
            number = remover.do(f"os.stat({name!r}).st_ino")
            assert tool.do("was.st_ino") != number
            assert remover.do(f"os.stat({name!r}).st_nlink") == "1"
        assert tool.do("os.getxattr(f, 'user.skymount.revision')") == revision
        assert tool.do("open(f'/proc/self/fd/{f}', 'rb').read() == seen") == "True"
        assert tool.do("os.open(f'/proc/self/fd/{f}', os.O_WRONLY)") == "ESTALE"
        assert tool.do("os.close(f)") == "None"
        keeps(other)
    assert compact(read(place, name)) == b"[2,3]"
    clear(place, name)


@pytest.mark.parametrize("how", REMOVALS)
def test_what_was_written_to_it(owner: Owner, place: Path, name: str, how: str) -> None:
    """G13: What was written and not posted goes along when the file is renamed, and is gone when it
    is removed or replaced; close succeeds, however late. Writing to it is ESTALE.
    """
    with opened(place, name, "os.O_RDWR") as tool, program(place) as other:
        assert tool.do("os.pwrite(f, b'[12345]'.ljust(len(seen)), 0) == len(seen)") == "True"
        assert tool.do("(seen := os.pread(f, 1000, 0), was := os.fstat(f)) and None") == "None"
        assert other.do(REMOVALS[how].format(name)) not in ("EIO", "EINVAL")
        keeps(tool)
        for step in ("os.pwrite(f, b'x', 0)", "os.ftruncate(f, 0)", "os.ftruncate(f, 3)"):
            assert tool.do(step) == "ESTALE"
        assert other.do(MAKE.format(name)) == "6"
        revision = owner.revision(
            name.removesuffix(".json") if place.parent.name == "skydb" else name
        )
        for step in ("os.fsync(f)", "os.fchmod(f, 0o600)", "os.close(f)"):
            assert tool.do(step) == "None"
        assert compact(read(place, name)) == b"[2,3]"
    if how == "renamed":
        assert b"12345" in read(place, f"other-{name}")
    if how == "renamed to a scratch file":
        assert b"12345" in read(place, f"{name}~")
    assert (
        owner.revision(name.removesuffix(".json") if place.parent.name == "skydb" else name)
        == revision
    )
    assert owner.pending() == []
    clear(place, name)


def test_killed_with_an_old_descriptor(owner: Owner, place: Path, name: str) -> None:
    """G13: Nothing is posted of what a program had written that is killed."""
    with opened(place, name, "os.O_RDWR") as tool:
        assert tool.do("os.pwrite(f, b'[4]', 0)") == "3"
        output(["sh", "-c", f"rm {name}; echo '[5]' > {name}"], cwd=place)
        tool.process.send_signal(signal.SIGKILL)
        tool.process.wait()
    until(lambda: compact(read(place, name)) == b"[5]")
    assert owner.pending() == []


def test_scratch_files(files: Path) -> None:
    """G13: scratch files included."""
    others = {
        "unlink": "rm s~",
        "replaced": "echo new > t~; mv t~ s~",
        "replaced by an entry": "echo new > entry; mv entry s~; rm -f entry",
        "posted": "mv s~ entry",
    }
    for how, script in others.items():
        (files / "s~").write_text("scratch")
        with opened(files, "s~") as tool:
            output(["sh", "-c", script], cwd=files)
            keeps(tool)
            output(["sh", "-c", "echo another > s~"], cwd=files)
            keeps(tool)
            assert read(files, "s~") == b"another\n", how
    output(["sh", "-c", "rm -f s~ entry"], cwd=files)


def test_file_that_was_never_posted(owner: Owner, files: Path) -> None:
    """G15: A new file is local; removed while it is open it is as any other."""
    with opened(files, "new", "os.O_RDWR | os.O_CREAT") as tool:
        output(["sh", "-c", "rm new; echo data > new"], cwd=files)
        keeps(tool)
        assert tool.do("os.write(f, b'x')") == "ESTALE"
        assert tool.do("os.close(f)") == "None"
    assert (owner.data("new"), owner.revision("new")) == (b"data\n", 0)


def test_removal_that_fails(owner: Owner, files: Path) -> None:
    """G13: If the removal or rename fails, nothing changes for what is open."""
    (files / "stays").write_text("old")
    with opened(files, "stays", "os.O_RDWR") as tool:
        assert tool.do("os.rename('stays', 'x' * 300)") == "ENAMETOOLONG"
        assert tool.do("os.rename('stays', '%FF')") == "EINVAL"
        assert tool.do("os.fstat(f).st_nlink") == "1"
        assert tool.do("os.pwrite(f, b'new', 0)") == "3"
        assert tool.do("os.close(f)") == "None"
    assert owner.data("stays") == b"new"


def test_change_from_elsewhere(owner: Owner, files: Path) -> None:
    """G5: A reader that starts again sees the new content: what others remove and make anew is the
    same file.
    """
    owner.put("theirs", b"one")
    with opened(files, "theirs") as tool:
        for data in (bytes(34), b"two"):  # the first is a deletion
            owner.put("theirs", data)
        until(lambda: read(files, "theirs") == b"two")
        assert tool.do("os.pread(f, 100, 0)") == "b'two'"
        number = output(["stat", "-c", "%i", "theirs"], cwd=files).decode().strip()
        assert tool.do("os.fstat(f).st_ino") == number
        until(lambda: tool.do("os.fstat(f).st_size") == "3")


def test_same_number_afterwards(owner: Owner, tmp_path: Path) -> None:
    """G17: It has the same inode number when it is looked at again, also after a remount."""

    def number(directory: Path) -> bytes:
        return output(["stat", "-c", "%i", "kept"], cwd=directory)

    with owner.mounted(at=tmp_path) as files:
        (files / "kept").write_text("old")
        first = number(files)
        with opened(files, "kept"):
            output(["sh", "-c", "echo new > kept.tmp; mv kept.tmp kept"], cwd=files)
            assert number(files) != first
        output(["sh", "-c", "rm kept; echo newer > kept"], cwd=files)
        until(lambda: number(files) == first)
    with owner.mounted(at=tmp_path) as files:
        assert number(files) == first


def test_tail_follows_a_name(files: Path) -> None:
    """G13: what is made under the name is another file, and `tail -F` goes on with it."""
    (files / "log").write_text("one\n")
    process = subprocess.Popen(
        ["tail", "-n", "+1", "-s", "0.1", "-F", "log"],
        cwd=files,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"one\n"
        output(["sh", "-c", "echo two > log.tmp; mv log.tmp log"], cwd=files)
        assert process.stdout.readline() == b"two\n"
        assert b"replaced" in process.stderr.readline()
    finally:
        process.kill()
        process.communicate()


@needs("vim")
def test_vim_that_saves_by_rename(owner: Owner, place: Path, name: str) -> None:
    """G13: whatever an editor does, what is open keeps what it had."""
    with opened(place, name) as tool:
        steps = ["-c", "set backupcopy=no", "-c", "%s/text/TEXT/ | wq"]
        vim(owner, place, *DEFAULTS, *steps, name)
        keeps(tool)
    assert compact(read(place, name)) == OLD.replace(b"text", b"TEXT")


EDITORS = [
    (("sed",), "sed -i s/text/TEXT/ $f"),
    (("jq",), "jq '.key=\"TEXT\"' $f > $f.tmp && mv $f.tmp $f"),
    (("rsync",), "sed s/text/TEXT/ $f > /tmp/$f; rsync -I /tmp/$f $f; rm /tmp/$f"),
]


@pytest.mark.parametrize(
    "script", [pytest.param(row[1], marks=needs(*row[0]), id=row[0][0]) for row in EDITORS]
)
def test_programs_that_save_by_rename(place: Path, name: str, script: str) -> None:
    """G13: as with vim."""
    with opened(place, name) as tool:
        output(["bash", "-e", "-c", script.replace("$f", name)], cwd=place)
        keeps(tool)
    assert compact(read(place, name)) == OLD.replace(b"text", b"TEXT")
