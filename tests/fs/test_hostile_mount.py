"""A real mount of a portal that serves hostile content, or lies, or breaks.

What must hold in each case: no crash (the daemon that was there before is there afterwards), no
hang (every command has a limit), no path outside the tree, no wrong byte.
"""

import errno
import json
import os
import random
import re
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from skymount.wire.metadata import Metadata, Subfile, encode_metadata
from tests.fakes import portal as fake
from tests.fakes import skyfiles
from tests.fakes.portal import FakePortal, in_thread
from tests.fakes.skyfiles import FakeSkyfile, describe, noise
from tests.fuse_device import NEEDS_MOUNTS
from tests.skymount_process import Foreground, Sandbox, output, run

MIB = 1 << 20
LIMIT = 300.0  # seconds for what is slow by nature: a million entries, on a machine with other work


pytestmark = NEEDS_MOUNTS


@dataclass
class Scene:
    """A mount, and the portals behind it."""

    mount: Foreground
    portals: list[FakePortal]

    @property
    def portal(self) -> FakePortal:
        return self.portals[0]

    def publish(self, skyfile: FakeSkyfile) -> Path:
        """Let every portal serve it; return its directory in the mount."""
        for portal in self.portals:
            portal.add(skyfile)
        return self.mount.path / "skylinks" / skyfile.name

    def read(self, path: Path, *options: str) -> bytes:
        """Return a file's content, which must be readable."""
        return output(["dd", f"if={path}", "status=none", "bs=128k", *options])

    def names(self, path: Path) -> list[str]:
        """List a tree: the paths in it."""
        text = output(["find", path, "-mindepth", "1", "-printf", "%P\\0"], limit=LIMIT)
        return sorted(os.fsdecode(name) for name in text.split(b"\0")[:-1])

    def xattr(self, path: Path, name: str) -> str:
        """Return an extended attribute."""
        full = f"user.skymount.{name}"
        done = output(["getfattr", "--absolute-names", "--only-values", "-n", full, path])
        return done.decode()

    def hidden(self, path: Path) -> dict[str, str]:
        """Return what is not shown of a skylink: path and reason."""
        if self.xattr(path, "hidden") == "0":
            return {}
        lines = self.xattr(path, "hidden_names").splitlines()
        found = {}
        for line in lines:
            name, end = json.JSONDecoder().raw_decode(line)
            found[name] = line[end:].removeprefix(": ")
        assert len(lines) == int(self.xattr(path, "hidden")) or lines[-1] == "..."
        return found

    def error(self, *command: str | Path) -> str:
        """Return the error that a command fails with, as `strerror` words it."""
        done = run(command, limit=LIMIT)
        assert done.returncode != 0, f"{command} worked: {done.stdout[:50]!a}"
        return done.stderr.rstrip("\n").rpartition(": ")[2].encode(errors="replace").decode()

    def log(self) -> str:
        return self.mount.log.read_text(errors="replace")

    def assert_sound(self) -> None:
        """The daemon is alive, answers, and has met nothing that nobody foresaw."""
        assert self.mount.process.poll() is None, self.log()
        status = json.loads(output(["cat", self.mount.path / ".skymount/status.json"]))
        assert status["pid"] == self.mount.process.pid
        assert "Traceback" not in self.log(), self.log()


ENOENT = os.strerror(errno.ENOENT)
EIO = os.strerror(errno.EIO)
ETIMEDOUT = os.strerror(errno.ETIMEDOUT)


def _scene(root: Path, portals: int, *options: str) -> Iterator[Scene]:
    running = [in_thread(FakePortal()) for _ in range(portals)]
    fakes = [each.__enter__() for each in running]
    try:
        words = [word for each in fakes for word in ("--portal", each.url)]
        with Sandbox.make(root).foreground(*words, *options) as mount:
            yield Scene(mount, fakes)
    finally:
        for each in running:
            each.__exit__(None, None, None)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A mount of one portal, for all tests of a worker."""
    yield from _scene(tmp_path_factory.mktemp("hostile") / "box", 1)


@pytest.fixture
def scene(shared: Scene) -> Iterator[Scene]:
    """The shared mount, healed before and sound after the test."""
    shared.portal.heal()
    yield shared
    shared.portal.heal()
    shared.assert_sound()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Scene]:
    """A mount of two portals."""
    for made in _scene(tmp_path / "box", 2):
        yield made
        made.assert_sound()


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[Scene]:
    """A mount of one portal with a limit of two seconds for any operation."""
    for made in _scene(tmp_path / "box", 1, "--timeout", "2"):
        yield made
        made.assert_sound()


def fresh(seed: str) -> int:
    """Return a seed of its own for each content, so that no test meets another's."""
    return zlib.crc32(seed.encode())


def concurrently(case: Callable[[Any], None], items: Iterable[Any]) -> None:
    """Run a case for each item at once: most of the time is spent waiting between retries."""

    def named(item: Any) -> None:
        try:
            case(item)
        except AssertionError as error:
            raise AssertionError(f"{item!r:.60}: {error}") from error

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(named, items))


# --- malformed skylinks

GOOD = skyfiles.of_files({"f": b"good"}).name


@pytest.mark.parametrize(
    "name",
    [
        "x",
        GOOD[:-1],
        GOOD + "A",
        GOOD[:-1] + "!",
        "////".replace("/", "_"),
        "__" + GOOD[2:],  # an illegal bitfield
        "w" * 55,
        "0" * 54,
        "-rf",
        "%2e%2e",
        "svc:",
        "*",
        "\udcff\udcfe",
        GOOD[:20] + "\n" + GOOD[21:],
        "skylinks",
    ],
)
def test_malformed_skylink(scene: Scene, name: str):
    """S3: Anything else in `skylinks` is ENOENT, without any network traffic.

    A name that is no skylink does not exist, and nobody is asked about it.
    """
    path = scene.mount.path / "skylinks" / name
    assert scene.error("stat", "--", path) == ENOENT
    assert scene.error("cat", "--", path / "f") == ENOENT
    check = "/svc/stats"  # what a new mount asks, to warn of a portal that does not answer
    assert [each for each in scene.portal.requests if each.path != check] == []


def test_name_over_the_limit(scene: Scene):
    """A name of 256 bytes is refused as too long."""
    long = scene.mount.path / "skylinks" / ("A" * 256)
    assert scene.error("stat", "--", long) == os.strerror(errno.ENAMETOOLONG)


# --- metadata


NO_OBJECTS = [
    b"",
    b"not JSON",
    b"{",
    b"[]",
    b"null",
    b'"text"',
    b"\x00\xff" * 50,
    b"[" * 200_000,
    b'{"subfiles":' * 50_000,
    b'{"filename":"f"} trailing',
    b"9" * 10_000,
]


def test_metadata_that_is_no_object(scene: Scene):
    """N6: Metadata that is no JSON object.

    Authentic content whose metadata says nothing cannot be listed.
    """

    def case(raw: bytes) -> None:
        path = scene.publish(skyfiles.of_metadata(raw, b"content"))
        assert scene.error("ls", path) == EIO

    concurrently(case, NO_OBJECTS)


def test_metadata_without_a_single_field(scene: Scene):
    """Content without a name is an empty directory that says so."""
    path = scene.publish(skyfiles.of_metadata(b"{}", b"content"))
    assert scene.names(path) == []
    assert scene.hidden(path) == {"": "the path has an empty, '.' or '..' element"}


def test_metadata_with_a_name_only(scene: Scene):
    """The oldest content has nothing but a name: the file is as large as the payload."""
    path = scene.publish(skyfiles.of_metadata(b'{"filename":"sia.pdf"}', noise(5000)))
    assert scene.names(path) == ["sia.pdf"]
    assert scene.read(path / "sia.pdf") == noise(5000)


BAD_NUMBERS = ["-1", "9223372036854775808", "1e400", "1.5", "-0.1", '"7"', "null", "true", "[]"]


@pytest.mark.parametrize("member", ["offset", "len"])
@pytest.mark.parametrize("number", [*BAD_NUMBERS, "9" * 400, "9" * 5000, "-" + "9" * 5000, "NaN"])
def test_numbers_that_make_no_sense(scene: Scene, member: str, number: str):
    """N3: A file whose offset or length is no integer, is negative.

    A file whose extent is nonsense is listed as hidden; its neighbour is readable.
    """
    raw = (
        f'{{"filename":"d","length":7,"subfiles":{{"bad":{{"filename":"bad","{member}":{number}}},'
        f'"good":{{"filename":"good","offset":2,"len":5}}}}}}'
    ).encode()
    path = scene.publish(skyfiles.of_metadata(raw, b"..hello"))
    assert scene.names(path) == ["good"]
    assert scene.read(path / "good") == b"hello"
    assert list(scene.hidden(path)) == ["bad"]


@pytest.mark.parametrize("number", [*BAD_NUMBERS, "9" * 400, "9" * 5000, "0", "1", "9999999999"])
@pytest.mark.parametrize("member", ["length", "mode"])
def test_other_numbers_that_make_no_sense(scene: Scene, member: str, number: str):
    """A wrong total length or mode does not matter where the base sector tells the truth."""
    raw = (
        f'{{"filename":"d","{member}":{number},'
        '"subfiles":{"good":{"filename":"good","offset":2,"len":5}}}'
    ).encode()
    path = scene.publish(skyfiles.of_metadata(raw, b"..hello"))
    assert scene.read(path / "good") == b"hello"


def test_members_of_wrong_types(scene: Scene):
    """Every member may be of any type: what can be shown is shown."""
    raw = json.dumps(
        {
            "filename": ["x"],
            "length": {},
            "mode": "0644",
            "defaultpath": 1,
            "tryfiles": {"a": 1},
            "errorpages": [1],
            "subfiles": {
                "good": {"filename": 5, "contenttype": [], "len": 5, "mode": None},
                "number": 5,
                "null": None,
                "list": [],
            },
        }
    ).encode()
    path = scene.publish(skyfiles.of_metadata(raw, b"hello"))
    assert scene.names(path) == ["good"]
    assert scene.read(path / "good") == b"hello"
    assert sorted(scene.hidden(path)) == ["list", "null", "number"]


def test_overlapping_extents(scene: Scene):
    """N3: Files may overlap.

    Files may share bytes: each is what its extent says.
    """
    subfiles = {
        "a": Subfile(filename="a", offset=0, len=6000),
        "b": Subfile(filename="b", offset=3000, len=6000),
        "c": Subfile(filename="c", offset=0, len=9000),
    }
    payload = noise(9000, 20)
    raw = encode_metadata(Metadata("d", 9000, subfiles=subfiles))
    path = scene.publish(skyfiles.of_metadata(raw, payload))
    assert scene.read(path / "a") == payload[:6000]
    assert scene.read(path / "b") == payload[3000:]
    assert scene.read(path / "c") == payload


def test_extents_out_of_range(scene: Scene):
    """N3: or reaches beyond the content is not shown.

    A file that ends beyond the content is hidden; one that ends with it is not.
    """
    subfiles = {
        "ends": Subfile(filename="ends", offset=5, len=5),
        "empty": Subfile(filename="empty", offset=10),
        "beyond": Subfile(filename="beyond", offset=5, len=6),
        "after": Subfile(filename="after", offset=11),
        "far": Subfile(filename="far", offset=(1 << 62), len=(1 << 62) - 1),
    }
    raw = encode_metadata(Metadata("d", 1 << 40, subfiles=subfiles))
    path = scene.publish(skyfiles.of_metadata(raw, b"0123456789"))
    assert scene.names(path) == ["empty", "ends"]
    assert scene.read(path / "ends") == b"56789"
    assert scene.read(path / "empty") == b""
    assert set(scene.hidden(path).values()) == {"it reaches beyond the content"}
    assert len(scene.hidden(path)) == 3


HOSTILE = [
    "../../etc/passwd",
    "/etc/passwd",
    "a//b",
    "a/../b",
    "./x",
    "x/.",
    "..",
    ".",
    "",
    "/",
    "trailing/",
    "nul\0byte",
    "d/" + "n" * 300,
    "é" * 128,
    "deep/" * 10_000 + "file",
    "\ud800",
]
HARMLESS = [
    "..data",
    "...",
    "-rf",
    "~",
    "*",
    "a b",
    "new\nline",
    "tail\n",
    "quote\"'",
    "%2e%2e",
    "back\\slash",
    "\x01\x7f",
    "CON",
    "é" * 127,
    "n" * 255,
    "😀",
    "\u202egnp.exe",
    "d/" * 1500 + "deep",
]


def test_hostile_names(scene: Scene):
    """N5: What is not shown is never dropped in silence and never altered to fit.

    Names that cannot be in a directory tree are counted and listed, not shown; all others are shown
    as they are.
    """
    files = {name: f"<{n}>".encode() for n, name in enumerate([*HOSTILE, *HARMLESS])}
    records = {}
    offset = 0
    for name, content in files.items():
        records[name] = {"filename": name, "offset": offset, "len": len(content)}
        offset += len(content)
    raw = json.dumps({"filename": "d", "length": offset, "subfiles": records}).encode()
    path = scene.publish(skyfiles.of_metadata(raw, b"".join(files.values())))
    found = scene.names(path)
    assert [name for name in found if not (name + "/").startswith("d/")] == sorted(
        name for name in HARMLESS if not name.startswith("d/")
    )
    assert HARMLESS[-1] in found
    assert scene.xattr(path, "hidden") == str(len(HOSTILE))
    assert {name[:500] for name in HOSTILE} == set(scene.hidden(path))
    assert f"{len(HOSTILE)} of its files cannot be shown" in scene.log()
    for name in HARMLESS[:-1]:
        assert scene.read(path / name) == files[name]
    for name in ("../../etc/passwd", "nothing", "..data/x"):
        assert scene.error("cat", f"{path}/skylinks/{name}") != ""
    assert output(["realpath", f"{path}/../.."]).decode().strip() == str(scene.mount.path)


@pytest.mark.parametrize("order", [1, -1])
def test_file_that_is_also_a_directory(scene: Scene, order: int):
    """N2: the directory is shown and the file is not.

    The directory wins, whichever comes first in the metadata.
    """
    files = {"a": b"file", "a/b": b"inner", "c/d/e": b"deep", "c/d": b"file", "z": b"last"}
    ordered = dict(list(files.items())[::order])
    path = scene.publish(skyfiles.of_files(ordered))
    assert scene.names(path) == ["a", "a/b", "c", "c/d", "c/d/e", "z"]
    assert scene.read(path / "a/b") == b"inner"
    assert scene.read(path / "c/d/e") == b"deep"
    assert set(scene.hidden(path)) == {"a", "c/d"}


def resident(pid: int) -> int:
    """Return the bytes of memory that a process occupies."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s*(\d+)", status)[1]) << 10  # type: ignore[index]


@pytest.mark.slow
@pytest.mark.timeout(2 * LIMIT)
def test_a_million_entries(scene: Scene):
    """A directory of a million files is listed in full, and its last file is readable.

    S10: In memory a file or directory takes 40 bytes and its name.
    """
    count = 1_000_000
    records = ",".join(f'"{n:07}":{{"offset":{n % 1000},"len":1}}' for n in range(count))
    raw = f'{{"filename":"d","length":1000,"subfiles":{{{records}}}}}'.encode()
    skyfile = skyfiles.of_metadata(raw, bytes(range(250)) * 4)
    path = scene.publish(skyfile)
    before = resident(scene.mount.process.pid)
    listing = output(["ls", "-f", path], limit=LIMIT).split()
    assert len(listing) == count + 2  # with . and ..
    assert scene.read(path / "0999249") == bytes([249])
    assert scene.xattr(path, "hidden") == "0"
    assert resident(scene.mount.process.pid) - before < 60 * count + (20 << 20)


def test_many_files_in_many_directories(scene: Scene):
    """S1: Every skylink is a directory. N5: never dropped in silence.

    All are there, each with its own content, and one that cannot be shown is not lost among them.
    """
    files = {f"{n // 100:03}/{n:06}": b"%06d" % n for n in range(20_000)} | {"000/../x": b"?"}
    path = scene.publish(skyfiles.of_files(files))
    found = output(["find", path, "-type", "f", "-printf", "%P\n"], limit=LIMIT).decode().split()
    assert sorted(found) == sorted(files.keys() - {"000/../x"})
    assert set(scene.hidden(path)) == {"000/../x"}
    for name in ("000/000000", "042/004242", "199/019999"):
        assert scene.read(path / name) == files[name]
    assert scene.error("cat", path / "042/019999") == ENOENT


@pytest.mark.parametrize("size", [7 * MIB, 9 * MIB])
def test_huge_header(scene: Scene, size: int):
    """S11: Metadata come in a header of up to 8 MiB, else by their endpoint."""
    filler = "x" * size
    raw = f'{{"filename":"f","length":5,"filler":"{filler}"}}'.encode()
    path = scene.publish(skyfiles.unverifiable(raw, b"hello", fresh(f"header{size}")))
    assert scene.read(path / "f") == b"hello"
    assert bool(scene.portal.asked("metadata/" + path.name)) is (size > 8 * MIB)


def test_endless_header(scene: Scene):
    """S11: Headers without end are given up; with no other way to the metadata that is an error."""
    path = scene.publish(skyfiles.unverifiable(b'{"filename":"f","length":1}', b"x", fresh("end")))
    scene.portal.fault(fake.endless_header, "HEAD")
    scene.portal.fault(fake.status(404), "metadata/")
    assert scene.error("ls", path) == EIO
    scene.portal.heal("metadata/")
    assert scene.names(path) == ["f"]


def test_endless_answers(scene: Scene):
    """Bodies without end are given up, whatever was asked."""
    small = scene.publish(skyfiles.of_files({"f": b"endless"}))
    large = scene.publish(skyfiles.of_files({"f": noise(5 * MIB, 31)}))
    assert scene.names(large) == ["f"]
    scene.portal.fault(fake.endless_body)
    assert scene.error("ls", small) == EIO
    assert scene.error("cat", large / "f") == EIO


# --- portals that break

BREAKS = {
    "ignores Range": fake.ignores_range,
    "too few bytes": fake.short(20),
    "too many bytes": fake.excess(b"more"),
    "closes early": fake.closes_after(50),
    "closes at once": fake.closes_after(-1),
    "resets": fake.resets_after(50),
    "another range": fake.header(b"Content-Range", b"bytes 1-600000/600000"),
    "no Content-Range": fake.without_header(b"Content-Range"),
    "a page": fake.html,
    "encoded": fake.header(b"Content-Encoding", b"gzip"),
    "error 500": fake.status(500),
    "error 429": fake.status(429, "<html>slow down</html>"),
}


@pytest.mark.parametrize("verifiable", [True, False])
def test_portal_that_breaks(scene: Scene, verifiable: bool):
    """R1: after three rounds over all portals the read fails with EIO.

    A portal that breaks twice is asked again; one that goes on is EIO; never a wrong byte, and
    nothing wrong is kept.
    """

    def case(how: str) -> None:
        size = 5 * MIB if how == "ignores Range" else 600_000  # else the range is all there is
        payload = noise(size, fresh(f"{how}{verifiable}"))
        raw = describe({"f": payload})
        if verifiable:
            skyfile = skyfiles.of_metadata(raw, payload, fan_out=True)
        else:
            skyfile = skyfiles.unverifiable(raw, payload, fresh(how))
        file = scene.publish(skyfile) / "f"
        reads = f"GET.*{skyfile.name}.*concat"
        assert output(["stat", "-c", "%s", file]) == b"%d\n" % size
        part = ["iflag=skip_bytes", f"skip={size - 300_000}", "count=1"]
        scene.portal.fault(BREAKS[how], reads)
        assert scene.error("dd", f"if={file}", "bs=128k", "status=none", *part) == EIO
        assert 2 <= len(scene.portal.asked(reads)) <= 6
        scene.portal.heal(reads)
        scene.portal.fault(BREAKS[how], reads, times=2)
        assert scene.read(file, *part) == payload[-300_000:][: 128 << 10]
        assert scene.read(file) == payload

    concurrently(case, BREAKS)


def test_portal_that_breaks_at_the_description(scene: Scene):
    """L4: A portal that fails, times out or refuses is never reported as ENOENT.

    What goes wrong while a skylink is described is an error of it, gone when the portal is well.
    """
    breaks = BREAKS | {"error 403": fake.status(403)}
    for how in ("ignores Range", "another range", "no Content-Range"):
        del breaks[how]  # no range is asked for here

    def case(how: str) -> None:
        skyfile = skyfiles.of_files({"f": f"described {how}".encode() * 10})
        path = scene.publish(skyfile)
        scene.portal.fault(breaks[how], skyfile.name)
        expected = errno.EACCES if how == "error 403" else errno.EIO
        assert scene.error("ls", path) == os.strerror(expected)
        scene.portal.heal(skyfile.name)
        assert scene.read(path / "f") == f"described {how}".encode() * 10

    concurrently(case, breaks)


def test_not_found_is_remembered(tmp_path: Path):
    """L1: «Not found» from every portal is ENOENT, and remembered for 5 s.

    The lookup may wait long here, so that it has the answer also on a busy machine.
    """
    box = Sandbox.make(tmp_path / "box")
    box.configure("lookup_grace = 20.0\n")
    with in_thread(FakePortal()) as portal, box.foreground("--portal", portal.url) as mount:
        made = Scene(mount, [portal])
        for number in count():
            path = made.publish(skyfiles.of_files({"f": b"found later %d" % number}))
            made.portal.fault(fake.status(404))
            begun = time.monotonic()
            assert not path.exists()
            made.portal.heal()
            is_there = path.exists()
            if time.monotonic() < begun + 5:  # else the machine was too busy
                break
        assert not is_there
        time.sleep(5.1)
        assert made.names(path) == ["f"]


def test_portal_that_stalls(hasty: Scene):
    """R2: Every operation ends within `timeout` (30 s), at the latest with ETIMEDOUT.

    Whatever waits for a silent portal fails with ETIMEDOUT within --timeout; what does not need it
    goes on meanwhile.
    """
    ready = hasty.publish(skyfiles.of_files({"f": b"ready"}))
    large = hasty.publish(skyfiles.of_files({"f": noise(5 * MIB, 41)}))
    assert hasty.read(ready / "f") == b"ready"
    assert hasty.names(large) == ["f"]
    hasty.portal.fault(fake.stalls_after(50))
    unknown = hasty.publish(skyfiles.of_files({"f": b"stalled"}))
    for command in (["ls", unknown], ["cat", unknown / "f"], ["cat", large / "f"]):
        begun = time.monotonic()
        assert hasty.error(*command) == ETIMEDOUT
        assert time.monotonic() - begun < 25
        assert hasty.read(ready / "f") == b"ready"


def test_portal_that_says_nothing_at_all(hasty: Scene):
    """The same for one that takes the request and never answers."""
    hasty.portal.fault(fake.stalls_after(-1))
    unknown = hasty.publish(skyfiles.of_files({"f": b"silent"}))
    begun = time.monotonic()
    assert hasty.error("ls", unknown) == ETIMEDOUT
    assert time.monotonic() - begun < 25


def test_portal_that_is_silent_before_one_that_is_not(tmp_path: Path):
    """R11: Nobody waits long for the silent one. R2: what needs them is done within `timeout`."""
    with contextmanager(_scene)(tmp_path / "box", 2, "--timeout", "60") as made:
        content = noise(5 * MIB, 43)
        directory = made.publish(skyfiles.of_files({"f": content}))
        small = made.publish(skyfiles.of_files({"g": b"small"}))
        made.portal.fault(fake.stalls_after(-1))
        begun = time.monotonic()
        assert made.names(small) == ["g"]
        assert time.monotonic() - begun < 30
        assert made.names(directory) == ["f"]
        assert made.read(directory / "f") == content


def test_lookup_does_not_wait_for_a_silent_portal(tmp_path: Path):
    """L1: A lookup in `skylinks` waits for a portal at most `lookup_grace` (0.5 s)."""
    with contextmanager(_scene)(tmp_path / "box", 1) as made:
        made.portal.fault(fake.stalls_after(-1))
        for number in range(3):
            path = made.publish(skyfiles.of_files({"f": b"%d" % number}))
            begun = time.monotonic()
            assert output(["stat", "--format=%F", path]) == b"directory\n"
            assert time.monotonic() - begun < 25


READER = """
import os, random, sys, threading
luck, wrong, good = random.Random(5), [], 0

def read(path, seed, size, starts):
    global good
    content = random.Random(seed).randbytes(size)
    for start, length in starts:
        stop = min(size, start + length)
        descriptor = os.open(path, os.O_RDONLY | (os.O_DIRECT if start % 3 == 0 else 0))
        while start < stop:  # the kernel hands out what it has before an error, and then the error
            try:
                data = os.pread(descriptor, stop - start, start)
            except OSError as error:
                if error.errno != 5:
                    wrong.append((path, start, length, error.errno))
                break
            good += 1
            if not data or data != content[start : start + len(data)]:
                wrong.append((path, start, length, len(data)))
                break
            start += len(data)
        os.close(descriptor)

threads = []
for argument in sys.argv[1:]:
    path, seed, size = argument.split(":")
    for _ in range(4):
        lengths = luck.choices([1, 4096, 70000, 300000], k=12)
        starts = [(luck.randrange(int(size)), length) for length in lengths]
        threads.append(threading.Thread(target=read, args=(path, int(seed), int(size), starts)))
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(good, wrong)
"""


def test_random_reads_of_a_portal_that_breaks_at_random(tmp_path: Path):
    """R1: A read returns exactly the bytes of the content or fails.

    Many readers, hardly any memory, a portal that breaks every third time: what a program gets is
    the right bytes or EIO.
    """
    luck = random.Random(6)
    broken = list(BREAKS.values())

    def sometimes(request: fake.Request, reply: fake.Reply) -> fake.Reply:
        return luck.choice(broken)(request, reply) if luck.random() < 0.35 else reply

    for scene in _scene(tmp_path / "box", 1, "--memory-cache", "3 MiB"):
        words = []
        for seed, size in ((81, 4_000_001), (82, 2_500_000), (83, 900_000)):
            content = noise(size, seed)
            raw = describe({"f": content})
            verifiable = skyfiles.of_metadata(raw, content, fan_out=True)
            for skyfile in (verifiable, skyfiles.unverifiable(raw, content, seed)):
                file = scene.publish(skyfile) / "f"
                assert output(["stat", "-c", "%s", file]) == b"%d\n" % size
                words.append(f"{file}:{seed}:{size}")
        scene.portal.fault(sometimes, "GET.*concat")
        good, _, wrong = output([sys.executable, "-c", READER, *words]).decode().partition(" ")
        assert wrong == "[]\n"
        assert int(good) > 100
        scene.assert_sound()


# --- portals that lie

LIES = {
    "one bit": fake.flips(3000),
    "other content": fake.swaps(noise(5 * MIB, 77)),
    "zeros": fake.swaps(bytes(5 * MIB)),
}


@pytest.mark.parametrize("base_sectors", [True, False])
def test_lying_portal_before_an_honest_one(pair: Scene, base_sectors: bool):
    """T3: A portal whose answer fails the check is not believed: the next portal is asked.

    The bytes come from the honest portal, and are right.
    """
    pair.portal.base_sectors = base_sectors

    def case(lie: str) -> None:
        content = noise(50_000, fresh(lie))
        small = skyfiles.of_files({"f": content})
        large = skyfiles.of_metadata(describe({"g": content}), content, fan_out=True)
        for skyfile in (small, large):
            pair.portal.fault(LIES[lie], f"^GET.*{skyfile.name}")
        assert pair.read(pair.publish(small) / "f") == content
        if base_sectors:  # else a lie about large content cannot be told
            assert pair.read(pair.publish(large) / "g") == content

    concurrently(case, LIES)


def test_lying_portal_alone(scene: Scene):
    """T3: With none left the operation fails with EIO.

    With nobody else to ask, it is EIO: at the directory, or at the part that is a lie.
    """

    def case(lie: str) -> None:
        content = noise(50_000, fresh(lie))
        small = skyfiles.of_files({"f": content})
        large = skyfiles.of_metadata(describe({"g": content}), content, fan_out=True)
        paths = [scene.publish(small), scene.publish(large)]
        assert scene.names(paths[1]) == ["g"]
        for skyfile in (small, large):
            scene.portal.fault(LIES[lie], f"^GET.*{skyfile.name}")
        assert scene.error("cat", paths[0] / "f") == EIO
        assert scene.error("cat", paths[1] / "g") == EIO
        for skyfile in (small, large):
            scene.portal.heal(f"^GET.*{skyfile.name}")
        assert scene.read(paths[0] / "f") == content
        assert scene.read(paths[1] / "g") == content

    concurrently(case, LIES)


def test_portal_that_pads_the_metadata(pair: Scene):
    """A portal without base sectors cannot make small content uncheckable by wrong sizes."""
    skyfile = skyfiles.of_files({"f": b"true"})
    path = pair.publish(skyfile)
    pair.portal.base_sectors = False
    padded = describe({"f": b"lies"}) + b" " * 8000
    pair.portal.fault(fake.header(b"svc-metadata", padded), "^HEAD")
    pair.portal.fault(fake.swaps(b"lies"), "^GET")
    assert pair.read(path / "f") == b"true"


def test_words_of_a_portal_in_the_log(scene: Scene):
    """What a portal says cannot make lines of its own in the log, nor talk to a terminal."""
    path = scene.publish(skyfiles.of_files({"f": uuid4().bytes}))
    scene.portal.fault(fake.status(500, "evil\n1970-01-01 ERROR \x1b[31mTraceback" + "x" * 9000))
    assert scene.error("ls", path) == EIO
    line = next(line for line in scene.log().splitlines() if "evil" in line)
    assert "\x1b" not in line
    assert len(line) < 600
    assert not re.search("^1970", scene.log(), re.MULTILINE)
    scene.mount.log.write_text("")  # the word itself is no sign of a fault here
