"""Small faults, and which tests run their lines: ``tests/faults``."""

import random
from pathlib import Path

import pytest

from tests import fault_runs
from tests.fault_maker import Fault, changes_something, choose, faults_in
from tests.fuse_device import mounts

SOURCE = '''
"""Text, ünd more."""
LIMIT = 4 + 1

async def send(items: list[str], *, most: int = 3) -> bool:
    """Say what it does."""
    ä = "ü" if len(items) < most and items else ""  # and, or
    try:
        await connect()
    except OSError as error:
        log(error)
        raise
    return (ä or  # or
        items[1:])
'''.encode()

EACH = [
    ("limit moved by one", "LIMIT = 4 + 1", "LIMIT = 5 + 1"),
    ("limit moved by one", "LIMIT = 4 + 1", "LIMIT = 4 + 2"),
    ("default returned early", "    ä = ", "    return False\n    ä = "),
    ("condition turned", "len(items) < most and items", "not (len(items) < most and items)"),
    ("limit moved by one", "items) < most", "items) <= most"),
    ("and/or exchanged", "most and items", "most or items"),
    ("call left out", "await connect()", "pass"),
    ("except that swallows", "log(error)\n        raise", "pass"),
    ("call left out", "log(error)", "pass"),
    ("and/or exchanged", "(ä or  # or", "(ä and  # or"),
    ("limit moved by one", "[1:]", "[2:]"),
]

LINE = "src/skymount/cli/commands/skylink.py"
COMMAND = "tests/cli/commands/test_skylink.py::test_parse_as_json"
MOUNT = "tests/mount/test_publish.py::test_published_entry_in_a_mount"
MOUNTED = "src/skymount/fs/registry/directory.py"
SERVED = "src/skymount/server/endpoints.py"


def test_each_kind_of_fault() -> None:
    """All faults of a source, in its order; the rest of it stays as it is."""
    text = SOURCE.decode()
    found = [(fault.kind, fault.made_in(SOURCE).decode()) for fault in faults_in("a.py", SOURCE)]
    expected = [(kind, text.replace(old, new, 1)) for kind, old, new in EACH]
    assert sorted(found) == sorted(expected)


def test_what_is_no_fault() -> None:
    """Changes that leave the program as it is, or no program, are told from others."""
    source = b"def f(a) -> None:\n    return\n"
    (early,) = faults_in("a.py", source)
    assert changes_something(early, source)
    same = Fault("", "a.py", 2, (2, 2), True, 22, 28, b"return # and so on", "", "")
    broken = Fault("", "a.py", 2, (2, 2), True, 22, 28, b"return (", "", "")
    assert not changes_something(same, source)
    assert not changes_something(broken, source)
    assert faults_in("a.py", b"def f() -> int: ...\n") == []
    assert faults_in("a.py", b'def f() -> str:\n    return f"{1 + 1} and {a or b}"\n')[1:] == []


def test_a_fault_knows_its_lines() -> None:
    """Those of its statement, and whether they run at the import."""
    faults = faults_in("a.py", SOURCE)
    assert {fault.lines for fault in faults if not fault.in_function} == {(3, 3)}
    assert faults[-1].lines == (13, 14)
    assert [fault.becomes for fault in faults if fault.kind == "and/or exchanged"] == [
        'ä = "ü" if len(items) < most or items else ""  # and, or',
        "return (ä and  # or",
    ]


def test_a_seed_makes_the_same_faults() -> None:
    """And about as many of each kind, as long as there are any."""
    faults = faults_in("a.py", SOURCE)
    chosen = [[*choose(faults, 6, random.Random(seed))] for seed in (1, 1, 2)]
    assert chosen[0] == chosen[1] != chosen[2]
    everything = [*choose(faults, 99, random.Random(3))]
    assert sorted(everything, key=faults.index) == faults


def test_tests_of_a_folder_stay_together() -> None:
    """From the file that is meant for the fault outwards."""
    files = ["tests/b/test_x.py", "tests/a/c/test_x.py", "tests/test_x.py", "tests/a/test_x.py"]
    tests = [fault_runs.Test(f"{file}::test", 1.0, frozenset()) for file in files]
    own = Path("tests/a/c/test_x.py")
    ordered = sorted(tests, key=lambda test: fault_runs._place(own, test))
    assert [test.file for test in ordered] == [files[1], files[3], files[0], files[2]]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> fault_runs.Tree:
    made = fault_runs.Tree(tmp_path_factory.mktemp("faults"))
    made.make()
    return made


def _faults(path: str) -> list[Fault]:
    return faults_in(path, (fault_runs.ROOT / path).read_bytes())


@mounts
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("faults")
def test_processes_of_tests_count(
    tree: fault_runs.Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The map has lines that run in processes that a test starts: commands, a mount, a portal that
    tests share.
    """
    monkeypatch.setattr(fault_runs, "MAP", tmp_path / "map.sqlite")
    where = {LINE: COMMAND, MOUNTED: MOUNT, SERVED: MOUNT}
    fault_runs.make_map(tree, [*where], [COMMAND, MOUNT])
    found = fault_runs.Map(fault_runs.MAP)
    for path, test in where.items():
        touching = [found.touching(fault) for fault in _faults(path) if fault.in_function]
        assert [each.name for each in max(touching, key=len)] == [test], path


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("faults")
def test_a_fault_is_noticed_or_not(tree: fault_runs.Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy is as before after each."""
    monkeypatch.setattr(fault_runs, "LIMIT", 250.0)
    tests = [fault_runs.Test(COMMAND, 1.0, frozenset())]
    faults = [fault for fault in _faults(LINE) if fault.was.startswith("emit(value, as_json, [(")]
    verdicts = {fault.kind: fault_runs.judge(tree, fault, tests) for fault in faults}
    assert not verdicts["condition turned"].noticed  # the test wants JSON
    assert verdicts["call left out"].noticed
    assert verdicts["call left out"].reason == COMMAND
    assert (tree.path / LINE).read_bytes() == (fault_runs.ROOT / LINE).read_bytes()
    assert not fault_runs.judge(tree, faults[0], []).noticed
