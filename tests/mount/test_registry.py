"""``registry/`` on real mounts: what is seen, who may write, and what happens when things fail."""

import json
import os
import signal
import socket
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from skymount.keyring import Keyring
from skymount.portal.ledger.ledger import Ledger
from skymount.wire.key_pair import SigningKeyPair
from skymount.wire.registry_entry import MAX_REVISION, SignedEntry
from skymount.wire.skylink import Skylink
from tests.fakes.portal import FakePortal, in_thread, redirects
from tests.fakes.resolving import FakeRegistry
from tests.mount.keys import HOME, Owner, program, until
from tests.mount.namespaces import NOBODY, Namespace
from tests.mount.proxy import Proxy, proxy_to
from tests.server.registry_entries import put
from tests.skymount_process import Sandbox, output, run, xattrs

C = {**os.environ, "LC_ALL": "C"}
OPEN = "(f := os.open('x', os.{})) and None"
REWRITE = OPEN.format("O_WRONLY | os.O_CREAT | os.O_TRUNC")
EDIT = OPEN.format("O_RDWR | os.O_CREAT")


@pytest.fixture
def owner(sandbox: Sandbox, portal: str) -> Owner:
    """A home with a key of its own."""
    return Owner.make(sandbox, portal)


def read(path: Path) -> bytes:
    """Return the content of a file."""
    return output(["cat", path])


def error_of(*command: str | Path) -> str:
    """Return the reason that a command gives for its failure."""
    done = run(command, env=C)
    assert done.returncode, done.stdout
    return done.stderr.strip().splitlines()[-1].rpartition(": ")[2]


# --- what is seen


def test_keys(owner: Owner) -> None:
    """G1: `registry/<name>` is a directory for every name of 64 hex digits, without any request,
    and a symbolic link to one for each key of the keyring. Any other name is ENOENT.

    G6: A listing of `registry` shows the keyring and the public keys used here.
    """
    other = SigningKeyPair.from_seed("somebody else").public_hex
    with proxy_to(owner.portal) as proxy, owner.mounted(portal=proxy.url) as files:
        registry = files.parent
        assert output(["readlink", files]).decode().strip() == owner.pair.public_hex
        assert output(["stat", "-c", "%F %a", registry / other]) == b"directory 555\n"
        assert output(["stat", "-L", "-c", "%F %a", files]) == b"directory 755\n"
        names = output(["ls", registry]).decode().split()
        assert set(names) == {HOME, owner.pair.public_hex, other}
        for name in ("nobody", "A" * 64, "a" * 63):
            assert error_of("stat", registry / name) == "No such file or directory"
        assert proxy.requests == []
        owner.sandbox.succeed("key", "generate", "second")
        until(lambda: run(["stat", registry / "second/"]).returncode == 0)


def test_attributes(owner: Owner) -> None:
    """A4: On a file of `registry` or `skydb`: what the entry is, and where it leads."""
    target = Skylink("AAA3_AfkjcFWO6hpVcoAiFtKU8IHamtNgRs0r75WYuSkA"[:45] + "g")
    owner.put("a/b", bytes(target))
    with owner.mounted() as files:
        held = owner.held("a/b")
        assert held is not None
        assert xattrs(files / "a%2Fb") == {
            "user.skymount.public_key": owner.pair.public_hex,
            "user.skymount.data_key": "a/b",
            "user.skymount.data_key_hash": held.entry.tweak.hex(),
            "user.skymount.revision": "0",
            "user.skymount.signature": held.signature.hex(),
            "user.skymount.link": str(held.link),
            "user.skymount.points_to": str(target),
            "user.skymount.verified": "yes",
            "user.skymount.stale": "no",
        }


def test_listing_after_a_restart(owner: Owner) -> None:
    """G6: one of a key's directory the data keys known on this machine, also after a restart.

    G6: `skymount registry forget` removes one.
    """
    for name in ("read", "removed"):
        owner.put(name, b"data")
    with owner.mounted() as files:
        assert read(files / "read") == b"data"
        output(["cp", files / "read", files / "written"])
        output(["rm", files / "removed"])
        assert run(["stat", files / "absent"]).returncode
        assert output(["ls", files]) == b"read\nwritten\n"
    owner.sandbox.succeed("registry", "forget", HOME, "read")
    with owner.mounted() as files:
        assert output(["ls", files]) == b"written\n"
        assert read(files / "read") == b"data"
        assert output(["ls", files]) == b"read\nwritten\n"


def test_another_s_entries(owner: Owner, tmp_path: Path) -> None:
    """G7: A file can be written if the keyring holds the private key; else its mode is 0444 and an
    open for writing is EACCES.
    """
    reader = Owner.make(Sandbox.make(tmp_path / "reader"), owner.portal)
    owner.put("x", b"mine")
    with owner.mounted() as files:
        assert output(["stat", "-c", "%a", files / "x"]) == b"644\n"
    with reader.mounted() as files, program(files.parent / owner.pair.public_hex) as tool:
        assert tool.do("open('x').read()") == "'mine'"
        assert tool.do("oct(os.stat('x').st_mode)") == repr(oct(stat.S_IFREG | 0o444))
        for step in (
            "os.open('x', os.O_WRONLY)",
            "os.open('x', os.O_RDONLY | os.O_TRUNC)",
            "os.open('new', os.O_WRONLY | os.O_CREAT)",
            "os.truncate('x', 0)",
            "os.unlink('x')",
            "os.rename('x', 'y')",
            "os.chmod('x', 0o644)",
        ):
            assert tool.do(step) == "EACCES", step
        assert tool.do("os.access('x', os.W_OK), os.access('.', os.W_OK)") == "(False, False)"
    assert owner.revision("x") == 0


def test_two_mounts_see_each_other(owner: Owner, tmp_path: Path) -> None:
    """G5: An open sees what the portal has at that time. stat is at most `registry_ttl` (2 s) old.

    Both of this machine and of another one.
    """
    other = Owner.make(Sandbox.make(tmp_path / "other"), owner.portal, owner.pair)
    second = owner.sandbox.directory("second")
    with owner.mounted() as one, owner.mounted(at=second) as two, other.mounted() as three:
        places = [one, two, three]
        output(["cp", "/dev/null", one / "x"])
        for number in range(6):
            writer, *readers = places[number % 3 :] + places[: number % 3]
            with program(writer) as tool:
                assert tool.do(f"open('x', 'a').write('{number}')") == "1"
            expected = "".join(map(str, range(number + 1))).encode()
            if number:
                assert [read(reader / "x") for reader in readers] == [expected] * 2
            for reader in readers:
                until(lambda at=reader, n=number: _size(at / "x") == n + 1)  # type: ignore[misc]
        assert owner.revision("x") == 5
        output(["rm", three / "x"])
        until(lambda: not any(run(["stat", place / "x"]).returncode == 0 for place in places))


def _size(path: Path) -> int:
    done = run(["stat", "-c", "%s", path])
    return -1 if done.returncode else int(done.stdout)


# --- who writes


def test_another_user(owner: Owner, mount_namespace: Namespace) -> None:
    """G16: Only the owner of the mount writes; chmod, chown and times are accepted and mean
    nothing.
    """
    if os.getuid() != 0:
        pytest.skip("only root can be someone else")
    nobody = mount_namespace.as_nobody(owner.sandbox.root)
    inside = replace(owner, sandbox=owner.sandbox.within(mount_namespace.prefix))
    owner.put("x", b"data")
    with inside.mounted("--allow-other") as files, program(Path("/"), nobody) as tool:
        assert tool.do(f"os.chdir({str(files)!r})") == "None"
        assert tool.do("open('x').read()") == "'data'"
        for step in (
            "os.open('x', os.O_WRONLY)",
            "os.open('new', os.O_WRONLY | os.O_CREAT)",
            "os.open('scratch~', os.O_WRONLY | os.O_CREAT)",
            "os.truncate('x', 0)",
            "os.unlink('x')",
            "os.rename('x', 'y')",
            "os.chmod('x', 0o666)",
            "os.utime('x')",
        ):
            assert tool.do(step) == "EACCES", step
        assert tool.do("os.access('x', os.W_OK)") == "False"
        mount_namespace.do("sh", "-c", f"echo draft > {files}/draft~")
        assert tool.do("open('draft~').read()") == "EACCES"  # its mode is 0600
        mount_namespace.do(
            "sh", "-c", f"cd {files}; chmod 600 x; chown 1:1 x; touch -d 2000-01-01 x"
        )
        assert mount_namespace.do("stat", "-c", "%a %u", files / "x").split() == ["644", "0"]
    assert owner.revision("x") == 0


def test_a_user_without_rights(owner: Owner, mount_namespace: Namespace) -> None:
    """G7: A file can be written if the keyring holds the private key: without any other right."""
    if os.getuid() != 0:
        pytest.skip("all other tests are that already")
    nobody = mount_namespace.as_nobody(owner.sandbox.root)
    path = owner.sandbox.directory_of(NOBODY)
    inside = replace(owner, sandbox=owner.sandbox.within(nobody))
    with inside.mounted(at=path) as files:
        script = "cd $1; echo one > x; echo two >> x; sed -i s/one/1/ x; cat x; ls -l x"
        said = output([*nobody, "sh", "-c", script, "-", files]).decode()
        assert said.startswith("1\ntwo\n-rw-r--r-- 1 nobody")
    assert (owner.data("x"), owner.revision("x")) == (b"1\ntwo\n", 2)


# --- somebody else writes too


@pytest.mark.parametrize("exists", [True, False])
def test_rewrite_wins(owner: Owner, exists: bool) -> None:
    """G10: When somebody else has changed the entry since it was opened, a rewrite of the whole
    content wins with the next revision.

    A remembered revision may be behind; then a registry takes the one of two entries that has the
    lower hash, and otherwise says no, so that the next revision is posted.
    """
    if exists:
        owner.put("x", b"old")
    with owner.mounted() as files, program(files) as tool:
        assert tool.do(REWRITE) == "None"
        owner.put("x", b"theirs")
        assert tool.do("os.write(f, b'mine')") == "4"
        assert tool.do("os.close(f)") == "None"
    assert owner.data("x") == b"mine"
    assert owner.revision("x") - exists in (0, 1)


@pytest.mark.parametrize("exists", [True, False])
def test_partial_edit_is_refused(owner: Owner, exists: bool) -> None:
    """G10: a partial edit is ESTALE and changes nothing.

    G12: What could not be posted is kept on disk.
    """
    if exists:
        owner.put("x", b"old")
    with owner.mounted() as files, program(files) as tool:
        assert tool.do(EDIT) == "None"
        owner.put("x", b"theirs")
        assert tool.do("os.write(f, b'mi')") == "2"
        assert tool.do("os.fsync(f)") == "ESTALE"
        assert tool.do("os.close(f)") == "ESTALE"
        assert tool.do("open('x').read()") == "'theirs'"
    assert owner.revision("x") == (1 if exists else 0)
    assert [kept.data for kept in owner.pending()] == [b"mid" if exists else b"mi"]


def test_last_revision(owner: Owner) -> None:
    """G11: An entry of the last revision is frozen: EPERM."""
    owner.put("x", b"old")
    with owner.mounted() as files, program(files) as tool:
        assert tool.do("open('x').read()") == "'old'"
        _freeze(owner)
        assert tool.do("open('x').read()") == "'old'"
        for step in (REWRITE, EDIT, "os.unlink('x')", "os.rename('x', 'y')", "os.truncate('x', 0)"):
            assert tool.do(step) == "EPERM", step
        assert tool.do("open('x').read()") == "'old'"


def _freeze(owner: Owner) -> None:
    with httpx.Client(base_url=owner.portal, headers={"User-Agent": "tests"}) as client:
        put(client, owner.signed("x", b"old", MAX_REVISION))


# --- failures


def test_portal_that_is_down(owner: Owner) -> None:
    """G3: Every other failure is an error, never ENOENT.

    G8: and the close or fsync has the result. G12: What could not be posted is kept on disk, and
    `skymount registry pending` lists it, to be sent (`retry`) or dropped (`drop`).
    """
    owner.put("known", b"data")
    with proxy_to(owner.portal) as proxy, owner.mounted(portal=proxy.url) as files:
        assert read(files / "known") == b"data"
        proxy.close()
        assert error_of("cat", files / "unknown") == "Input/output error"
        assert read(files / "known") == b"data"  # what was seen last (G20)
        with program(files) as tool:
            assert tool.do(REWRITE) == "None"
            assert tool.do("os.write(f, b'unsent')") == "6"
            assert tool.do("os.fsync(f)") == "EIO"
            assert tool.do("os.close(f)") == "EIO"
            assert tool.do("open('x').read()") == "EIO"
            assert tool.do("os.unlink('known')") == "EIO"
            assert tool.do("os.rename('known', 'other')") == "EIO"
    [kept] = owner.pending()
    assert (kept.data, kept.data_key, kept.signed) == (b"unsent", "x", None)
    assert owner.data("x") is None
    listed = json.loads(owner.sandbox.succeed("registry", "pending", "--json"))
    assert "unsent" in json.dumps(listed) or "756e73656e74" in json.dumps(listed)
    owner.sandbox.succeed("registry", "retry", "--portal", owner.portal)
    assert (owner.data("x"), owner.revision("x")) == (b"unsent", 0)
    assert owner.pending() == []


MAKE_NEW_FILES = """
import os, time
from concurrent.futures import ThreadPoolExecutor

def make(number):
    try:
        os.open(f"new {number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return "EEXIST"
    return "made"

begun = time.monotonic()
with ThreadPoolExecutor(THREADS) as pool:
    results = list(pool.map(make, range(COUNT)))
print(time.monotonic() - begun, *results)
"""


def make_new_files(files: Path, threads: int, count: int = 10) -> tuple[float, set[str]]:
    """Make new files, each only if there is none; return the seconds and the results."""
    code = MAKE_NEW_FILES.replace("THREADS", str(threads)).replace("COUNT", str(count))
    seconds, *results = output([sys.executable, "-c", code], cwd=files).decode().split()
    assert len(results) == count
    return float(seconds), set(results)


def test_new_files_over_a_slow_portal(owner: Owner) -> None:
    """G3: However many lookups were answered, the next one still waits for its answer."""
    with proxy_to(owner.portal) as proxy, owner.mounted(portal=proxy.url) as files:
        proxy.delay = 0.1
        seconds, results = make_new_files(files, 1)
        assert results == {"made"}
        assert seconds > 10 * proxy.delay


def test_lookups_of_a_silent_portal(owner: Owner) -> None:
    """G3: Further lookups in the same directory do not queue for a silent portal."""
    with proxy_to(owner.portal) as proxy, owner.mounted(portal=proxy.url) as files:
        proxy.stalling = True
        seconds, results = make_new_files(files, 50, 50)
        assert results == {"EEXIST"}
        assert 0.4 < seconds < 20  # one lookup waits 0.5 s; fifty would wait 25 s


def test_pending_that_is_dropped(owner: Owner) -> None:
    """G12: to be sent (`retry`) or dropped (`drop`)."""
    for name in "xy":
        owner.put(name, b"old")
    with proxy_to(owner.portal) as proxy, owner.mounted(portal=proxy.url) as files:
        output(["cat", "x", "y"], cwd=files)
        proxy.close()
        output(["sh", "-c", "printf one > x; printf two > y; true"], cwd=files)
        assert [kept.data for kept in owner.pending()] == [b"one", b"two"]
    owner.sandbox.succeed("registry", "drop", "--all")
    assert owner.pending() == []
    assert owner.data("x") == b"old"


class Troubled(Proxy):
    """A proxy that loses what belongs to the posts of entries."""

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self.lose_answers = 0
        self.hold_posts = False
        self.held = threading.Event()
        self.posts = 0
        self._lost: set[socket.socket] = set()

    def _forward(self, source: socket.socket, target: socket.socket, is_request: bool) -> None:
        if is_request:
            self._forward_requests(source, target)
        elif piece := source.recv(1 << 16):
            while piece and source not in self._lost:
                target.sendall(piece)
                piece = source.recv(1 << 16)
            for each in (source, target):
                each.shutdown(socket.SHUT_RDWR)

    def _forward_requests(self, source: socket.socket, target: socket.socket) -> None:
        while piece := source.recv(1 << 16):
            if piece.startswith(b"POST /svc/registry"):
                self.posts += 1
                if self.hold_posts:
                    self.held.set()
                    return
                if self.posts <= self.lose_answers:
                    self._lost.add(target)
            target.sendall(piece)


@pytest.fixture
def troubled(portal: str) -> Iterator[Troubled]:
    """A proxy that gets into trouble when told."""
    proxy = Troubled(portal)
    try:
        proxy.open()
        yield proxy
    finally:
        proxy.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_lost_answers(owner: Owner, troubled: Troubled) -> None:
    """G8: A lost answer is followed by the very same bytes again.

    Then the entry has what was written, in one revision, and the close has succeeded.
    """
    troubled.lose_answers = 2
    with owner.mounted(portal=troubled.url) as files, program(files) as tool:
        assert tool.do("open('x', 'w').write('data')") == "4"
        assert tool.do("open('x').read()") == "'data'"
    assert (owner.data("x"), owner.revision("x")) == (b"data", 0)
    assert troubled.posts == 3
    assert owner.pending() == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_killed_daemon(owner: Owner, troubled: Troubled) -> None:
    """G12: A revision is never signed for two contents, also after a crash."""
    troubled.hold_posts = True
    with (
        owner.sandbox.mounted("--portal", troubled.url) as mount,
        program(mount.path / "registry" / HOME) as tool,
    ):
        tool.begin("open('x', 'w').write('one')")
        assert troubled.held.wait(60)
        mount.daemon.signal(signal.SIGKILL)
        mount.daemon.wait()
    [kept] = owner.pending()
    assert kept.data == b"one"
    assert kept.signed is not None
    assert kept.signed.entry.revision == 0
    with owner.mounted() as files:
        output(["sh", "-c", "printf two > x"], cwd=files)
    assert (owner.data("x"), owner.revision("x")) == (b"two", 1)


# --- portals that lie


@pytest.fixture
def registries() -> Iterator[list[FakeRegistry]]:
    """Two portals that believe whatever they are told."""
    with in_thread(FakePortal()) as one, in_thread(FakePortal()) as two:
        yield [FakeRegistry(one), FakeRegistry(two)]


def complaints(owner: Owner) -> list[str]:
    """Return the lines of the log that say who is not believed."""
    return [line for line in owner.sandbox.log.read_text().splitlines() if "not believed" in line]


def forged(signed: SignedEntry) -> SignedEntry:
    """Return an entry with another content and the same signature."""
    return replace(signed, entry=replace(signed.entry, data=b"forged"))


def test_forged_signature(owner: Owner, registries: list[FakeRegistry]) -> None:
    """G4: Nothing is shown whose owner's signature does not fit: such an answer is EIO unless
    another portal has a better one. The log names portal, key and reason.
    """
    liar, honest = registries
    liar.set(forged(owner.signed("x", b"true", 5)))
    args = ("--portal", honest.portal.url)
    with owner.mounted(portal=liar.portal.url) as files:
        for _ in range(2):
            assert error_of("cat", files / "x") == "Input/output error"
        [line] = complaints(owner)
        assert liar.portal.url in line
        assert owner.pair.public_hex in line
        assert "signature" in line
    honest.set(owner.signed("x", b"true", 5))
    with owner.mounted(*args, portal=liar.portal.url) as files:
        assert read(files / "x") == b"true"


def without_repair(owner: Owner) -> Owner:
    """Return the owner of a mount that sends portals nothing by itself (G18)."""
    return replace(owner, sandbox=owner.sandbox.with_env(SKYMOUNT_SEND_PENDING="false"))


def test_rolled_back(owner: Owner, registries: list[FakeRegistry]) -> None:
    """G4: nor a revision below the highest that this machine has seen of the entry.

    In this mount and in the next one; another portal's later revision is.
    """
    liar, honest = registries
    owner = without_repair(owner)
    liar.set(owner.signed("x", b"new", 7))
    with owner.mounted(portal=liar.portal.url) as files:
        assert read(files / "x") == b"new"
        liar.set(owner.signed("x", b"old", 6))
        for _ in range(2):
            assert error_of("cat", files / "x") == "Input/output error"
        [line] = complaints(owner)
        assert liar.portal.url in line
        assert owner.pair.public_hex in line
        assert "revision 6 is behind revision 7" in line
    honest.set(owner.signed("x", b"newer", 8))
    with owner.mounted("--portal", honest.portal.url, portal=liar.portal.url) as files:
        assert read(files / "x") == b"newer"


def test_owner_sets_a_portal_right(owner: Owner) -> None:
    """G4: A portal that lost what it had is set right by the owner: whole new content, and rm."""
    owner.put("x", b"old")
    owner = without_repair(owner)
    with (
        owner.mounted() as files,
        closing(Ledger.open(owner.sandbox.root / "state/skymount/ledger.sqlite3")) as ledger,
    ):
        ledger.record_seen(owner.signed("x", b"lost", 7), "x")
        assert error_of("cat", files / "x") == "Input/output error"
        output(["sh", "-c", f"printf anew > {files}/x"])
        assert (read(files / "x"), owner.revision("x")) == (b"anew", 8)
        ledger.record_seen(owner.signed("x", b"lost again", 20), "x")
        output(["rm", files / "x"])
        assert error_of("cat", files / "x") == "No such file or directory"
        assert owner.pending() == []


def test_deleted_key_makes_the_tree_read_only(owner: Owner) -> None:
    """G7: A file can be written if the keyring holds the private key, for as long as it does."""
    owner.put("x", b"data")
    with owner.mounted() as files:
        place = files.parent / owner.pair.public_hex / "x"
        assert output(["stat", "-c", "%a", place]) == b"644\n"
        Keyring(owner.sandbox.root / "data/skymount/keys").remove(HOME)
        until(lambda: output(["stat", "-c", "%a", place]) == b"444\n")
        assert error_of("sh", "-c", f"echo x > {place}") == "Permission denied"


def test_a_portal_that_redirects_elsewhere(owner: Owner) -> None:
    """C7: what is posted does not leave its origin. close(2) fails with EIO, another portal's
    skykey is still there, and G12: what could not be posted is kept.
    """
    there = owner.sandbox.with_env(SKYMOUNT_PORTALS=owner.portal)
    there.succeed("skykey", "create", "survivor")
    with in_thread(FakePortal()) as liar, owner.mounted(portal=liar.url) as files:
        liar.fault(redirects(f"{owner.portal}/svc/deleteskykey?name=survivor", 307), "POST")
        with program(files) as tool:
            assert tool.do(REWRITE) == "None"
            assert tool.do("os.write(f, b'data')") == "4"
            assert tool.do("os.close(f)") == "EIO"
    assert "survivor" in there.succeed("skykey", "list")
    assert [kept.data for kept in owner.pending()] == [b"data"]
    said = there.succeed("registry", "pending")
    assert f"redirected (307) from {liar.url} to {owner.portal}" in said
    there.succeed("skykey", "delete", "survivor")
