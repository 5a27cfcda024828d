"""A daemon that is killed at every step of a write, a full disk, and a ledger that is damaged."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from signal import SIGKILL

import pytest

from skymount.wire.registry_entry import SignedEntry, hash_data_key
from tests.mount.keys import HOME, Owner, Program, program, until
from tests.mount.namespaces import Namespace
from tests.mount.scripted import ScriptedPortal, scripted_portal
from tests.mount.site import Site
from tests.skymount_process import Mount, Sandbox, end, output, run

NAME = "entry"
OLD, NEW, LATER = b"old", b"new", b"later"
EDIT = f"(f := os.open({NAME!r}, os.O_RDWR)) and None"
GONE = ("ENOTCONN", "ECONNABORTED", "EIO")
"""What a program is told when the daemon goes away during its request."""


@pytest.fixture
def registry() -> Iterator[ScriptedPortal]:
    """A portal that holds requests where it is told."""
    with scripted_portal() as portal:
        yield portal


@pytest.fixture
def owner(sandbox: Sandbox, registry: ScriptedPortal) -> Owner:
    """A home with a key, and an entry of it."""
    found = Owner.make(sandbox.with_env(SKYMOUNT_SEND_PENDING="false"), registry.url)
    registry.set(found.signed(NAME, b"older", 0))
    registry.set(found.signed(NAME, OLD, 1))
    return found


def path(owner: Owner) -> Path:
    """Return where the owner's ledger is."""
    return owner.sandbox.root / "state/skymount/ledger.sqlite3"


def latest(owner: Owner, registry: ScriptedPortal, name: str = NAME) -> SignedEntry | None:
    return registry.latest(owner.pair.public_key, hash_data_key(name))


@contextmanager
def mounted(owner: Owner) -> Iterator[tuple[Mount, Path]]:
    """Mount; yields the key's directory too."""
    with owner.sandbox.mounted("--portal", owner.portal) as mount:
        yield mount, mount.path / "registry" / HOME


@contextmanager
def held_ledger(owner: Owner) -> Iterator[None]:
    """Let nobody write to the ledger."""
    with closing(sqlite3.connect(path(owner), isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        yield
        database.execute("ROLLBACK")


def kill(mount: Mount) -> None:
    """End the daemon at once."""
    mount.daemon.signal(SIGKILL)
    mount.daemon.wait()


def reply(tool: Program) -> str:
    """Return what the step that was begun came to."""
    assert tool.process.stdout is not None
    return tool.process.stdout.readline().decode().rstrip("\n")


def assert_each_revision_once(registry: ScriptedPortal, owner: Owner) -> None:
    """G12: A revision is never signed for two contents, also after a crash."""
    contents: dict[tuple[bytes, int], bytes] = {}
    kept = [pending.signed for pending in owner.pending() if pending.signed]
    for signed in [*registry.posts, *registry.ever, *kept]:
        key = (signed.entry.tweak, signed.entry.revision)
        assert contents.setdefault(key, signed.entry.data) == signed.entry.data


STEPS = ["asking", "claiming", "posting", "posting, and it arrives later", "posted", "answered"]
CLAIMED = STEPS[2:]  # from here on there is a signed revision
ARRIVED = STEPS[3:]  # from here on the portal has it


def crash(owner: Owner, registry: ScriptedPortal, step: str) -> None:
    """Write to the entry, and kill the daemon at a step of that."""
    with mounted(owner) as (mount, files), program(files) as tool:
        assert tool.do(EDIT) == "None"
        assert tool.do("os.pwrite(f, b'new', 0)") == "3"
        if step == "claiming":
            with held_ledger(owner):
                gets = registry.gets
                tool.begin("os.close(f)")
                until(lambda: registry.gets > gets)
                kill(mount)
        else:
            method = "GET" if step == "asking" else "POST"
            gate = registry.hold(method, answered=step in ("posted", "answered"))
            tool.begin("os.close(f)")
            gate.wait()
            if step == "answered":
                with held_ledger(owner):
                    gate.open()
                    kill(mount)
            else:
                kill(mount)
                gate.open(drops=step == "posting")
        assert reply(tool) in GONE
    if step in ARRIVED:
        until(lambda: latest(owner, registry) != registry.ever[1])


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("then", ["write", "retry"])
def test_killed_daemon(owner: Owner, registry: ScriptedPortal, step: str, then: str) -> None:
    """G12: A revision is never signed for two contents, also after a crash. What could not be
    posted is kept on disk, and `skymount registry pending` lists it, to be sent or dropped.

    G8: A lost answer is followed by the very same bytes again.

    G4: Nothing is shown below the highest revision that this machine has seen, after a restart too.
    """
    crash(owner, registry, step)
    assert [(each.data, each.signed and each.signed.entry.revision, each.is_posting)
            for each in owner.pending()] == [(NEW, 2, False)] * (step in CLAIMED)  # fmt: skip
    before = [each.signed for each in owner.pending()]
    with mounted(owner) as (_, files):
        there = NEW if step in ARRIVED else OLD
        if then == "write":
            with program(files) as tool:
                assert tool.do(f"open({NAME!r}, 'rb').read()") == repr(there)
                assert tool.do(f"open({NAME!r}, 'wb').write({LATER!r})") == "5"
            now = latest(owner, registry)
            assert now is not None
            assert (now.entry.data, now.entry.revision) == (LATER, 3 if step in CLAIMED else 2)
        done = owner.sandbox.skymount("registry", "retry", "--portal", owner.portal)
        assert done.returncode == 0, done.stderr
        assert owner.pending() == []
        last = latest(owner, registry)
        assert last is not None
        wanted = NEW if step in CLAIMED else OLD
        assert last.entry.data == (LATER if then == "write" else wanted)
        assert output(["cat", NAME], cwd=files) == last.entry.data
        assert {each for each in registry.posts if each.entry.data == NEW} <= {*before}
        assert_each_revision_once(registry, owner)
        registry.always = "stale"
        assert run(["cat", files / NAME]).stderr.endswith("Input/output error\n")


@pytest.mark.parametrize("answered", [False, True])
@pytest.mark.parametrize("post", [1, 2])
def test_killed_in_a_rename(
    owner: Owner, registry: ScriptedPortal, post: int, answered: bool
) -> None:
    """G13: A rename posts the new entry, then deletes the old one: killed anywhere in between, the
    content has one of its names, or both.
    """
    with mounted(owner) as (mount, files), program(files) as tool:
        gate = registry.hold("POST", answered=answered, number=post)
        tool.begin(f"os.rename({NAME!r}, 'moved')")
        gate.wait()
        kill(mount)
        gate.open(drops=True)
        assert reply(tool) in GONE
    found = [latest(owner, registry, name) for name in (NAME, "moved")]
    there = [bool(each and not each.entry.is_deleted) for each in found]
    assert there == [not (post == 2 and answered), post == 2 or answered]
    with mounted(owner) as (_, files):
        assert owner.sandbox.skymount("registry", "retry", "--portal", owner.portal).returncode == 0
        assert owner.pending() == []
        assert output(["cat", "moved"], cwd=files) == OLD
        if post == 1:
            output(["rm", NAME], cwd=files)
        assert output(["ls", "-A"], cwd=files) == b"moved\n"
        assert_each_revision_once(registry, owner)


def test_killed_with_unwritten_content(owner: Owner, registry: ScriptedPortal) -> None:
    """G8: the close has the result: nobody is told that what the daemon took along is done."""
    with mounted(owner) as (mount, files), program(files) as tool:
        assert tool.do(EDIT) == "None"
        assert tool.do("os.pwrite(f, b'new', 0)") == "3"
        kill(mount)
        assert tool.do("os.fsync(f)") in GONE
        assert tool.do("os.close(f)") in GONE
    assert (registry.posts, owner.pending()) == ([], [])


class Inside:
    """A mount in a name space, whose state is on a small disk."""

    def __init__(self, owner: Owner, namespace: Namespace, size: str) -> None:
        self.state = owner.sandbox.root / "state"
        self.namespace = namespace
        options = f"size={size},mode=700"
        namespace.do("mount", "-t", "tmpfs", "-o", options, "none", self.state)
        self.owner = Owner(owner.sandbox.within(namespace.prefix), owner.portal, owner.pair)

    def fill(self) -> None:
        """Leave no room on the disk."""
        done = self.namespace.run("dd", "if=/dev/zero", f"of={self.state}/fill", "bs=4k")
        assert "No space left" in done.stderr
        self.namespace.run("dd", "if=/dev/zero", f"of={self.state}/fill2", "bs=1")

    def make_room(self) -> None:
        """Empty the disk again."""
        self.namespace.do("rm", "-f", self.state / "fill", self.state / "fill2")

    def pending(self) -> str:
        """Return what is in the outbox, as the command says it."""
        done = self.owner.sandbox.skymount("registry", "pending")
        assert done.returncode == 0, done.stderr
        return done.stdout

    def program(self, files: Path) -> Program:
        """Start a program in a directory that is seen only here."""
        enter = ["sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", str(files)]
        return Program(Path("/"), [*self.namespace.prefix, *enter])


def test_full_disk(owner: Owner, registry: ScriptedPortal, mount_namespace: Namespace) -> None:
    """G8: the close has the result, also when the ledger's disk is full: it is at the portal, or
    the close fails, and the entry is as it was.

    G12: A revision is never signed for two contents.
    """
    inside = Inside(owner, mount_namespace, "400k")
    with inside.owner.sandbox.mounted("--portal", owner.portal, clean=False) as mount:
        tool = inside.program(mount.path / "registry" / HOME)
        try:
            assert write(tool, b"first") == "None"
            inside.fill()
            failures = 0
            for number in range(12):
                before = latest(owner, registry)
                data = b"full %d" % number
                result = write(tool, data)
                now = latest(owner, registry)
                assert now is not None
                if result == "None":
                    assert now.entry.data == data
                else:
                    assert result in ("EIO", "ENOSPC")
                    assert now == before
                    failures += 1
                assert tool.do(f"open({NAME!r}, 'rb').read()") == repr(now.entry.data)
            assert failures
            number = registry.latest(owner.pair.public_key, hash_data_key(NAME))
            assert number is not None
            registry.set(owner.signed(NAME, b"theirs", number.entry.revision + 1))
            assert tool.do(f"open({NAME!r}, 'rb').read()") == repr(b"theirs")
            registry.always = "stale"  # what the disk did not take is known nevertheless
            assert tool.do(f"open({NAME!r}, 'rb').read()") == "EIO"
            registry.always = ""
            inside.make_room()
            assert write(tool, b"last") == "None"
            assert tool.do(f"open({NAME!r}, 'rb').read()") == repr(b"last")
        finally:
            end(tool.process)
        text = mount_namespace.do("cat", *logs(inside))
        assert "ledger.sqlite3" in text
        assert "Traceback" not in text
        assert_unique(registry)


def test_disk_that_is_full_from_the_start(
    owner: Owner, registry: ScriptedPortal, mount_namespace: Namespace
) -> None:
    """G4: Reading needs no room on the ledger's disk, also where that was full before; roll-backs
    are seen all the same, and what was seen is written down as soon as there is room.
    """
    inside = Inside(owner, mount_namespace, "400k")
    with inside.owner.sandbox.mounted("--portal", owner.portal, clean=False) as mount:
        inside.fill()
        tool = inside.program(mount.path / "registry" / HOME)
        try:
            registry.always = ""
            now = latest(owner, registry)
            assert now is not None
            assert tool.do(f"open({NAME!r}, 'rb').read()") == repr(now.entry.data)
            assert tool.do(f"os.stat({NAME!r}).st_size") == str(len(now.entry.data))
            assert write(tool, b"refused") in ("EIO", "ENOSPC")
            assert latest(owner, registry) == now
            registry.always = "stale"
            assert tool.do(f"open({NAME!r}, 'rb').read()") == "EIO"
            inside.make_room()
            assert tool.do(f"open({NAME!r}, 'rb').read()") == "EIO"
            registry.always = ""
            assert write(tool, b"done") == "None"
        finally:
            end(tool.process)
        text = mount_namespace.do("cat", *logs(inside))
        assert text.count("is kept in memory until it can be written") == 1
        assert "Traceback" not in text
    assert_unique(registry)


def write(tool: Program, data: bytes) -> str:
    """Write a whole entry; return the result of close."""
    flags = "os.O_WRONLY | os.O_TRUNC | os.O_CREAT"
    assert tool.do(f"(f := os.open({NAME!r}, {flags})) and None") == "None"
    assert tool.do(f"os.write(f, {data!r})") == str(len(data))
    return tool.do("os.close(f)")


def logs(inside: Inside) -> list[str]:
    return inside.namespace.do("sh", "-c", f"echo {inside.state}/skymount/log/*.log").split()


def assert_unique(registry: ScriptedPortal) -> None:
    """No revision was posted with two contents."""
    contents: dict[tuple[bytes, int], bytes] = {}
    for signed in [*registry.posts, *registry.ever]:
        key = (signed.entry.tweak, signed.entry.revision)
        assert contents.setdefault(key, signed.entry.data) == signed.entry.data


DAMAGES = {
    "garbage": b"this is no database\n" * 1000,
    "empty": b"",
    "cut off": b"SQLite format 3\0" + bytes(84),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_ledger(owner: Owner, registry: ScriptedPortal, site: Site, damage: str) -> None:
    """G3: Every other failure is an error, never ENOENT. G4: nothing is shown of which is not known
    whether it was rolled back. What needs no ledger is served.
    """
    path(owner).parent.mkdir(mode=0o700)
    path(owner).write_bytes(DAMAGES[damage])
    both = ("--portal", owner.portal, "--portal", site.portal)
    with owner.sandbox.mounted(*both, clean=False) as mount:
        tree = mount.path / "skylinks" / site.skylink
        assert output(["ls", tree]) == output(["ls", site.tree])
        with program(mount.path / "registry" / HOME) as tool:
            for name in (NAME, "absent"):
                assert tool.do(f"open({name!r}, 'rb').read()") == "EIO"
                assert tool.do(f"os.stat({name!r})") == "EIO"
            assert tool.do("os.open('absent', os.O_CREAT | os.O_WRONLY)") == "EIO"
            assert tool.do(f"os.unlink({NAME!r})") == "EIO"
            assert tool.do("os.listdir()") == "EIO"
            assert registry.posts == []
            assert path(owner).read_bytes() == DAMAGES[damage]
            log = owner.sandbox.log.read_text()
            assert str(path(owner)) in log
            assert "Traceback" not in log
            path(owner).unlink()  # mended while it is mounted
            assert tool.do(f"open({NAME!r}, 'rb').read()") == repr(OLD)
            assert tool.do(f"open({NAME!r}, 'wb').write({NEW!r})") == "3"
        assert latest(owner, registry) == owner.signed(NAME, NEW, 2)
