"""What this machine keeps of registry entries: marks, names, taken revisions and the spool."""

import os
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from skymount.errors import MalformedError, RevisionError, StorageError
from skymount.portal.ledger.ledger import Ledger, default_path
from skymount.portal.ledger.pending_write import PendingStatus
from skymount.portal.ledger.rollback import RevisionMark
from skymount.portal.ledger.seen_ledger import ListedEntry
from skymount.wire.registry_entry import DELETED, MAX_REVISION, Entry, hash_data_key
from tests.mount.namespaces import Namespace, new_namespace
from tests.portal.ledger.entries import KEY, OTHER, TWEAK, signed
from tests.portal_process import portal_environment


class Clock:
    """A time of day that stands still."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "ledger.sqlite3"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    opened = Ledger.open(path, Clock())
    yield opened
    opened.close()


# marks and names


def test_nothing_is_known_at_first(ledger: Ledger):
    """A new ledger is empty."""
    assert ledger.mark_of(KEY, TWEAK) is None
    assert ledger.highest_revision(KEY, TWEAK) is None
    assert ledger.public_keys() == []
    assert ledger.listed_entries(KEY) == []
    assert ledger.pending() == []
    assert ledger.get(1) is None
    assert not ledger.drop(1)
    assert not ledger.begin_retry(1)
    assert ledger.mark_posted(1) is None
    ledger.mark_failed(1, "no such thing")
    assert not ledger.forget(KEY, TWEAK)


def test_mark_survives_a_restart(path: Path):
    """G4: the highest revision seen is kept on disk."""
    one = Ledger.open(path, Clock())
    mark = one.record_seen(signed(revision=7), "a")
    one.close()
    two = Ledger.open(path)
    assert two.mark_of(KEY, TWEAK) == mark == RevisionMark(7, signed(revision=7).entry.work, 1000.0)
    assert two.highest_revision(KEY, TWEAK) == 7
    assert two.record_seen(signed(b"old", 6), "a") == mark
    assert two.listed_entries(KEY) == [ListedEntry("a", TWEAK)]
    two.close()


def test_noting_the_same_writes_nothing(ledger: Ledger, path: Path):
    """Reading an entry again and again does not touch the disk."""
    ledger.record_seen(signed(), "a")
    before = [
        (file.name, file.stat().st_size, file.stat().st_mtime_ns)
        for file in sorted(path.parent.iterdir())
        if not file.name.endswith("-shm")
    ]
    for _ in range(10):
        ledger.record_seen(signed(), "a")
        ledger.record_seen(signed(), None)
    after = [
        (file.name, file.stat().st_size, file.stat().st_mtime_ns)
        for file in sorted(path.parent.iterdir())
        if not file.name.endswith("-shm")
    ]
    assert after == before


def test_names_are_listed_until_forgotten(ledger: Ledger):
    """G6: a listing shows what is known on this machine; forgetting keeps the mark."""
    ledger.record_seen(signed(), None)
    assert ledger.listed_entries(KEY) == [ListedEntry(None, TWEAK)]
    ledger.record_seen(signed(), "a")
    assert ledger.listed_entries(KEY) == [ListedEntry("a", TWEAK)]
    ledger.record_seen(signed(revision=1), None)
    assert ledger.listed_entries(KEY) == [ListedEntry("a", TWEAK)]
    ledger.record_seen(Entry(TWEAK, b"", 0).sign(OTHER.private_key), "a")
    assert ledger.public_keys() == sorted([KEY, OTHER.public_key])
    assert ledger.forget(KEY, TWEAK)
    assert not ledger.forget(KEY, TWEAK)
    assert ledger.public_keys() == [OTHER.public_key]
    assert ledger.listed_entries(KEY) == []
    assert ledger.mark_of(KEY, TWEAK) == RevisionMark(1, signed(revision=1).entry.work, 1000.0)
    ledger.record_seen(signed(revision=1), "a")
    assert ledger.listed_entries(KEY) == [ListedEntry("a", TWEAK)]


def test_deleted_entries_are_not_listed(ledger: Ledger):
    """A deletion takes the name away, new content brings it back."""
    ledger.record_seen(signed(), "a")
    ledger.record_seen(signed(DELETED, 1), "a")
    assert ledger.listed_entries(KEY) == []
    assert ledger.public_keys() == []
    ledger.record_seen(signed(), "a")  # rolled back: it does not count
    assert ledger.listed_entries(KEY) == []
    ledger.record_seen(signed(revision=2), "a")
    assert ledger.listed_entries(KEY) == [ListedEntry("a", TWEAK)]


def test_unnamed_entries_are_not_listed(ledger: Ledger):
    """What came in a proof raises the mark alone."""
    ledger.record_seen(signed(revision=3), None, named=False)
    assert ledger.listed_entries(KEY) == []
    assert ledger.highest_revision(KEY, TWEAK) == 3


@settings(max_examples=50, deadline=None)
@given(
    key=st.text(st.characters(exclude_categories=["Cs"])),
    data=st.binary(max_size=113),
    revision=st.integers(0, MAX_REVISION),
    kind=st.sampled_from([1, 2]),
    reason=st.text(),
)
def test_every_field_comes_back(
    key: str, data: bytes, revision: int, kind: int, reason: str, tmp_path_factory: object
):
    """Whatever an entry holds, it is the same after a restart."""
    assume(hash_data_key(key) != TWEAK)  # one entry has one place in the spool
    if kind == 2:
        data = data.ljust(20, b"h")
    assert isinstance(tmp_path_factory, pytest.TempPathFactory)
    path = tmp_path_factory.mktemp("fields") / "l"
    made = signed(data, revision, tweak=hash_data_key(key), kind=kind)
    ledger = Ledger.open(path, Clock())
    number = ledger.claim_revision(made, key)
    ledger.mark_failed(number, reason)
    held = ledger.add_unsigned(KEY, TWEAK, None, data, reason, revision)
    ledger.close()
    ledger = Ledger.open(path, Clock())
    first, second = ledger.pending()
    assert (first.id, first.public_key, first.tweak) == (number, KEY, made.entry.tweak)
    assert (first.data_key, first.data, first.signed) == (key, data, made)
    assert (first.base, first.created, first.is_posting) == (None, 1000.0, False)
    assert first.reason == second.reason
    assert first.reason.isprintable()
    assert (second.id, second.tweak, second.data_key) == (held, TWEAK, None)
    assert (second.data, second.signed, second.base) == (data, None, revision)
    assert ledger.get(number) == first
    assert ledger.highest_revision(KEY, made.entry.tweak) == revision
    assert ledger.mark_posted(number) == RevisionMark(revision, made.entry.work, 1000.0)
    assert ledger.listed_entries(KEY) == (
        [] if data == DELETED else [ListedEntry(key, made.entry.tweak)]
    )
    ledger.close()


def test_data_key_must_be_text(ledger: Ledger):
    """A name that cannot be UTF-8 is the caller's mistake."""
    with pytest.raises(MalformedError):
        ledger.record_seen(signed(), "\ud800")


# the spool


def test_revision_is_taken_once(ledger: Ledger):
    """G12: a revision that was claimed or seen is never claimed again, nor a lower one."""
    ledger.claim_revision(signed(b"one", 5), "a")
    for revision in (5, 4, 0):
        with pytest.raises(RevisionError):
            ledger.claim_revision(signed(b"two", revision), "a")
    assert ledger.highest_revision(KEY, TWEAK) == 5
    assert ledger.mark_of(KEY, TWEAK) is None
    ledger.record_seen(signed(b"else", 9), "a")
    with pytest.raises(RevisionError):
        ledger.claim_revision(signed(b"two", 9), "a")
    ledger.claim_revision(signed(b"two", 10), "a")


def test_dropped_revision_stays_taken(ledger: Ledger):
    """G12: what is dropped may have been posted all the same."""
    number = ledger.claim_revision(signed(b"one", 5), "a")
    assert ledger.drop(number)
    assert ledger.pending() == []
    assert ledger.highest_revision(KEY, TWEAK) == 5
    assert ledger.mark_posted(number) is None


def test_what_was_posted_leaves_the_spool(ledger: Ledger):
    """Settling raises the mark, names the entry and takes out the same content of earlier tries."""
    ledger.add_unsigned(KEY, TWEAK, "a", b"x", "no portal")
    failed = ledger.claim_revision(signed(b"x", 1), "a")
    assert [each.id for each in ledger.pending()] == [failed]
    ledger.mark_failed(failed, "down")
    other = ledger.add_unsigned(KEY, TWEAK, "a", b"y", "no portal")
    number = ledger.claim_revision(signed(b"x", 2), "a")
    assert [each.id for each in ledger.pending()] == [other, number]
    assert ledger.mark_posted(number) == ledger.mark_of(KEY, TWEAK)
    assert [each.id for each in ledger.pending()] == [other]
    assert ledger.listed_entries(KEY) == [ListedEntry("a", TWEAK)]


def test_what_turns_up_at_a_portal_leaves_the_spool(ledger: Ledger):
    """The answer to a post was lost, and the entry is seen later: it is not pending any more."""
    number = ledger.claim_revision(signed(b"x", 1), "a")
    ledger.mark_failed(number, "no answer")
    ledger.record_seen(signed(b"y", 0), "a")
    assert len(ledger.pending()) == 1
    ledger.record_seen(signed(b"x", 1), "a")
    assert ledger.pending() == []


def test_a_claim_replaces_one(ledger: Ledger):
    """The next try of the same change takes the place of the one that was refused."""
    first = ledger.claim_revision(signed(b"x", 1), "a")
    assert ledger.claim_revision(signed(b"x", 2), "a", replaces=first) == first
    (left,) = ledger.pending()
    assert (left.id, left.signed) == (first, signed(b"x", 2))
    ledger.drop(first)
    ledger.claim_revision(signed(b"x", 3), "a", replaces=first)
    assert len(ledger.pending()) == 1


def test_held_content_is_kept_once(ledger: Ledger):
    """The same content that fails again and again is listed once, with the last reason."""
    ledger.record_seen(signed(revision=4), "a")
    for reason in ("first", "second"):
        ledger.add_unsigned(KEY, TWEAK, "a", b"x", reason)
    (held,) = ledger.pending()
    assert (held.reason, held.base, held.data) == ("second", 4, b"x")
    ledger.add_unsigned(KEY, TWEAK, "a", b"y", "other")
    assert len(ledger.pending()) == 2
    absent = ledger.add_unsigned(OTHER.public_key, TWEAK, "a", b"x", "absent")
    found = ledger.get(absent)
    assert found is not None
    assert found.base == -1


def test_posting_is_by_a_process_that_lives(path: Path):
    """What a process that died was posting is not being posted any more."""
    code = (
        "import sys; from pathlib import Path; from skymount.portal.ledger.ledger import Ledger\n"
        "from tests.portal.ledger.entries import signed\n"
        "ledger = Ledger.open(Path(sys.argv[1]))\n"
        "ledger.claim_revision(signed(), 'a')\n"
        "print(ledger.pending()[0].is_posting, flush=True); sys.stdin.read()\n"
    )
    child = start(code, path)
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stdout.readline() == "True\n"
    ledger = Ledger.open(path)
    assert ledger.pending()[0].is_posting
    child.kill()
    child.communicate()
    (left,) = ledger.pending()
    assert not left.is_posting
    assert "interrupted" in left.reason
    assert ledger.begin_retry(left.id)
    assert ledger.pending()[0].is_posting
    assert ledger.begin_retry(left.id)
    ledger.close()


def test_one_process_takes_on_what_waits(path: Path):
    """G12: by one of the mounts: what another one has taken on is left to it, until it dies."""
    ledger = Ledger.open(path)
    number = ledger.add_unsigned(KEY, TWEAK, "a", b"x", "no portal", status=PendingStatus.WAITING)
    code = (
        "import sys; from pathlib import Path; from skymount.portal.ledger.ledger import Ledger\n"
        "ledger = Ledger(Path(sys.argv[1]))\n"
        "print(ledger.begin_retry(int(sys.argv[2])), flush=True); sys.stdin.read()\n"
    )
    child = start(code, path, str(number))
    assert child.stdout is not None
    assert child.stdout.readline() == "True\n"
    assert not ledger.begin_retry(number)
    child.kill()
    child.communicate()
    assert ledger.begin_retry(number)
    ledger.close()


_FIRST_SPOOL = """
CREATE TABLE spool (id INTEGER PRIMARY KEY AUTOINCREMENT, public_key BLOB NOT NULL,
tweak BLOB NOT NULL, data_key BLOB, data BLOB NOT NULL, base BLOB, revision BLOB, kind INTEGER,
signature BLOB, reason TEXT NOT NULL, created REAL NOT NULL, poster TEXT);
"""


def test_ledger_of_the_first_version_is_kept(path: Path):
    """What an earlier skymount has kept is kept; it is sent when somebody says so."""
    ledger = Ledger.open(path)
    ledger.record_seen(signed(revision=7), "a")
    number = ledger.claim_revision(signed(b"kept", 8), "a")
    ledger.close()
    with sqlite3.connect(path) as database:
        names = [row[1] for row in database.execute("PRAGMA table_info(spool)")][:12]
        database.execute("ALTER TABLE spool RENAME TO newer")
        database.executescript(_FIRST_SPOOL)
        database.execute(f"INSERT INTO spool SELECT {', '.join(names)} FROM newer")
        database.executescript("DROP TABLE newer; DROP TABLE owed; PRAGMA user_version = 1")
        for column in ("data", "kind", "signature"):
            database.execute(f"ALTER TABLE entries DROP COLUMN {column}")
    database.close()
    for _ in range(2):
        ledger = Ledger.open(path)
        (kept,) = ledger.pending()
        assert (kept.id, kept.data, kept.portals, kept.status) == (
            number,
            b"kept",
            (),
            PendingStatus.FAILED,
        )
        assert ledger.highest_revision(KEY, TWEAK) == 8
        ledger.close()


def test_mark_is_forgotten_and_its_revision_stays_taken(ledger: Ledger):
    """G4: an older entry is believed again. G12: no revision up to the mark is signed."""
    ledger.claim_revision(signed(b"mine", 4), "a")
    ledger.record_seen(signed(b"theirs", 6), "a")
    assert ledger.forget(KEY, TWEAK, seen=True)
    assert ledger.mark_of(KEY, TWEAK) is None
    assert ledger.highest_revision(KEY, TWEAK) == 6
    assert not ledger.forget(KEY, TWEAK, seen=True)
    ledger.record_seen(signed(b"old", 2), "a")
    ledger.forget(KEY, TWEAK, seen=True)
    assert ledger.highest_revision(KEY, TWEAK) == 6


def test_entry_of_a_link_is_found(ledger: Ledger):
    """Of every entry that was seen, listed or not."""
    ledger.record_seen(signed(), "a", named=False)
    assert ledger.find_entry(signed().link) == (KEY, TWEAK)
    assert ledger.find_entry(signed(tweak=bytes(32)).link) is None


_READING = """
import sys
from pathlib import Path
from skymount.errors import StorageError
from skymount.portal.ledger.ledger import Ledger
from tests.portal.ledger.entries import KEY, TWEAK, signed
ledger = Ledger(Path(sys.argv[1]))
seen = ledger.mark_of(KEY, TWEAK)
print(seen and seen.revision, len(ledger.pending()), ledger.public_keys() == [KEY])
try:
    ledger.record_seen(signed(b"later", 9), "a")
except StorageError as error:
    print("not written")
"""
_KEEPING = """
import os, sys
from pathlib import Path
from skymount.portal.ledger.ledger import Ledger
from tests.portal.ledger.entries import signed
ledger = Ledger(Path(sys.argv[1]))
ledger.record_seen(signed(b"first", 3), "a")
ledger.claim_revision(signed(b"kept", 4), "a")
print("kept", flush=True)
os._exit(0) if sys.argv[2] == "killed" else ledger.close()
"""


@pytest.mark.parametrize("end", ["closed", "killed"])
@pytest.mark.parametrize("trouble", ["full", "read-only"])
def test_reading_needs_no_write(tmp_path: Path, trouble: str, end: str):
    """G4: Reading needs no room on the ledger's disk, nor that anything can be written there.

    Also by a process that opens it then, whether the last one closed it or was killed.
    """
    place = tmp_path / "disk"
    place.mkdir()
    path = place / "state/ledger.sqlite3"
    with new_namespace(network=False) as namespace:
        namespace.do("mount", "-t", "tmpfs", "-o", "size=1m", "none", place)
        run = partial(python_in, namespace)
        assert run(_READING, path).splitlines()[0] == "None 0 False"
        namespace.do("rm", "-rf", place / "state")
        if trouble == "full":
            assert "No space" in namespace.run("dd", "if=/dev/zero", f"of={place}/fill").stderr
            assert run(_READING, path) == "None 0 False\nnot written\n"
            namespace.do("rm", "-rf", place / "fill", place / "state")
        run(_KEEPING, path, end)
        if trouble == "full":
            assert "No space" in namespace.run("dd", "if=/dev/zero", f"of={place}/fill").stderr
        else:
            namespace.do("mount", "-o", "remount,ro", place)
        found = run(_READING, path)
        # The journal of a process that was killed may have room for what is written next.
        has_room = (trouble, end) == ("full", "killed") and "not written" not in found
        assert found == ("3 1 True\n" if has_room else "3 1 True\nnot written\n")
        if trouble == "full":
            namespace.do("rm", place / "fill")
        else:
            namespace.do("mount", "-o", "remount,rw", place)
        if not has_room:
            assert run(_READING, path) == "3 1 True\n"
        assert run(_READING, path) == "9 1 True\n"


def python_in(namespace: Namespace, code: str, *args: str | Path) -> str:
    """Run Python code in a name space; return what it prints."""
    environment = portal_environment()
    root = Path(__file__).resolve().parents[3]
    path = f"PYTHONPATH={environment['PYTHONPATH']}{os.pathsep}{root}"
    return namespace.do("env", path, sys.executable, "-c", code, *args)


def start(code: str, *args: str | Path) -> "subprocess.Popen[str]":
    root = str(Path(__file__).resolve().parents[3])
    environment = portal_environment()
    environment["PYTHONPATH"] = os.pathsep.join([environment["PYTHONPATH"], root])
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


_CLAIMING = """
import sys
from pathlib import Path
from skymount.errors import RevisionError
from skymount.portal.ledger.ledger import Ledger
from tests.portal.ledger.entries import KEY, TWEAK, signed
name, count = sys.argv[2], int(sys.argv[3])
ledger = Ledger.open(Path(sys.argv[1]))
print("ready", flush=True)
for n in range(count):
    while True:
        highest = ledger.highest_revision(KEY, TWEAK)
        made = signed(f"{name} {n}".encode(), 0 if highest is None else highest + 1)
        try:
            number = ledger.claim_revision(made, "a")
            break
        except RevisionError:
            pass
    print(number, made.entry.revision, made.entry.data.decode(), flush=True)
    if n % 3 == 0:
        ledger.mark_posted(number)
        print("settled", number, flush=True)
"""


@pytest.mark.parametrize("lines", [1, 2, 3, 10, 25])
def test_nothing_that_was_said_is_lost_by_a_kill(path: Path, lines: int):
    """G12: kill -9 at any moment: what was claimed is there, and its revision taken."""
    child = start(_CLAIMING, path, "killed", "100000")
    assert child.stdout is not None
    said = [child.stdout.readline().split() for _ in range(lines)]
    child.send_signal(signal.SIGKILL)
    with child:  # `communicate` would lose what `readline` has buffered
        rest = child.stdout.readlines()
    said += [line.split() for line in rest if line.endswith("\n")]  # one may be cut off
    said = [words for words in said if words and words[0] != "ready"]
    settled = {words[1] for words in said if words[0] == "settled"}
    claimed = {
        words[0]: (int(words[1]), " ".join(words[2:])) for words in said if words[0] != "settled"
    }
    ledger = Ledger.open(path)
    pending = {str(each.id): each for each in ledger.pending()}
    for number, (revision, data) in claimed.items():
        if number in settled:
            assert number not in pending
        elif number in pending:
            found = pending[number].signed
            assert found is not None
            assert (found.entry.revision, found.entry.data.decode()) == (revision, data)
        else:  # settled, and killed before it said so
            assert number == list(claimed)[-1]
    highest = ledger.highest_revision(KEY, TWEAK)
    if claimed:
        assert highest is not None
        assert max(revision for revision, _ in claimed.values()) <= highest
    assert not any(each.is_posting for each in pending.values())
    ledger.claim_revision(signed(b"next", 0 if highest is None else highest + 1), "a")
    ledger.close()


def test_two_processes_never_take_the_same_revision(path: Path):
    """G12: several mounts and commands share the ledger."""
    children = [start(_CLAIMING, path, name, "60") for name in ("one", "two", "three")]
    revisions: list[int] = []
    for child in children:
        out, _ = child.communicate()
        assert child.returncode == 0
        lines = [line.split() for line in out.splitlines()]
        claims = [words for words in lines if words[0] not in ("ready", "settled")]
        assert len(claims) == 60
        revisions += [int(words[1]) for words in claims]
    assert sorted(revisions) == list(range(180))
    ledger = Ledger.open(path)
    assert len(ledger.pending()) == 3 * 40
    ledger.close()


def test_threads_share_a_ledger(ledger: Ledger):
    """Any thread may call at any time."""
    taken: list[int] = []

    def work(name: str) -> None:
        for n in range(20):
            while True:
                highest = ledger.highest_revision(KEY, TWEAK)
                made = signed(f"{name}{n}".encode(), 0 if highest is None else highest + 1)
                try:
                    ledger.mark_posted(ledger.claim_revision(made, "a"))
                    break
                except RevisionError:
                    pass
            taken.append(made.entry.revision)

    threads = [threading.Thread(target=work, args=(str(n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(80))
    assert ledger.pending() == []


# the file


def test_path_is_in_the_state_directory(monkeypatch: pytest.MonkeyPatch):
    """$XDG_STATE_HOME is honoured."""
    monkeypatch.setenv("XDG_STATE_HOME", "/somewhere")
    assert default_path() == Path("/somewhere/skymount/ledger.sqlite3")


def test_nobody_else_may_look(path: Path):
    """The directory is 0700, all files are 0600, whatever the umask."""
    before = os.umask(0)
    try:
        ledger = Ledger.open(path)
        ledger.record_seen(signed(), "a")
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert {file.name for file in path.parent.iterdir()} == {
            *(path.name, f"{path.name}-wal", f"{path.name}-shm")
        }
        assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {0o600}
        ledger.close()
    finally:
        os.umask(before)


def test_a_maker_that_died_is_no_obstacle(path: Path):
    """What it left is cleared away; so is the log of a ledger that somebody removed."""
    path.parent.mkdir()
    for suffix in (".new", ".new-wal", ".new-journal", "-wal", "-shm"):
        Path(f"{path}{suffix}").write_bytes(b"left" * 2000)
    ledger = Ledger.open(path)
    ledger.record_seen(signed(), "a")
    ledger.close()
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_removed_ledger_leaves_no_old_log(path: Path):
    """A log without its database is not played into the new one."""
    one = Ledger.open(path)
    one.record_seen(signed(revision=5), "a")
    path.unlink()
    two = Ledger.open(path)
    assert two.mark_of(KEY, TWEAK) is None
    two.close()
    one.close()


def execute(path: Path, statement: str, values: tuple[object, ...] = ()) -> None:
    """Change a database behind the ledger's back."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(statement, values)


def _damage(path: Path, how: str) -> None:
    raw = path.read_bytes()
    if how == "empty":
        path.write_bytes(b"")
    elif how == "text":
        path.write_bytes(b"not a database\n" * 500)
    elif how == "header":
        path.write_bytes(b"\xff" * 100 + raw[100:])
    elif how == "truncated":
        path.write_bytes(raw[:5000])
    elif how == "pages":
        path.write_bytes(raw[:4096] + b"\xa5" * (len(raw) - 4096))


@pytest.mark.parametrize("how", ["empty", "text", "header", "truncated", "pages"])
def test_damaged_ledger_is_refused(path: Path, how: str):
    """G12: what it knew is not given up in silence: the error names the file, which stays."""
    ledger = Ledger.open(path)
    for n in range(200):
        ledger.record_seen(signed(revision=n, tweak=hash_data_key(str(n))), str(n))
    ledger.close()
    _damage(path, how)
    damaged = path.read_bytes()
    with pytest.raises(StorageError, match=str(path)):
        use_all(path)
    assert path.read_bytes() == damaged


def use_all(path: Path) -> None:
    """Open a ledger and read all that is in it."""
    ledger = Ledger.open(path)
    try:
        for name in ledger.listed_entries(KEY):
            ledger.mark_of(KEY, name.tweak)
        for n in range(200):
            ledger.mark_of(KEY, hash_data_key(str(n)))
        ledger.pending()
    finally:
        ledger.close()


@pytest.mark.parametrize(
    ("column", "value"),
    [("seen", b"1"), ("seen", b"123456789"), ("seen", 5), ("digest", None), ("at", "soon")],
)
def test_damaged_mark_is_refused(path: Path, column: str, value: object):
    """A mark that is not what was written is no mark, and its absence is not believed either."""
    ledger = Ledger.open(path)
    ledger.record_seen(signed(), "a")
    execute(path, f"UPDATE entries SET {column} = ?", (value,))
    with pytest.raises(StorageError, match=str(path)):
        ledger.mark_of(KEY, TWEAK)
    with pytest.raises(StorageError, match=str(path)):
        ledger.record_seen(signed(revision=1), "a")
    ledger.close()


def test_damaged_spool_is_refused(path: Path):
    """What does not fit its signature is not sent."""
    ledger = Ledger.open(path)
    ledger.claim_revision(signed(b"x"), "a")
    execute(path, "UPDATE spool SET data = ?", (b"y",))
    with pytest.raises(StorageError, match=str(path)):
        ledger.pending()
    assert ledger.drop(1)
    ledger.close()


def test_newer_version_is_refused(path: Path):
    """A ledger that a newer skymount made is left alone."""
    Ledger.open(path).close()
    execute(path, "PRAGMA user_version = 5")
    with pytest.raises(StorageError, match="version 5"):
        Ledger.open(path)


def test_other_databases_are_refused(path: Path):
    """A database of another program is not changed."""
    path.parent.mkdir()
    execute(path, "CREATE TABLE mine (x)")
    with pytest.raises(StorageError, match="not made by skymount"):
        Ledger.open(path)


def test_directory_that_cannot_be_made(tmp_path: Path):
    """The error names the ledger."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="ledger"):
        Ledger.open(tmp_path / "file" / "ledger.sqlite3")


def test_closed_ledger_says_so(path: Path):
    """Using it after its end is a StorageError too."""
    ledger = Ledger.open(path)
    ledger.close()
    ledger.close()
    with pytest.raises(StorageError):
        ledger.mark_of(KEY, TWEAK)


_FULL = """
import os, sys
from pathlib import Path
from skymount.errors import StorageError
from skymount.portal.ledger.ledger import Ledger
from tests.portal.ledger.entries import KEY, TWEAK, signed
from skymount.wire.registry_entry import hash_data_key
path = Path(sys.argv[1])
ledger = Ledger.open(path)
first = ledger.claim_revision(signed(b"kept", 0), "a")
with open(path.parent / "filler", "wb", 0) as file:
    try:
        while True:
            file.write(bytes(4096))
    except OSError:
        pass
claims = 0
try:
    for n in range(10000):
        ledger.claim_revision(signed(bytes(100), 0, tweak=hash_data_key(str(n))), str(n))
        claims += 1
except StorageError as error:
    assert str(path) in str(error), error
    print("full", error)
assert ledger.pending()[0].data == b"kept"
assert len(ledger.pending()) == claims + 1
assert ledger.highest_revision(KEY, hash_data_key(str(claims))) is None
assert ledger.highest_revision(KEY, TWEAK) == 0
(path.parent / "filler").unlink()
ledger.mark_posted(first)
ledger.claim_revision(signed(b"more", 1), "a")
ledger.close()
"""


def test_full_disk_is_said_and_harms_nothing(tmp_path: Path):
    """G12: a claim that is not on disk is none; reading goes on; afterwards all is well."""
    with new_namespace(network=False) as space:
        space.do("mount", "-t", "tmpfs", "-o", "size=400k", "none", tmp_path)
        root = Path(__file__).resolve().parents[3]
        code = f"import sys; sys.path[:0] = [{str(root)!r}, {str(root / 'src')!r}]\n{_FULL}"
        assert space.python(code, tmp_path / "ledger.sqlite3").startswith("full")


def test_write_error_is_said(path: Path):
    """A limit on the size of files is an error as well, and the ledger is usable after it."""
    ledger = Ledger.open(path)
    number = ledger.claim_revision(signed(b"kept", 0), "a")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    log = Path(f"{path}-wal")
    resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size, hard))
    try:
        with pytest.raises(StorageError, match=str(path)):
            ledger.claim_revision(signed(b"more", 1), "a")
        assert ledger.highest_revision(KEY, TWEAK) == 0
        assert [each.id for each in ledger.pending()] == [number]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    ledger.claim_revision(signed(b"more", 1), "a")
    ledger.close()


def test_many_entries_are_found_by_their_index(path: Path):
    """However many entries there are, no question but a listing looks at all of them."""
    ledger = Ledger.open(path)
    ledger.close()
    with sqlite3.connect(path) as database:
        plans = [
            " ".join(row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {query}", values))
            for query, values in [
                ("SELECT seen FROM entries WHERE public_key = ? AND tweak = ?", (KEY, TWEAK)),
                ("SELECT tweak FROM entries WHERE public_key = ? AND named", (KEY,)),
                ("SELECT id FROM spool WHERE public_key = ? AND tweak = ?", (KEY, TWEAK)),
            ]
        ]
    database.close()
    assert all(plan.startswith("SEARCH") for plan in plans)
