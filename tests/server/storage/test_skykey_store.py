"""The file of skykeys."""

import json
from functools import partial
from pathlib import Path

import httpx
import pytest
import trio

from skymount.errors import MalformedError, StorageError
from skymount.server.storage.skykey_store import SKYKEYS_FILE, SKYKEYS_LIMIT, SkykeyStore
from skymount.wire.skykey import Kind, Skykey
from tests.portal_process import failing_start, portal_process

MADE = Skykey(Kind.PRIVATE, bytes(range(32)), bytes(range(24)), "made elsewhere")


def test_keys_outlast_the_portal(tmp_path: Path) -> None:
    """What was answered is there after the portal was killed."""
    with portal_process(tmp_path) as portal:
        answer = httpx.post(f"{portal.url}/svc/createskykey?name=a&type=public-id")
        portal.kill()
    with portal_process(tmp_path) as portal:
        found = httpx.get(f"{portal.url}/svc/skykey?name=a")
        assert found.content == answer.content
    assert (tmp_path / SKYKEYS_FILE).stat().st_mode & 0o777 == 0o600
    assert json.loads((tmp_path / SKYKEYS_FILE).read_bytes())["version"] == 1


async def test_a_file_that_others_may_read_stops_the_portal(tmp_path: Path) -> None:
    skykeys = SkykeyStore.open(tmp_path)
    await skykeys.add(MADE)
    (tmp_path / SKYKEYS_FILE).chmod(0o640)
    start = partial(failing_start, "--listen", "127.0.0.1:0", "--data", str(tmp_path))
    said = await trio.to_thread.run_sync(start)
    assert f"chmod 600 {tmp_path / SKYKEYS_FILE}" in said
    (tmp_path / SKYKEYS_FILE).chmod(0o600)
    assert await SkykeyStore.open(tmp_path).all() == (MADE,)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff",
        b"[]",
        b'{"version":2,"skykeys":[]}',
        b'{"version":1,"skykeys":["skykey:AAAA"]}',
        b'{"version":1,"skykeys":[1]}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_file_stops_the_portal(tmp_path: Path, content: bytes) -> None:
    """Going on would lose the keys at the next change."""
    (tmp_path / SKYKEYS_FILE).write_bytes(content)
    (tmp_path / SKYKEYS_FILE).chmod(0o600)
    with pytest.raises(StorageError, match="is damaged"):
        SkykeyStore.open(tmp_path)


async def test_a_write_that_was_broken_off(tmp_path: Path) -> None:
    """What it left behind is no hindrance, and is not taken for keys."""
    skykeys = SkykeyStore.open(tmp_path)
    await skykeys.add(MADE)
    (tmp_path / f"{SKYKEYS_FILE}.new").write_bytes(b"{half of")
    reopened = SkykeyStore.open(tmp_path)
    await reopened.create("b", Kind.PUBLIC)
    assert len(await SkykeyStore.open(tmp_path).all()) == 2
    assert [path.name for path in tmp_path.iterdir()] == [SKYKEYS_FILE]


async def test_a_disk_that_fails_changes_nothing(tmp_path: Path) -> None:
    """Neither in memory nor on disk; the next change works again."""
    skykeys = SkykeyStore.open(tmp_path)
    await skykeys.add(MADE)
    obstacle = tmp_path / f"{SKYKEYS_FILE}.new"
    obstacle.mkdir()
    with pytest.raises(StorageError, match="cannot write skykeys"):
        await skykeys.delete(name=MADE.name)
    assert await skykeys.all() == (MADE,)
    obstacle.rmdir()
    await skykeys.delete(name=MADE.name)
    assert await SkykeyStore.open(tmp_path).all() == ()


async def test_changes_at_once(tmp_path: Path) -> None:
    """Each is kept; of two with one name only the first is."""
    skykeys = SkykeyStore.open(tmp_path)
    refused: list[MalformedError] = []

    async def create(name: str) -> None:
        try:
            await skykeys.create(name, Kind.PRIVATE)
        except MalformedError as error:
            refused.append(error)

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(create, f"key {number // 2}")
    assert len(refused) == 10
    names = {key.name for key in await SkykeyStore.open(tmp_path).all()}
    assert names == {f"key {number}" for number in range(10)}


async def test_there_is_an_end_to_keys(tmp_path: Path) -> None:
    keys = (
        Skykey(Kind.PUBLIC, number.to_bytes(32, "big"), bytes(24))
        for number in range(SKYKEYS_LIMIT)
    )
    skykeys = SkykeyStore(tmp_path / SKYKEYS_FILE, tuple(keys))
    with pytest.raises(MalformedError, match="1000 skykeys already"):
        await skykeys.add(MADE)
    await skykeys.delete(key_id=Skykey(Kind.PUBLIC, bytes(32), bytes(24)).id)
    await skykeys.add(MADE)
    assert len(await SkykeyStore.open(tmp_path).all()) == SKYKEYS_LIMIT
