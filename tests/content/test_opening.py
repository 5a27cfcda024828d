"""What reads content is opened, and closed, as the settings say."""

import sqlite3
from pathlib import Path

import pytest
import trio
import trio.testing

from skymount.content.opening import ContentSettings, DiskSettings, open_content
from skymount.errors import CacheError, MalformedError, StorageError
from skymount.policies import VerifyPolicy
from skymount.portal.ledger.ledger import Ledger
from tests.fakes.content_stack import open_at
from tests.fakes.entries import FakeRegistry, portals_of
from tests.portal.registry.entries import ref, signed

URL = "http://portal.example"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for kind in ("CACHE", "STATE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind))
    return tmp_path


@pytest.mark.parametrize(
    ("size", "is_there", "is_used", "warned"),
    [
        (None, False, False, ""),
        (0, False, False, ""),  # nobody has stored anything
        (0, True, True, ""),
        (64 << 20, False, True, ""),
        (1 << 20, False, True, "disk_cache: hardly anything fits; "),
    ],
)
async def test_the_disk_cache(
    home: Path, size: int | None, is_there: bool, is_used: bool, warned: str
) -> None:
    if is_there:
        async with open_at(URL, disk=DiskSettings(64 << 20)):
            pass
    said: list[str] = []
    disk = None if size is None else DiskSettings(size)
    async with open_at(URL, disk=disk, warn=said.append) as content:
        assert (content.queue is not None) == is_used
        assert (content.reader.disk is not None) == is_used
    assert (home / "CACHE/skymount/content").exists() == is_used
    assert "".join(said).startswith(warned)
    assert len(said) == bool(warned)


@pytest.mark.parametrize("size", [0, 64 << 20])
async def test_a_disk_cache_that_cannot_be_used(home: Path, size: int) -> None:
    """It is done without, with a warning where something was to be stored; not if it was named."""
    (home / "CACHE").mkdir()
    (home / "CACHE/skymount").write_text("in the way")
    said: list[str] = []
    async with open_at(URL, disk=DiskSettings(size), warn=said.append) as content:
        assert content.queue is None
    assert [each.rpartition("; ")[2] for each in said] == ["nothing is kept on disk"][: bool(size)]
    with pytest.raises(CacheError, match="not usable as a cache"):
        async with open_at(URL, disk=DiskSettings(size, home / "CACHE/skymount")):
            pass


async def test_an_error_of_the_settings_is_bare() -> None:
    with pytest.raises(MalformedError, match="nonsense"):
        async with open_at("nonsense"):
            pass


async def test_what_is_cancelled_can_still_note_it_in_the_ledger(home: Path) -> None:
    noted: list[int] = []

    async def note(ledger: Ledger) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(0)
                noted.append(len(ledger.pending()))

    async with open_at(URL) as content:
        content.ledger.prepare()
        content.nursery.start_soon(note, content.ledger)
        await trio.testing.wait_all_tasks_blocked()
    assert noted == [0]
    with pytest.raises(StorageError):
        content.ledger.pending()


async def test_what_could_not_be_remembered(home: Path, autojump_clock: object) -> None:
    """G4: one who only reads says so at the end."""

    def is_full(database: sqlite3.Connection) -> None:
        (pages,) = database.execute("PRAGMA page_count").fetchone()
        database.execute(f"PRAGMA max_page_count = {pages}")

    said: list[str] = []
    settings = ContentSettings(
        portals={}, silence=20.0, verify=VerifyPolicy.AVAILABLE, memory=1 << 20, warn=said.append
    )
    one = FakeRegistry()
    async with open_content(settings, portals_of([one])) as content:
        entries = await content.entries()
        content.ledger.database.write(is_full)
        for number in range(100):
            one.set(signed(b"x" * 100, 1, str(number)))
            assert (await (await content.entries()).read(ref(str(number)))).revision == 1
        assert entries is content.registry
        assert said == []
    (line,) = said
    assert line.endswith("what portals showed of the registry is not remembered")
