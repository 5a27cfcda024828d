"""The benchmarks run, count rightly, and leave nothing behind. What they measure is no test."""

import http.client
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import report, source
from benchmarks.figures import Figure, Group, Round, merged, ratio
from benchmarks.plan import Plan
from benchmarks.proxy import distance
from benchmarks.report import Measured
from tests.skymount_process import LIMIT, clear_mounts, end

RUN = Path(__file__).parent.parent / "benchmarks/run"
SIZE = 5 << 20

needs_nginx = pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
needs_fuse = pytest.mark.skipif(
    not os.access("/dev/fuse", os.R_OK | os.W_OK) or shutil.which("fusermount3") is None,
    reason="nothing can be mounted",
)

Starter = Callable[[str], "subprocess.Popen[bytes]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Starter]:
    """Starts the benchmarks, of one group, with everything that they make in `tmp_path`."""
    running: list[subprocess.Popen[bytes]] = []

    def started(group: str) -> "subprocess.Popen[bytes]":
        command = [RUN, "--quick", "--rounds", "1", "--work", tmp_path, "--only", group]
        pipe = subprocess.PIPE
        running.append(subprocess.Popen(command, stdout=pipe, stderr=pipe))
        return running[-1]

    yield started
    for process in running:
        end(process)
    clear_mounts(tmp_path)


@pytest.mark.mount
@pytest.mark.slow
@needs_nginx
@needs_fuse
def test_a_quick_run_prints_a_table_and_leaves_nothing(start: Starter, tmp_path: Path) -> None:
    """A group is measured and printed; the documentation is as before, and no file is left."""
    before = (report.DOCS / "benchmarks.md").read_bytes()
    out, err = start("ready").communicate(timeout=LIMIT)
    assert b"| mount ready | " in out, err
    assert b"Not measured" not in out
    assert list(tmp_path.iterdir()) == []
    assert (report.DOCS / "benchmarks.md").read_bytes() == before


@pytest.mark.mount
@pytest.mark.slow
@needs_nginx
@needs_fuse
def test_an_interrupted_run_leaves_nothing(start: Starter, tmp_path: Path) -> None:
    """Ctrl-C while something is being mounted unmounts it, ends what runs, and removes files."""
    process = start("ready")
    assert process.stderr is not None
    while b"mount ready" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 130, err
    assert list(tmp_path.iterdir()) == []


@needs_nginx
def test_the_proxy_passes_everything_on_and_counts_it(tmp_path: Path) -> None:
    """What comes through the proxy is what nginx has; requests, bytes and connections count."""
    skyfile = source.make_file(tmp_path, "file.bin", SIZE)
    with (
        source.serve(tmp_path, [skyfile], tmp_path) as site,
        distance(site.port, tmp_path / "log", rtt=0.01, rate=100e6) as far,
    ):
        connections = [http.client.HTTPConnection("127.0.0.1", far.port) for _ in range(2)]
        for connection in connections:
            for _ in range(2):
                connection.request("GET", f"/{skyfile.skylink}")
                assert connection.getresponse().read() == skyfile.payload.read_bytes()
        counts = far.take_counts()
        assert (counts.requests, counts.open, counts.most_open) == (4, 2, 2)
        assert 4 * SIZE < counts.received < 4 * SIZE + 4096
        assert far.take_counts().requests == 0
        for connection in connections:
            connection.close()


def test_an_aim_is_held_against_the_median() -> None:
    """The rounds of a figure are joined by its name; an upper bound is reached from below."""
    rounds = [Figure("a", (value,), "s", at_most=4) for value in (1.0, 2.0, 9.0)]
    (joined,) = merged(rounds)
    assert joined.values == (1.0, 2.0, 9.0)
    assert (joined.median, joined.reached, joined.aim) == (2.0, 2.0, "at most 4 s")
    fast, slow = Figure("fast", (30.0,), "MB/s"), Figure("slow", (20.0,), "MB/s")
    assert ratio("fast / slow", fast, slow, at_least=3).reached == 0.5


def _unused(_: Plan) -> AbstractContextManager[Round]:
    raise NotImplementedError


def test_a_report_tells_what_was_missed_and_what_was_not_measured() -> None:
    """The section and the drawing show reached and missed aims, and why something is missing."""
    group = Group("name", "Title", "Notes.", _unused)
    figures = [
        Figure("reached", (2.0, 4.0, 3.0), at_least=2),
        Figure("missed <by far>", (30.0,), "s", at_most=3),
        Figure("no aim", (1234.5,), "MB/s"),
    ]
    told = report.section([Measured(group, figures), Measured(group, [], "no nginx")], ["Facts."])
    assert "| reached | 3 | 2 | 4 | at least 2 | reached |" in told
    assert "| missed <by far> | 30 s | 30 s | 30 s | at most 3 s | **missed** |" in told
    assert "| no aim | 1,234 MB/s | 1,234 MB/s | 1,234 MB/s |  |  |" in told
    assert "**Not measured**: no nginx" in told
    assert "1 of 2 aims are reached." in told
    drawing: Any = ElementTree.fromstring(report.drawing(figures))
    texts = [element.text for element in drawing.iter() if element.tag.endswith("text")]
    assert texts == ["reached", "1.50", "missed <by far>", "0.10", "aim"]


def test_a_table_with_columns_has_a_cell_for_each_row_and_column() -> None:
    """Cells have the medians of all that was measured there, bold if an aim is missed; some have
    nothing. The drawing leaves such tables out.
    """
    group = Group("name", "Title", "Notes.", _unused, columns=("disk", "shared"))
    figures = [
        Figure("GET | disk | a second", (1000.0, 3000.0, 2000.0), "/s"),
        Figure("GET | disk | median", (0.25,), "ms"),
        Figure("POST | shared | a second", (5.0,), "/s", at_least=6.0),
        Figure("GET | shared | a second", (1500.0,), "/s"),
    ]
    told = report.table(Measured(group, figures))
    assert told.splitlines()[4:] == [
        "| | disk | shared |",
        "|---|---|---|",
        "| GET | 2,000 /s; 0.25 ms | 1,500 /s |",
        "| POST |  | **5 /s** |",
    ]


def test_a_run_replaces_the_one_before_and_nothing_else(tmp_path: Path) -> None:
    """The marked section of the page is rewritten, twice the same, with its drawing beside it."""
    page = tmp_path / "benchmarks.md"
    shutil.copy(report.DOCS / page.name, page)
    before = page.read_text()
    group = Group("name", "Title", "Notes.", _unused)
    wide = Group("wide", "Title", "Notes.", _unused, columns=("a",))
    runs = []
    for value in (1.0, 2.0):
        figures = [Figure("a", (value,), at_least=1)]
        cells = Measured(wide, [Figure("row | a | what", (value,), at_least=1)])
        report.write([Measured(group, figures), cells], ["Facts."], tmp_path)
        runs.append(page.read_text())
    assert "| a | 2 | 2 | 2 |" in runs[1]
    assert "| a | 1 | 1 | 1 |" not in runs[1]
    for run in runs:
        assert run.split("<!--")[0] == before.split("<!--")[0]
        assert run.rpartition("-->")[2] == before.rpartition("-->")[2]
    assert "row" not in (tmp_path / "benchmarks.svg").read_text()
