"""The list of skyfiles: repaired after a start, made anew when damaged."""

import os
import shutil
from pathlib import Path

import pytest

from skymount.server.storage.skyfile_list import LIST_FILE, SkyfileList
from skymount.server.storage.skyfile_store import SkyfileStore
from skymount.wire.skylink import Skylink
from tests.portal_process import portal_process
from tests.server.http_client import Client


@pytest.fixture
def links(tmp_path: Path) -> list[str]:
    """What a portal has stored in `tmp_path`, the oldest first."""
    with portal_process(tmp_path) as portal, Client(base_url=portal.url) as client:
        return [client.upload_file(f"file {number}", bytes(number)) for number in range(4)]


def remove_list(data: Path) -> None:
    for file in (data / "v1").glob(f"{LIST_FILE}*"):
        file.unlink()


async def listed(data: Path) -> list[tuple[str, str, int]]:
    """Return the list after it was repaired."""
    store = SkyfileStore.open(data)
    try:
        found = SkyfileList.open(data, store)
        try:
            await found.repair()
            page = await found.page("", 0, 100)
            assert page.unread == 0
            return [(row.skylink, row.name, row.size) for row in page.rows]
        finally:
            found.close()
    finally:
        store.close()


async def test_what_the_list_lacks_is_read(tmp_path: Path, links: list[str]) -> None:
    """B2: with the time of the file; so is everything if there is no list."""
    before = await listed(tmp_path)
    assert [link for link, _, _ in before] == links[::-1]
    remove_list(tmp_path)
    for at, link in enumerate(links):
        name = f"{Skylink.parse(link).root[0]:02x}/{link}/base"
        os.utime(tmp_path / "v1/skyfiles" / name, (at, at))
    assert await listed(tmp_path) == before
    assert before[0] == (links[3], "file 3", 3)


async def test_what_is_gone_is_dropped(tmp_path: Path, links: list[str]) -> None:
    """B2: a skyfile whose directory was removed while no portal ran."""
    shutil.rmtree(tmp_path / "v1/skyfiles" / f"{Skylink.parse(links[1]).root[0]:02x}" / links[1])
    assert [link for link, _, _ in await listed(tmp_path)] == [links[3], links[2], links[0]]


async def test_a_damaged_list_is_made_anew(
    tmp_path: Path, links: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """B2: nothing is lost with it."""
    remove_list(tmp_path)
    (tmp_path / "v1" / LIST_FILE).write_bytes(b"no database" * 1000)
    assert sorted(link for link, _, _ in await listed(tmp_path)) == sorted(links)
    assert "made anew" in caplog.text


async def test_a_damaged_skyfile_is_listed_without_its_name(
    tmp_path: Path, links: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """B2: the others are listed as ever."""
    remove_list(tmp_path)
    path = tmp_path / "v1/skyfiles" / f"{Skylink.parse(links[2]).root[0]:02x}" / links[2] / "base"
    path.write_bytes(path.read_bytes()[:99] + b"{broken")
    found = {link: name for link, name, _ in await listed(tmp_path)}
    assert found == {links[0]: "file 0", links[1]: "file 1", links[2]: "", links[3]: "file 3"}
    assert links[2] in caplog.text
