"""The file of a ledger: who may use it, other versions of it, and damaged ones."""

import os
import resource
import sqlite3
import sys
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from skymount.errors import StorageError
from skymount.portal.ledger import ledger as ledger_module
from skymount.portal.ledger.ledger import Ledger, default_path
from skymount.wire.registry_entry import hash_data_key
from tests.mount.namespaces import Namespace, new_namespace
from tests.portal.ledger.entries import KEY, PAIR, TWEAK, owed, signed, unsent
from tests.portal.ledger.processes import start
from tests.portal.ledger.test_outbox import REF, ref
from tests.portal_process import portal_environment

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
from tests.portal.ledger.entries import PAIR, signed
from tests.portal.ledger.test_outbox import A, REF
ledger = Ledger(Path(sys.argv[1]))
ledger.record_seen(signed(b"first", 3), "a")
ledger.claim(REF, PAIR, b"kept", 3, [A])
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
            namespace.do("mount", "-o", "remount,bind,ro", place)
        found = run(_READING, path)
        # The journal of a process that was killed may have room for what is written next.
        has_room = (trouble, end) == ("full", "killed") and "not written" not in found
        assert found == ("3 1 True\n" if has_room else "3 1 True\nnot written\n")
        if trouble == "full":
            namespace.do("rm", place / "fill")
        else:
            namespace.do("mount", "-o", "remount,bind,rw", place)
        if not has_room:
            assert run(_READING, path) == "3 1 True\n"
        assert run(_READING, path) == "9 1 True\n"


def python_in(namespace: Namespace, code: str, *args: str | Path) -> str:
    """Run Python code in a name space; return what it prints."""
    environment = portal_environment()
    root = Path(__file__).resolve().parents[3]
    path = f"PYTHONPATH={environment['PYTHONPATH']}{os.pathsep}{root}"
    return namespace.do("env", path, sys.executable, "-c", code, *args)


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
    with pytest.raises(StorageError, match=rf"{path}.*: restore it from a backup, as"):
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


def test_since_when_a_name_leads_somewhere(path: Path):
    """S7: Rounded up, kept, one later with each change, also when the clock goes back."""
    now = 1000.25
    ledger = Ledger.open(path, clock=lambda: now)
    assert ledger.name_since("hns/a", "one") == 1001
    now = 2000.0
    assert ledger.name_since("hns/a", "one") == 1001
    assert ledger.name_since("hns/b", "one") == 2000
    assert ledger.name_since("hns/a", "two") == 2000
    assert ledger.name_since("hns/a", "three") == 2001
    now = 5.0
    assert ledger.name_since("hns/a", "one") == 2002
    ledger.close()
    with closing(Ledger(path)) as again:
        assert again.name_since("hns/a", "one") == 2002


def test_names_are_forgotten_in_the_order_of_their_changes(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ledger_module, "_NAMES_LIMIT", 3)
    now = 0.0
    with closing(Ledger.open(path, clock=lambda: now)) as ledger:
        for number in range(5):
            now += 10
            ledger.name_since(f"hns/{number}", "one")
        now = 5.0
        found = [ledger.name_since(f"hns/{number}", "one") for number in (4, 3, 2)]
        assert found == [50, 40, 30]
        assert ledger.name_since("hns/0", "one") == 5
        assert ledger.name_since("hns/0", "two") == 6


@pytest.mark.parametrize("version", [4, 7])
def test_another_version_is_refused(path: Path, version: int):
    """G12: the error names the file and says what to do; what is pending there stays."""
    with closing(Ledger.open(path)) as ledger:
        ledger.claim(REF, PAIR, b"kept", 7)
    execute(path, f"PRAGMA user_version = {version}")
    before = path.read_bytes()
    for use in (Ledger.open, lambda path: Ledger(path).pending()):
        with pytest.raises(StorageError) as caught:
            use(path)
        said = str(caught.value)
        assert str(path) in said
        assert f"of version {version}," in said
        assert said.endswith("(`skymount registry retry`), then move this file away")
    assert path.read_bytes() == before


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
import sys
from pathlib import Path
from skymount.errors import StorageError
from skymount.portal.ledger.ledger import Ledger
from tests.portal.ledger.entries import KEY, PAIR, TWEAK, unsent
from tests.portal.ledger.test_outbox import A, REF, ref
path = Path(sys.argv[1])
ledger = Ledger.open(path)
first = ledger.claim(REF, PAIR, b"kept", -1, [A])
with open(path.parent / "filler", "wb", 0) as file:
    try:
        while True:
            file.write(bytes(4096))
    except OSError:
        pass
claims = 0
try:
    for n in range(10000):
        ledger.claim(ref(str(n)), PAIR, bytes(100), -1, [A])
        claims += 1
except StorageError as error:
    assert str(path) in str(error), error
    print("full", error)
assert ledger.pending()[0].data == b"kept"
assert len(ledger.pending()) == claims + 1
assert ledger.highest_revision(*ref(str(claims)).key) is None
assert ledger.highest_revision(KEY, TWEAK) == 0
(path.parent / "filler").unlink()
ledger.took(first, "a", [A], {}, {})
ledger.claim(REF, PAIR, b"more", -1, [A])
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
    number = ledger.claim(REF, PAIR, b"kept", -1).id
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    log = Path(f"{path}-wal")
    resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size, hard))
    try:
        with pytest.raises(StorageError, match=str(path)):
            ledger.claim(REF, PAIR, b"more", -1)
        assert ledger.highest_revision(KEY, TWEAK) == 0
        assert [each.id for each in ledger.pending()] == [number]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert ledger.claim(REF, PAIR, b"more", -1).signed.entry.revision == 1
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
                ("SELECT id FROM outbox WHERE public_key = ? AND tweak = ?", (KEY, TWEAK)),
                ("SELECT id FROM outbox WHERE id = ?", (1,)),
                ("SELECT id FROM outbox WHERE portal = ? AND needs_content = 0", ("http://a",)),
            ]
        ]
    database.close()
    assert all(plan.startswith("SEARCH") for plan in plans)


# --- a ledger of the version before

_OF_BEFORE = """
CREATE TABLE entries (
    public_key BLOB NOT NULL, tweak BLOB NOT NULL, data_key BLOB,
    named INTEGER NOT NULL DEFAULT 0, seen BLOB, digest BLOB, at REAL, claimed BLOB, data BLOB,
    kind INTEGER, signature BLOB, PRIMARY KEY (public_key, tweak)
) WITHOUT ROWID;
CREATE TABLE spool (
    id INTEGER PRIMARY KEY AUTOINCREMENT, public_key BLOB NOT NULL, tweak BLOB NOT NULL,
    data_key BLOB, data BLOB NOT NULL, base BLOB, revision BLOB, kind INTEGER, signature BLOB,
    reason TEXT NOT NULL, created REAL NOT NULL, poster TEXT, portals TEXT NOT NULL DEFAULT '',
    fate TEXT NOT NULL DEFAULT 'failed', lacking TEXT NOT NULL DEFAULT ''
);
CREATE INDEX spool_of ON spool (public_key, tweak);
CREATE TABLE owed (
    id INTEGER PRIMARY KEY AUTOINCREMENT, portal TEXT NOT NULL, public_key BLOB NOT NULL,
    tweak BLOB NOT NULL, data_key BLOB, revision BLOB NOT NULL, kind INTEGER NOT NULL,
    data BLOB NOT NULL, signature BLOB NOT NULL, with_content INTEGER NOT NULL,
    since REAL NOT NULL, attempts INTEGER NOT NULL, next_at REAL NOT NULL, reason TEXT NOT NULL,
    poster TEXT, own INTEGER NOT NULL DEFAULT 0, UNIQUE (public_key, tweak, portal)
);
CREATE INDEX owed_to ON owed (portal, since);
CREATE TABLE name_versions (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, target TEXT NOT NULL, since INTEGER NOT NULL
);
PRAGMA application_id = 0x736B796C;
PRAGMA user_version = 5;
"""
_HAVING_IT_OPEN = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1])
print(*database.execute("SELECT count(*) FROM spool").fetchone(), flush=True)
sys.stdin.read()
"""


def of_before(path: Path) -> None:
    """Make a ledger as the version before wrote it."""
    path.parent.mkdir()
    four, seven = (number.to_bytes(8, "big") for number in (4, 7))
    made, mine = signed(b"mine", 7), signed(b"own", 4, tweak=ref("b").tweak)
    key, other = (KEY, TWEAK, b"a"), (KEY, ref("b").tweak, b"b")
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA journal_mode = WAL")
        database.executescript(_OF_BEFORE)
        entry = (*key, 1, four, signed(b"seen", 4).entry.work, 5.0, seven, b"seen", 1)
        values = (*entry, signed(b"seen", 4).signature)
        database.execute(f"INSERT INTO entries VALUES ({', '.join('?' * 11)})", values)
        database.execute("INSERT INTO name_versions VALUES (1, 'hns/a', 'one', 1001)")
        unsigned = (None, None, None)
        for values in [
            (1, *key, b"edit", four, *unsigned, "changed", 1.0, None, "http://a", "conflict", ""),
            (2, *key, b"older", b"", *unsigned, "down", 2.0, None, "http://a", "waiting", ""),
            (5, *key, b"mine", None, seven, 1, made.signature, "down", 3.0, "1 1",
             "http://a http://b", "waiting", "http://c"),
            (6, *other, b"x", four, *unsigned, "read-only", 4.0, None, "", "failed", ""),
        ]:  # fmt: skip
            database.execute(f"INSERT INTO spool VALUES ({', '.join('?' * 15)})", values)
        entry = (*other, four, 1, b"own", mine.signature)
        for values in [
            (8, "http://a", *entry, 1, 6.0, 3, 1e12, "no", "1 1", 1),
            (9, "http://b", *entry, 0, 7.0, 0, 0.0, "behind", None, 0),
        ]:
            database.execute(f"INSERT INTO owed VALUES ({', '.join('?' * 16)})", values)


def test_ledger_of_the_version_before_is_taken_over(path: Path):
    """What is pending and owed comes along, under its number; so does all that was seen."""
    of_before(path)
    for _ in range(2):
        with closing(Ledger.open(path)) as ledger:
            assert ledger.newest_entry(KEY, TWEAK) == signed(b"seen", 4)
            assert ledger.highest_revision(KEY, TWEAK) == 7
            assert ledger.name_since("hns/a", "one") == 1001
            writes = [
                (each.id, each.data, each.base, each.status.value, each.portals, each.lacking)
                for each in unsent(ledger)
            ]
            assert writes == [
                (1, b"edit", 4, "conflict", ("http://a",), ()),
                (2, b"older", -1, "conflict", ("http://a",), ()),
                (5, b"mine", -1, "waiting", ("http://a", "http://b"), ("http://c",)),
                (6, b"x", 4, "failed", (), ()),
            ]
            third = unsent(ledger)[2]
            assert (third.signed, third.reason, third.created) == (signed(b"mine", 7), "down", 3.0)
            one, two = owed(ledger)
            assert (one.id, one.portals, one.lacking, one.is_own) == (
                8,
                ("http://a",),
                ("http://a",),
                True,
            )
            assert (two.id, two.portals, two.lacking, two.is_own) == (9, ("http://b",), (), False)
            assert (one.created, one.attempts, one.reason) == (6.0, 3, "no")
            assert {each.next_at for each in ledger.pending()} == {0.0}
    with closing(Ledger.open(path)) as ledger:
        assert ledger.claim(ref("c"), PAIR, b"new", -1, ["http://a"]).id > 9
        assert ledger.claim(REF, PAIR, b"next", 4, ["http://a"]).signed.entry.revision == 8
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_ledger_that_the_version_before_has_open_is_left_alone(path: Path):
    """Both could sign two contents under one revision: the error names the process."""
    of_before(path)
    child = start(_HAVING_IT_OPEN, path)
    assert child.stdout is not None
    assert child.stdout.readline() == "4\n"
    for use in (Ledger.open, lambda path: Ledger(path).pending()):
        with pytest.raises(StorageError) as caught:
            use(path)
        assert f"process {child.pid} (" in str(caught.value)
        assert str(path) in str(caught.value)
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (5,)
    child.communicate("")
    with closing(Ledger.open(path)) as ledger:
        assert len(ledger.pending()) == 6


def test_several_processes_take_a_ledger_over_once(path: Path):
    """The first one does, and the others wait for it."""
    of_before(path)
    code = (
        "import sys; from pathlib import Path; from skymount.portal.ledger.ledger import Ledger\n"
        "print(len(Ledger.open(Path(sys.argv[1])).pending()))"
    )
    children = [start(code, path) for _ in range(4)]
    assert [child.communicate()[0] for child in children] == ["6\n"] * 4


def test_take_over_that_fails_changes_nothing(path: Path):
    """It is one transaction."""
    of_before(path)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE outbox (mine)")
    with pytest.raises(StorageError, match="cannot take over"):
        Ledger.open(path)
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT count(*) FROM spool").fetchone() == (4,)
        assert database.execute("PRAGMA user_version").fetchone() == (5,)
