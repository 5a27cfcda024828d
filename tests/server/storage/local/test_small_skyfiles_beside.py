"""A damaged database of small skyfiles: commands read the rest of it, and say what is lost."""

import io
import json
import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from skymount.server.backup.exporting import export
from skymount.server.storage.local.small_skyfiles import SMALL_FILE, SmallSkyfiles
from skymount.server.storage.reading.local_reader import LocalReader
from skymount.server.storage.retention.verification import verify
from skymount.server.storage.skyfile_store import SkyfileStore
from skymount.wire import merkle
from skymount.wire.base_sector import build_inline
from skymount.wire.skylink import Skylink
from tests.portal_process import portal_process
from tests.server.http_client import Client
from tests.server.raw_connection import eventually
from tests.server.storage.stored import IN_FILES, METADATA, put
from tests.skymount_process import Sandbox

KEYS, ABOVE_KEYS, ROWS, ABOVE_ROWS = 10, 2, 13, 5  # kinds of SQLite's pages
_PAGE = 4096


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, set[Skylink]]:
    """A data directory with a catalogue, and what is in it. Nearly all are small."""
    data = tmp_path_factory.mktemp("made") / "data"
    with closing(SkyfileStore.open(data)) as store:
        links = {put(store, b"%d" % number * IN_FILES) for number in range(3)}
    bases = [build_inline(METADATA, b"%d" % number * 99) for number in range(1000, 1600)]
    skyfiles = {Skylink.v1(merkle.sector_root(base), len(base)): base for base in bases}
    with closing(SmallSkyfiles(data / "v1")) as small:
        small.open()
        small.put(skyfiles.items())
    links |= skyfiles.keys()
    with portal_process(data) as portal, Client(base_url=portal.url) as client:
        eventually(lambda: client.get("/svc/stats").json()["numfiles"] == len(links))
    return data, links


def _pages(data: Path, kind: int) -> list[int]:
    """Return where the pages of a kind begin; the first two are of another kind."""
    raw = (data / "v1" / SMALL_FILE).read_bytes()
    return [at for at in range(2 * _PAGE, len(raw), _PAGE) if raw[at] == kind]


def _damage(data: Path, places: Sequence[int]) -> None:
    with (data / "v1" / SMALL_FILE).open("r+b") as file:
        for at in places:
            file.seek(at)
            file.write(b"\xff" * _PAGE)


@pytest.mark.parametrize(
    ("kinds", "count", "least", "most"),
    [
        ([KEYS], 1, 0, 0),
        ([KEYS, ABOVE_KEYS], 99, 0, 0),
        ([ROWS], 1, 5, 60),
        ([KEYS, ROWS], 2, 5, 60),
        ([ABOVE_KEYS, ROWS], -1, 5, 60),
        ([ABOVE_ROWS], 1, 600, 600),
        ([], 0, 600, 600),
    ],
)
def test_what_can_be_read_is_read(
    made: tuple[Path, set[Skylink]],
    tmp_path: Path,
    kinds: list[int],
    count: int,
    least: int,
    most: int,
) -> None:
    """RT4, RT6: by its key or by its row; all else is named, as the catalogue has it."""
    source, links = made
    data = tmp_path / "data"
    shutil.copytree(source, data)
    for kind in kinds:
        assert _pages(data, kind)
        _damage(data, _pages(data, kind)[:count] if count >= 0 else _pages(data, kind)[count:])
    if not kinds:
        _damage(data, [0])
    with closing(LocalReader(data)) as reader:
        found = list(verify(reader))
        lost = {one.skylink for one in found if one.problem}
        assert bool(reader.problem()) == (kinds not in ([ROWS], [ABOVE_ROWS]))
    assert least <= len(lost) <= most
    assert len(found) == len(links)
    assert {one.skylink for one in found} == links
    with closing(LocalReader(data)) as reader:
        done = export(reader, io.BytesIO(), with_skykeys=False, progress=lambda _: None)
        assert done.skyfiles == len(links - lost)
        named = done.problems[1:] if reader.problem() else done.problems
    assert {line.partition(":")[0] for line in named} == set(map(str, lost))


def test_the_way_back(made: tuple[Path, set[Skylink]], sandbox: Sandbox, tmp_path: Path) -> None:
    """RT4, RT6: `verify` names what is lost; `export` and `import` bring the rest elsewhere."""
    source, links = made
    data, new, archive = tmp_path / "data", tmp_path / "new", tmp_path / "rest.tar"
    shutil.copytree(source, data)
    _damage(data, [_pages(data, KEYS)[0], _pages(data, ROWS)[0]])
    said = sandbox.skymount("portal", "verify", "--json", "--data", data)
    assert said.returncode == 1
    report = json.loads(said.stdout)
    assert SMALL_FILE in report["problem"]
    lost = {one["skylink"] for one in report["damaged"]}
    assert lost
    text = sandbox.skymount("portal", "verify", "--data", data)
    assert f"{len(lost)} damaged" in text.stdout.splitlines()[-1]
    assert SMALL_FILE in text.stdout.splitlines()[-2]
    written = sandbox.skymount("portal", "export", archive, "--data", data)
    assert written.returncode == 1
    assert SMALL_FILE in written.stderr
    brought = json.loads(sandbox.succeed("portal", "import", archive, "--json", "--data", new))
    assert brought["skyfiles"] == len(links) - len(lost)
    rows = json.loads(sandbox.succeed("portal", "list", "--json", "--data", new))
    assert {row["skylink"] for row in rows} == set(map(str, links)) - lost


def test_one_that_is_asked_for(made: tuple[Path, set[Skylink]], tmp_path: Path) -> None:
    """RT4: it is found by its row, too; what may have been there is not said to be absent."""
    source, links = made
    data = tmp_path / "data"
    shutil.copytree(source, data)
    _damage(data, _pages(data, KEYS))
    link = next(iter(links))
    absent = Skylink.v1(bytes(32), 99)
    with closing(LocalReader(data)) as reader:
        assert [one.problem for one in verify(reader, [link])] == [""]
        (found,) = verify(reader, [absent])
        assert "malformed" in found.problem


def test_what_is_no_damage_ends_a_command(
    made: tuple[Path, set[Skylink]], tmp_path: Path, sandbox: Sandbox
) -> None:
    """Nothing is said to be lost where the database cannot be opened, for example."""
    source, _ = made
    data = tmp_path / "data"
    shutil.copytree(source, data)
    (data / "v1" / SMALL_FILE).unlink()
    (data / "v1" / SMALL_FILE).symlink_to(SMALL_FILE)
    assert SMALL_FILE in sandbox.fail("portal", "verify", "--data", data)
