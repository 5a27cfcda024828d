"""Everyday tools write to ``registry/``: what they say is done is at the portal, posted once."""

import os
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from tests.mount.keys import Owner, needs, program, until
from tests.skymount_process import end, output

OLD = b"one\ntwo\n"


NEW = [
    # what a shell does where there is no such entry, and what the portal has then
    ("redirection", "echo data > $f", b"data\n", 0),
    ("two commands, one file", "{ echo a; echo b; } > $f", b"a\nb\n", 0),
    ("appending", "echo a >> $f; echo b >> $f", b"a\nb\n", 1),
    ("noclobber", "(set -C; echo a > $f; echo b > $f) 2>/dev/null || :", b"a\n", 0),
    ("tee", "echo data | tee $f", b"data\n", 0),
    ("cp", "cp $source $f", OLD, 0),
    ("cp -p", "cp -p $source $f", OLD, 0),
    ("install", "install -m 600 $source $f", OLD, 0),
    ("mv from elsewhere", "cp $source $source.$f; mv $source.$f $f", OLD, 0),
    ("dd", "dd if=$source of=$f bs=3 conv=fsync status=none", OLD, 0),
    ("python", "$python -c 'import sys; open(sys.argv[1], \"w\").write(\"x\" * 113)' $f",
        b"x" * 113, 0),
    ("head", "head -c 113 /dev/zero > $f", bytes(113), 0),
    ("touch, then write", "touch $f; echo data > $f", b"data\n", 0),
    ("truncated and written", ": > $f; echo data > $f", b"data\n", 0),
    ("mktemp and mv", "t=$(mktemp ./XXXXXX); echo data > $t; mv $t $f", b"data\n", 0),
    ("touched only", "touch $f", None, -1),
    ("never written", ": > $f; : >> $f; rm $f", None, -1),
]  # fmt: skip

CHANGED = [
    # the same for an entry that has two lines, in its revision 0
    ("rewritten", "echo data > $f", b"data\n", 1),
    ("appended", "echo three >> $f", OLD + b"three\n", 1),
    ("tee -a", "echo three | tee -a $f", OLD + b"three\n", 1),
    ("cp over it", "cp /etc/hostname x~; echo new > y~; cp y~ $f; rm x~ y~", b"new\n", 1),
    ("cp of the same", "cp $source $f", OLD, 0),
    ("same content", "printf 'one\\ntwo\\n' > $f", OLD, 0),
    ("nothing appended", ": >> $f; touch $f; chmod 600 $f; chown $(id -u) $f", OLD, 0),
    ("sed -i", "sed -i s/one/1/ $f", b"1\ntwo\n", 1),
    ("truncate", "truncate -s 3 $f", b"one", 1),
    ("extended", "truncate -s 10 $f", OLD + bytes(2), 1),
    ("dd in the middle", "printf 123 | dd of=$f bs=1 seek=4 conv=notrunc,fsync status=none",
        b"one\n123\n", 1),
    ("mkstemp and rename", "$python -c '$mkstemp' $f", b"new\n", 1),
    ("mv over it", "echo new > $f.new; mv $f.new $f", b"new\n", 1),
    ("mv of a backup", "cp $f $f~; echo new > $f; mv $f~ $f", OLD, 2),
    ("emptied", ": > $f; sync $f", b"", 1),
    ("removed", "rm $f", None, 1),
    ("removed and made", "rm $f; echo new > $f", b"new\n", 2),
    ("moved away", "mv $f $f.moved", None, 1),
    ("file lock", "flock $f echo locked", OLD, 0),
]  # fmt: skip

TOOLS = [
    (("perl",), "perl -i -pe s/one/1/ $f", b"1\ntwo\n", 1),
    (("perl",), "perl -i.bak~ -pe s/one/1/ $f; rm $f.bak~", b"1\ntwo\n", 1),
    (("ed",), "printf 's/two/2/\\nw\\nq\\n' | ed -s $f", b"one\n2\n", 1),
    (("rsync",), "echo 12 > s~; rsync s~ $f; rm s~", b"12\n", 1),
    (("rsync",), "echo 12 > s~; rsync --inplace s~ $f; rm s~", b"12\n", 1),
    (("rsync",), "rsync -a --checksum $source $f", OLD, 0),
    (("jq",), "echo '{\"a\": 1}' > $f; jq -c .a=2 $f > $f.new && mv $f.new $f", b'{"a":2}\n', 2),
    (("git",), "test $(git hash-object $f) = $(git hash-object $source)", OLD, 0),
    (("patch",), "printf '1c1\\n< one\\n---\\n> 1\\n' | patch -s -r - $f", b"1\ntwo\n", 1),
]

MKSTEMP = """
import os, sys, tempfile
number, path = tempfile.mkstemp(dir=".")
os.write(number, b"new\\n")
os.fsync(number)
os.close(number)
os.rename(path, sys.argv[1])
"""


def do(owner: Owner, files: Path, script: str, old: bytes | None) -> str:
    """Run a script with an entry of its own as $f; return its name."""
    name = f"e{uuid4().hex[:12]}"
    source = owner.sandbox.root / "source"
    source.write_bytes(OLD)
    if old is not None:
        owner.put(name, old)
    script = script.replace("$mkstemp", MKSTEMP)
    env = owner.sandbox.env | {"f": name, "source": str(source), "python": sys.executable}
    output(["sh", "-c", script], env=env, cwd=files)
    return name


def check(owner: Owner, files: Path, name: str, data: bytes | None, revision: int) -> None:
    """The portal has this; so has the mount, and nothing else is left."""
    until(lambda: owner.revision(name) >= revision)  # what was only emptied is posted later
    assert (owner.data(name), owner.revision(name)) == (data, revision)
    if data is not None:
        assert output(["cat", name], cwd=files) == data
    left = output(["ls", "-A"], cwd=files).decode().split()
    assert [found for found in left if "~" in found or found.startswith((".", "sed"))] == []


@pytest.mark.parametrize(("script", "data", "revision"), [row[1:] for row in NEW],
                         ids=[row[0] for row in NEW])  # fmt: skip
def test_new_entry(
    owner: Owner, files: Path, script: str, data: bytes | None, revision: int
) -> None:
    """G8: Changed content is signed with the next revision and posted, once, when the file is
    closed or synced.

    G15: A new file is local and empty until it has content.
    """
    check(owner, files, do(owner, files, script, None), data, revision)


@pytest.mark.parametrize(("script", "data", "revision"), [row[1:] for row in CHANGED],
                         ids=[row[0] for row in CHANGED])  # fmt: skip
def test_changed_entry(
    owner: Owner, files: Path, script: str, data: bytes | None, revision: int
) -> None:
    """G8: posted, once. Nothing is posted when nothing has changed.

    G16: chmod, chown and times are accepted and mean nothing.
    """
    check(owner, files, do(owner, files, script, OLD), data, revision)


@pytest.mark.parametrize(
    ("script", "data", "revision"),
    [pytest.param(*row[1:], marks=needs(*row[0]), id=row[1].split(";")[0][:30]) for row in TOOLS],
)
def test_tool(owner: Owner, files: Path, script: str, data: bytes | None, revision: int) -> None:
    """G8: posted, once, by tools that may not be installed."""
    check(owner, files, do(owner, files, script, OLD), data, revision)


def test_too_much(owner: Owner, files: Path) -> None:
    """G9: More than 113 bytes are EFBIG at write, and the entry stays as it is."""
    with program(files) as tool:
        owner.put("full", b"old")
        assert tool.do("(f := os.open('full', os.O_RDWR | os.O_TRUNC)) and None") == "None"
        assert tool.do("os.write(f, b'x' * 114)") == "EFBIG"
        assert tool.do("os.close(f)") == "None"
        assert tool.do("(f := os.open('full', os.O_RDWR)) and None") == "None"
        assert tool.do("os.pwrite(f, b'x', 113)") == "EFBIG"
        assert tool.do("os.ftruncate(f, 114)") == "EFBIG"
        assert tool.do("os.fsync(f)") == "None"
        assert tool.do("os.close(f)") == "None"
    assert (owner.data("full"), owner.revision("full")) == (b"old", 0)


def test_odd_names(owner: Owner, files: Path) -> None:
    """G2: `%` and two hex digits stand for the byte of that value, so that `%2F` is a slash.

    G2: Names that are not valid UTF-8 are ENOENT.
    """
    names = {"a%2Fb": "a/b", "%": "", "two words": "two words", "%00": "\0", "日本": "日本",
             "%34913": "4913", "%78%7E": "x~", "%25": "%"}  # fmt: skip
    with program(files) as tool:
        for number, (name, data_key) in enumerate(names.items()):
            assert tool.do(f"open({name!r}, 'w').write('{number}')") == "1"
            assert owner.data(data_key) == str(number).encode()
        listed = tool.do("os.listdir()")
        assert all(ascii(name)[1:-1] in ascii(listed) for name in names if name != "%")
        for name in (b"\xff", b"%FF"):
            assert tool.do(f"os.stat({name!r})") == "ENOENT"
            assert tool.do(f"os.open({name!r}, os.O_CREAT | os.O_WRONLY)") == "EINVAL"
        assert tool.do("os.open('x' * 256, os.O_CREAT | os.O_WRONLY)") == "ENAMETOOLONG"
        tweak = owner.signed("by hash", b"", 0).entry.tweak.hex()
        assert tool.do(f"open({tweak!r}, 'w').write('hashed')") == "6"
        assert owner.data("by hash") == b"hashed"


def test_what_cannot_be_made(owner: Owner, files: Path) -> None:
    """G13: Directories, links and devices cannot be made: EPERM. Across keys it is EXDEV."""
    owner.put("there", b"data")
    with program(files) as tool:
        for step in (
            "os.mkdir('d')",
            "os.symlink('there', 's')",
            "os.link('there', 'l')",
            "os.mkfifo('p')",
            "os.mkdir('../d')",
            "os.open('../file', os.O_CREAT | os.O_WRONLY)",
            "os.open('4913', os.O_CREAT | os.O_WRONLY)",
            "os.unlink('../home')",
        ):
            assert tool.do(step) == "EPERM", step
        assert tool.do(f"os.rename('there', '../{'a' * 64}/there')") == "EXDEV"
        assert tool.do("os.rename('there', '../../skydb/home/another.json')") == "EXDEV"


@pytest.mark.parametrize("name", ["a\nb", "100%", "tab\there", "a%zz"])
def test_a_name_is_listed_as_it_was_written(owner: Owner, files: Path, name: str) -> None:
    """G2: Only what needs it is listed with a percent sign and digits."""
    (files / name).write_bytes(b"data")
    assert name in os.listdir(files)
    assert owner.data(name) == b"data"
    (files / name).unlink()


def test_tail_notices_a_change(owner: Owner, files: Path) -> None:
    """G5: stat is at most `registry_ttl` (2 s) old. A change by somebody else changes the
    modification time.
    """
    owner.put("log", b"one\n")
    process = subprocess.Popen(
        ["tail", "-n", "+1", "-s", "0.1", "-F", "log"],
        cwd=files,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"one\n"
        before = output(["stat", "-c", "%y", "log"], cwd=files)
        owner.put("log", b"one\ntwo\n")
        assert process.stdout.readline() == b"two\n"
        until(lambda: output(["stat", "-c", "%y", "log"], cwd=files) != before)
        owner.put("log", b"new\n")
        assert process.stdout.readline() == b"new\n"
    finally:
        end(process)


def test_writers_share_a_file(owner: Owner, files: Path) -> None:
    """G8: posted, once, when the file is closed; others may have it open still."""
    with program(files) as one, program(files) as two:
        for tool in (one, two):
            assert tool.do("(f := os.open('shared', os.O_RDWR | os.O_CREAT)) and None") == "None"
        assert one.do("(g := os.dup(f)) and None") == "None"
        assert one.do("os.close(g)") == "None"
        assert one.do("os.write(f, b'1234')") == "4"
        assert two.do("os.pread(f, 100, 0)") == "b'1234'"
        assert two.do("os.pwrite(f, b'x', 3)") == "1"
        assert owner.revision("shared") == -1
        assert one.do("os.close(f)") == "None"
        assert (owner.data("shared"), owner.revision("shared")) == (b"123x", 0)
        assert two.do("os.close(f)") == "None"
        assert owner.revision("shared") == 0


def test_killed_writer(owner: Owner, files: Path) -> None:
    """G8: posted, once, when the file is closed: the kernel does that for who is killed."""
    with program(files) as tool:
        assert tool.do("(f := os.open('killed', os.O_RDWR | os.O_CREAT)) and None") == "None"
        assert tool.do("os.write(f, b'last words')") == "10"
        assert owner.data("killed") is None
        tool.process.kill()
        until(lambda: owner.data("killed") is not None)
    assert (owner.data("killed"), owner.revision("killed")) == (b"last words", 0)


def test_scratch_files(owner: Owner, files: Path) -> None:
    """G14: Scratch files of editors live in memory, never posted.

    G14: Renaming one onto an entry posts its content; renaming an entry onto one keeps a copy and
    posts nothing.
    """
    owner.put("swapped", b"old")  # a name that no other test has found absent just now
    with program(files) as tool:
        assert tool.do("open('s~', 'w').write('x' * 1000)") == "1000"
        assert tool.do("os.rename('s~', 'swapped')") == "EFBIG"
        assert tool.do("os.rename('swapped', '.s.swp')") == "None"
        assert tool.do("os.path.exists('swapped')") == "False"
        assert tool.do("open('.s.swp').read()") == "'old'"
        assert owner.revision("swapped") == 0
        assert tool.do("open('.s.swp', 'w').write('new')") == "3"
        assert tool.do("os.rename('.s.swp', 'swapped')") == "None"
        assert (owner.data("swapped"), owner.revision("swapped")) == (b"new", 1)
        assert tool.do("os.unlink('s~')") == "None"
    assert owner.data("s~") is None
    assert owner.data(".s.swp") is None
