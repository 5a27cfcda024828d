"""What the tests notice: ``tests/faults N [--seed S] [FOLDER ...]`` makes small faults in a copy of
the tree, one at a time, and runs the tests that could notice each.

Which test runs which lines is found out once, with coverage, in the tests' own processes and in
those that they start. For that this module is a plugin of pytest: it tells coverage, and by the
environment the processes, which test is running. What a fixture starts that several tests share
counts for all of these.
"""

import argparse
import hashlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import coverage
import pytest

from tests.fault_maker import Fault, changes_something, choose, faults_in

ROOT = Path(__file__).resolve().parent.parent
SOURCE = "src/skymount"
MAP = ROOT / "build/faults-map.sqlite"

LIMIT = 60.0
"""Seconds that the tests of one fault may take."""

_BUDGET = 20.0
"""Seconds that the tests of one fault took for the map, on each core; coverage doubles them."""

_CONTEXT = "COVERAGE_TEST"
"""The variable that names the running test; commands of the tests get all COVERAGE_ variables."""

_REPORT = "FAULTS_REPORT"
_FIXTURE = "fixture "
_DROPPED = ("COVERAGE_", "PYTEST_", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH")
_LEFT_BEHIND = (".git", ".venv", ".venvs", ".venv.lock", "build", "dist", ".*_cache")

# --- plugin: which test is running ------------------------------------------------------------


def _tell(name: str) -> None:
    os.environ[_CONTEXT] = name
    measuring = coverage.Coverage.current()
    if measuring is not None:
        measuring.switch_context(name)


def _shared_fixtures(item: Any) -> list[str]:
    found = item._fixtureinfo.name2fixturedefs.values()
    return [_name(each) for every in found for each in every if each.scope != "function"]


def _without_group(name: str) -> str:
    """Return the name of a test without the group that xdist appends to it."""
    return name.rpartition("@")[0] if "@" in name.rpartition("]")[2] else name


def _name(fixture: Any) -> str:
    return f"{_FIXTURE}{fixture.baseid}::{fixture.argname}"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _tell(_without_group(item.nodeid))
    item.user_properties.append((_FIXTURE, _shared_fixtures(item)))
    try:
        return (yield)
    finally:
        _tell("")


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any) -> Iterator[None]:
    before = os.environ.get(_CONTEXT, "")
    if fixturedef.scope != "function":
        _tell(_name(fixturedef))
    try:
        return (yield)
    finally:
        _tell(before)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write what became of a test; with workers, in the process that hears of all of them."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        fixtures = dict(report.user_properties).get(_FIXTURE, [])
        line = [_without_group(report.nodeid), report.outcome, report.duration, fixtures]
        with open(os.environ[_REPORT], "a") as out:
            out.write(json.dumps(line) + "\n")


# --- the copy of the tree ---------------------------------------------------------------------


@dataclass(frozen=True)
class Tree:
    """A copy of this tree, with an environment in which Python finds the copy's source first."""

    work: Path

    @property
    def path(self) -> Path:
        return self.work / "tree"

    @property
    def python(self) -> Path:
        return self.path / ".venv/bin/python"

    def make(self) -> None:
        ignored = shutil.ignore_patterns(*_LEFT_BEHIND)
        shutil.copytree(ROOT, self.path, symlinks=True, ignore=ignored)
        if (ROOT / ".venvs/s3rver").exists():
            (self.path / ".venvs").mkdir()
            (self.path / ".venvs/s3rver").symlink_to(ROOT / ".venvs/s3rver")
        venv, ours = self.path / ".venv", Path(sys.prefix)
        packages = Path(sysconfig.get_path("purelib"))
        ours_here = venv / packages.relative_to(ours)
        ours_here.mkdir(parents=True)
        add = f"import site; site.addsitedir({str(packages)!r})"
        (ours_here / "faults.pth").write_text(f"{self.path / 'src'}\n{add}\n")
        for each in ours.iterdir():
            if not (venv / each.name).exists() and each.name not in ("bin", "pyvenv.cfg"):
                (venv / each.name).symlink_to(each)
        shutil.copy(ours / "pyvenv.cfg", venv)
        (venv / "bin").mkdir()
        for name in ("python", "python3"):
            (venv / "bin" / name).symlink_to(os.path.realpath(sys.executable))
        command = venv / "bin/skymount"
        command.write_text(f"#!{self.python}\n" + _after_line((ours / "bin/skymount").read_text()))
        command.chmod(0o755)

    def pytest(
        self, *arguments: str, limit: float | None = None, **environment: str
    ) -> tuple[int | None, str]:
        """Run tests on all cores; return the exit code, None at the limit, and what it said.

        Where that is allowed they have process ids and mounts of their own, so that all ends with
        them.
        """
        temporary = self.work / "tmp"
        temporary.mkdir(exist_ok=True)
        temporary.chmod(0o711)  # PostgreSQL runs as another user
        kept = {k: v for k, v in os.environ.items() if not k.startswith(_DROPPED)}
        command = [*_alone(), self.python, "-m", "pytest", "-p", "no:cacheprovider"]
        workers = ["-n", str(min(2 * _cores(), 8)), "--dist", "loadgroup"]
        with (self.work / "said").open("w+") as said:
            process = subprocess.Popen(
                [*command, *workers, *arguments],
                cwd=self.path,
                env={**kept, "TMPDIR": str(temporary), **environment},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait(limit)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            said.seek(0)
            text = said.read()
        shutil.rmtree(temporary, ignore_errors=True)
        return code, text


def _after_line(text: str) -> str:
    return text.partition("\n")[2]


@cache
def _alone() -> tuple[str, ...]:
    """Return the command that gives a command its own processes and mounts, if that is allowed."""
    command = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--")
    try:
        done = subprocess.run([*command, "true"], capture_output=True, check=False)
    except FileNotFoundError:
        return ()
    return () if done.returncode else command


def _cores() -> int:
    return len(os.sched_getaffinity(0))


@contextmanager
def copied_tree() -> Iterator[Tree]:
    with tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as work:
        Path(work).chmod(0o711)
        tree = Tree(Path(work).resolve())
        tree.make()
        yield tree


# --- the map of lines to tests ----------------------------------------------------------------

_SETTINGS = """
[run]
core = ctrace
data_file = {data}
parallel = true
context = ${{{context}-}}
include = {include}
patch = _exit
disable_warnings = no-data-collected, module-not-measured, already-imported, no-ctracer
"""


@dataclass(frozen=True)
class Test:
    """A test that passed when the map was made."""

    name: str
    seconds: float
    fixtures: frozenset[str]

    @property
    def file(self) -> str:
        return self.name.partition("::")[0]


class Map:
    """Which tests run which lines."""

    def __init__(self, path: Path) -> None:
        self._data = coverage.CoverageData(basename=str(path))
        self._data.read()
        with closing(sqlite3.connect(path)) as database:
            rows = [*database.execute("SELECT name, seconds, fixtures FROM faults_test")]
            (self.state,) = database.execute("SELECT state FROM faults_state").fetchone()
        self.tests = [Test(name, took, frozenset(json.loads(used))) for name, took, used in rows]
        self._lines = cache(self._data.contexts_by_lineno)

    def touching(self, fault: Fault) -> list[Test]:
        """Return the tests that run a line of the fault, those first that are meant for it.

        What a module does when it is imported touches all tests of the module.
        """
        first, last = fault.lines
        contexts = {
            context
            for line, found in self._lines(fault.path).items()
            if first <= line <= last or not fault.in_function
            for context in found
        }
        touching = [t for t in self.tests if t.name in contexts or t.fixtures & contexts]
        mirrored = _tests_of(fault.path)

        def rank(test: Test) -> tuple[bool, bool, bool, float]:
            beside = Path(test.file).parent == mirrored.parent
            is_direct = test.name in contexts
            return test.file != str(mirrored), not beside, not is_direct, test.seconds

        return sorted(touching, key=rank)


def make_map(tree: Tree, folders: Sequence[str], tests: Sequence[str]) -> None:
    """Run the tests with coverage, and keep the map."""
    parts = tree.work / "coverage"
    parts.mkdir(mode=0o1777)
    parts.chmod(0o1777)
    settings, report = parts / "settings", parts / "tests"
    paths = (str(tree.path / each) for each in folders)
    include = ", ".join(path if path.endswith(".py") else f"{path}/*" for path in paths)
    text = _SETTINGS.format(data=parts / "data", context=_CONTEXT, include=include)
    settings.write_text(text)
    report.touch()
    began = time.monotonic()
    options = ["-q", "-p", "tests.fault_runs", "--timeout", "600"]
    variables = {"COVERAGE_PROCESS_START": str(settings), _CONTEXT: "", _REPORT: str(report)}
    code, said = tree.pytest(*options, *tests, **variables)
    if code not in (0, 1):
        sys.exit(f"{said[-5000:]}\nfaults: the tests for the map could not be run")
    found = _tests(report)
    MAP.parent.mkdir(exist_ok=True)
    MAP.unlink(missing_ok=True)
    data = coverage.CoverageData(basename=str(MAP))
    prefix = f"{tree.path}/"
    for part in sorted(parts.glob("data.*")):
        piece = coverage.CoverageData(basename=str(part))
        # A process that was killed while it wrote leaves what is no database.
        with closing(piece), suppress(coverage.CoverageException):
            piece.read()
            data.update(piece, map_path=lambda path: path.removeprefix(prefix))
    data.close()
    with closing(sqlite3.connect(MAP)) as database, database:
        database.execute("CREATE TABLE faults_test (name TEXT, seconds REAL, fixtures TEXT)")
        database.execute("CREATE TABLE faults_state (state TEXT)")
        rows = [
            (t.name, t.seconds, json.dumps(sorted(t.fixtures))) for t, passed in found if passed
        ]
        database.executemany("INSERT INTO faults_test VALUES (?, ?, ?)", rows)
        database.execute("INSERT INTO faults_state VALUES (?)", [_state(folders, tests)])
    shutil.rmtree(parts)
    took = time.monotonic() - began
    print(f"map: {len(rows)} tests passed with coverage in {took:.0f} s")
    for test, has_passed in found:
        if not has_passed:
            print(f"map: not used, as it failed with coverage: {test.name}")


def _tests(report: Path) -> list[tuple[Test, bool]]:
    """Return each test that was run and not skipped, and whether it passed."""
    took: dict[str, float] = {}
    outcomes: dict[str, set[str]] = {}
    used: dict[str, frozenset[str]] = {}
    for line in report.read_text().splitlines():
        name, outcome, seconds, fixtures = json.loads(line)
        took[name] = took.get(name, 0.0) + seconds
        outcomes.setdefault(name, set()).add(outcome)
        used[name] = used.get(name, frozenset()) | frozenset(fixtures)
    return [
        (Test(name, took[name], used[name]), outcomes[name] == {"passed"})
        for name in took
        if "skipped" not in outcomes[name]
    ]


def _state(folders: Sequence[str], tests: Sequence[str]) -> str:
    """Return what a map is of: it is no other's."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / SOURCE).rglob("*.py")):
        digest.update(b"%s\0%s\0" % (str(path.relative_to(ROOT)).encode(), path.read_bytes()))
    return json.dumps([digest.hexdigest(), sorted(folders), list(tests)])


# --- one fault after the other ----------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """What became of a fault."""

    fault: Fault
    noticed: bool
    reason: str

    def __str__(self) -> str:
        return f"{'noticed' if self.noticed else 'NOT NOTICED'}: {self.fault}\n    {self.reason}"


def judge(tree: Tree, fault: Fault, tests: Sequence[Test]) -> Verdict:
    """Run the tests that touch a fault, as many as there is time for."""
    if not tests:
        return Verdict(fault, noticed=False, reason="no test runs this line")
    chosen, left = [], _BUDGET * _cores()
    for test in tests:
        if not chosen or test.seconds <= left:
            chosen.append(test)
            left -= test.seconds
    count = f"{len(chosen)} of {len(tests)} tests"
    arguments = tree.work / "arguments"
    chosen.sort(key=partial(_place, _tests_of(fault.path)))
    arguments.write_text("".join(f"{test.name}\n" for test in chosen))
    options = ("-q", "-x", "--tb=no", f"@{arguments}")
    with _made(tree, fault):
        code, said = tree.pytest(*options, limit=LIMIT)
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", said, re.MULTILINE)
    if code == 0:
        return Verdict(fault, noticed=False, reason=f"{count} passed")
    if code is not None and failed:
        return Verdict(fault, noticed=True, reason=failed[1])
    how = f"{count}: not done after {LIMIT:.0f} s" if code is None else f"{count}: exit {code}"
    code, _ = tree.pytest(*options, limit=LIMIT)
    if code == 0:
        return Verdict(fault, noticed=True, reason=f"{how}; without the fault they pass")
    return Verdict(fault, noticed=False, reason=f"not decided: {how}, and so without the fault")


def _place(own: Path, test: Test) -> list[tuple[bool, str]]:
    """Order tests from the fault's own file outwards.

    Those of a folder stand together, or pytest loses the fixtures of its conftest.
    """
    beside = itertools.chain(own.parts, itertools.repeat(""))
    return [(part != its, part) for part, its in zip(Path(test.file).parts, beside, strict=False)]


_TIMES = itertools.count(1)


@contextmanager
def _made(tree: Tree, fault: Fault) -> Iterator[None]:
    """Change the file in the copy; each state of it has a time of its own, for compiled files."""
    path, original = tree.path / fault.path, ROOT / fault.path
    path.write_bytes(fault.made_in(original.read_bytes()))
    seconds = int(original.stat().st_mtime) + next(_TIMES)
    os.utime(path, (seconds, seconds))
    try:
        yield
    finally:
        shutil.copy2(original, path)


def _chosen(folders: Sequence[str], count: int, seed: int) -> Iterator[Fault]:
    """Yield the faults of a seed, without those that change nothing."""
    faults: list[Fault] = []
    for folder in folders:
        path = ROOT / folder
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            faults += faults_in(str(file.relative_to(ROOT)), file.read_bytes())
    found = 0
    for fault in choose(faults, len(faults), random.Random(seed)):
        if found < count and changes_something(fault, (ROOT / fault.path).read_bytes()):
            found += 1
            yield fault


def _tests_of(path: str) -> Path:
    """Return where the tests of a folder of the source are, or of a module."""
    found = Path("tests") / Path(path).relative_to(SOURCE)
    return found.with_name(f"test_{found.name}") if found.suffix == ".py" else found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("tests/faults", description="Shows what the tests notice.")
    parser.add_argument("count", type=int, metavar="N", help="how many faults to make")
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help="where; all of the source")
    parser.add_argument("--seed", type=int, default=0, help="the same seed makes the same faults")
    parser.add_argument(
        "--tests",
        nargs="+",
        metavar="PATH",
        help="the tests that count, as for pytest; all, or those that mirror the folders",
    )
    parser.add_argument("--reuse", action="store_true", help=f"use {MAP.relative_to(ROOT)} again")
    given = parser.parse_intermixed_args(arguments)
    folders = [str((ROOT / each).resolve().relative_to(ROOT)) for each in given.folders]
    folders = folders or [SOURCE]
    tests = given.tests or [str(_tests_of(folder)) for folder in folders]
    if missing := [path for path in folders if not (ROOT / path).exists()]:
        sys.exit(f"faults: not there: {', '.join(missing)}")
    if given.reuse and (not MAP.exists() or Map(MAP).state != _state(folders, tests)):
        sys.exit("faults: the map is of other folders, tests or source; leave out --reuse")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends what was started, too
    with copied_tree() as tree:
        if not given.reuse:
            make_map(tree, folders, tests)
        found, verdicts = Map(MAP), list[Verdict]()
        for fault in _chosen(folders, given.count, given.seed):
            verdicts.append(judge(tree, fault, found.touching(fault)))
            print(verdicts[-1], flush=True)
    noticed = sum(verdict.noticed for verdict in verdicts)
    print(f"\n{noticed} of {len(verdicts)} noticed ({noticed / max(1, len(verdicts)):.0%}).")
    for verdict in verdicts:
        if not verdict.noticed:
            print(f"{verdict.fault}\n    {verdict.reason}")


if __name__ == "__main__":
    main()
