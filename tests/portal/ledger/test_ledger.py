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
from skymount.portal.ledger import seen_ledger
from skymount.portal.ledger.ledger import Ledger, default_path
from skymount.wire.registry_entry import hash_data_key
from tests.mount.namespaces import Namespace, new_namespace
from tests.portal.ledger.entries import KEY, TWEAK, signed
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


def test_damaged_spool_is_refused(path: Path):
    """What does not fit its signature is not sent."""
    ledger = Ledger.open(path)
    ledger.claim_revision(signed(b"x"), "a")
    execute(path, "UPDATE spool SET data = ?", (b"y",))
    with pytest.raises(StorageError, match=str(path)):
        ledger.pending()
    assert ledger.drop(1)
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
    monkeypatch.setattr(seen_ledger, "_NAMES_LIMIT", 3)
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


@pytest.mark.parametrize("version", [4, 6])
def test_another_version_is_refused(path: Path, version: int):
    """G12: the error names the file and says what to do; what is pending there stays."""
    with closing(Ledger.open(path)) as ledger:
        ledger.claim_revision(signed(b"kept", 8), "a")
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
