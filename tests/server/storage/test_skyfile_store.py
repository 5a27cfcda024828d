"""The store: whole or not at all, once, and by one portal at a time."""

import os
from pathlib import Path

import pytest

from skymount.errors import StorageError
from skymount.server.storage.skyfile_store import SkyfileStore
from skymount.server.storage.stored_range import read_range
from skymount.server.storage.stored_skyfile import list_sectors
from skymount.wire import merkle
from skymount.wire.skylink import SECTOR_SIZE
from tests.server.storage.stored import (
    IN_FILES,
    METADATA,
    damage,
    directory_of,
    put,
    skylinks_of,
)


def test_what_was_committed_is_found_after_reopening(tmp_path: Path) -> None:
    """Small and large, with their parts."""
    large = b"z" * (SECTOR_SIZE + 5)
    store = SkyfileStore.open(tmp_path)
    links = [put(store, b"hi"), put(store, large)]
    store.close()
    store = SkyfileStore.open(tmp_path)
    assert set(skylinks_of(store)) == set(links)
    for link, payload in zip(links, (b"hi", large), strict=True):
        found = store.find(link)
        assert found is not None
        assert read_range(found.metadata) == METADATA
        assert read_range(found.payload) == payload
    store.close()


def test_all_sectors_have_the_root_that_is_claimed(tmp_path: Path) -> None:
    """Base, content and spilled ones, over two levels of roots as over one."""
    store = SkyfileStore.open(tmp_path)
    metadata = b'{"filename":"' + b"m" * (2 * SECTOR_SIZE) + b'"}'
    link = put(store, b"p" * (SECTOR_SIZE + 1), metadata)
    found = store.find(link)
    assert found is not None
    assert read_range(found.metadata) == metadata
    found_sectors = list(list_sectors(found))
    assert len(found_sectors) == 1 + 2 + 3
    for root, stored in found_sectors:
        assert merkle.sector_root(read_range(stored)) == root
    store.close()


def test_a_crash_before_the_rename_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start removes what was left."""
    store = SkyfileStore.open(tmp_path)

    def crash(*_: object) -> None:
        raise OSError(5, "crash")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", crash)
        with pytest.raises(StorageError, match="cannot store an upload: crash"):
            put(store, bytes(IN_FILES))
    assert list(skylinks_of(store)) == []
    store.begin().put_sector(0, bytes(32), b"half of an upload")
    assert list((tmp_path / "v1" / "incoming").iterdir())
    store.close()
    store = SkyfileStore.open(tmp_path)
    assert not list((tmp_path / "v1" / "incoming").iterdir())
    assert list(skylinks_of(store)) == []
    store.close()


def test_files_and_directories_are_synced_before_and_after_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File, its directory, rename, the directory that holds the name."""
    store = SkyfileStore.open(tmp_path)
    put(
        store, b"f" * IN_FILES
    )  # the shard of the next one may be new; its sync is not at stake here
    events: list[str] = []
    fsync, rename = os.fsync, os.rename

    def traced_fsync(fd: int) -> None:
        events.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)
        fsync(fd)

    def traced_rename(old: Path, new: Path) -> None:
        events.append("rename")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", traced_fsync)
    monkeypatch.setattr(os, "rename", traced_rename)
    link = put(store, b"s" * IN_FILES)
    at = events.index("rename")
    assert events[0] == "base"
    assert len(events[1]) == 32  # the directory of the upload
    assert events[at + 1 :] == [f"{link.root[0]:02x}"]
    store.close()


@pytest.mark.parametrize("size", [2, IN_FILES])
def test_the_same_skyfile_twice_is_kept_once(tmp_path: Path, size: int) -> None:
    """The second upload is dropped."""
    store = SkyfileStore.open(tmp_path)
    assert put(store, bytes(size)) == put(store, bytes(size))
    assert len(list(skylinks_of(store))) == 1
    assert not list((tmp_path / "v1" / "incoming").iterdir())
    store.close()


def test_what_is_damaged_is_replaced_by_the_next_upload(tmp_path: Path) -> None:
    """Each part: changed, cut off, or lost."""
    store = SkyfileStore.open(tmp_path)
    metadata = b'{"filename":"' + b"m" * SECTOR_SIZE + b'"}'
    content = b"p" * (SECTOR_SIZE + 1)
    link = put(store, content, metadata)
    directory = tmp_path / "v1" / "skyfiles" / f"{link.root[0]:02x}" / str(link)
    whole = {path.name: path.read_bytes() for path in directory.iterdir()}
    assert set(whole) == {"base", "payload", "extension"}
    for name, data in whole.items():
        for damaged in (b"\x07" + data[1:], data[:-1], b"", None):
            if damaged is None:
                (directory / name).unlink()
            else:
                (directory / name).write_bytes(damaged)
            assert put(store, content, metadata) == link
            assert {path.name: path.read_bytes() for path in directory.iterdir()} == whole
    assert not list((tmp_path / "v1" / "incoming").iterdir())
    store.close()


def test_a_directory_has_one_portal(tmp_path: Path) -> None:
    """A second one is refused until the first has closed."""
    store = SkyfileStore.open(tmp_path)
    with pytest.raises(StorageError, match="another portal"):
        SkyfileStore.open(tmp_path)
    store.close()
    SkyfileStore.open(tmp_path).close()


@pytest.mark.parametrize("size", [2, IN_FILES])
def test_damage_is_an_error_and_not_absence(tmp_path: Path, size: int) -> None:
    """A truncated base sector is found out; foreign files are passed over."""
    store = SkyfileStore.open(tmp_path)
    link = put(store, bytes(size))
    (directory_of(tmp_path, link).parent / "lost+found").mkdir()
    assert list(skylinks_of(store)) == [link]
    damage(tmp_path, link, lambda base: base[:-1])
    with pytest.raises(StorageError, match="damaged: its base sector is cut short"):
        store.find(link)
    damage(tmp_path, link, lambda base: b"\x07" + base[1:])
    with pytest.raises(StorageError, match="unsupported skyfile version 7"):
        store.find(link)
    store.close()


def test_the_directory_is_private(tmp_path: Path) -> None:
    """Others on the machine do not read what was uploaded, whatever the umask."""
    before = os.umask(0)
    try:
        store = SkyfileStore.open(tmp_path / "new" / "data")
        put(store, b"content")
        put(store, bytes(IN_FILES))
        assert (tmp_path / "new/data/v1/small.sqlite3-wal").stat().st_mode & 0o077 == 0
        store.close()
    finally:
        os.umask(before)
    made = [tmp_path / "new", *(tmp_path / "new").rglob("*")]
    assert [path for path in made if path.stat().st_mode & 0o077] == []
    assert any(path.name == "base" for path in made)


def test_what_is_removed_is_gone_at_once(tmp_path: Path) -> None:
    """Nothing of it is left; what is not there is no error."""
    store = SkyfileStore.open(tmp_path)
    kept, removed = put(store, b"kept"), put(store, b"z" * (SECTOR_SIZE + 5))
    assert store.remove(removed)
    assert not store.remove(removed)
    assert store.find(removed) is None
    assert list(skylinks_of(store)) == [kept]
    assert not list((tmp_path / "v1" / "incoming").iterdir())
    store.close()


def test_parts_are_taken_back(tmp_path: Path) -> None:
    """The content of a small upload, which goes into its base sector."""
    store = SkyfileStore.open(tmp_path)
    upload = store.begin()
    for offset, part in ((4, b"more"), (0, b"some")):
        upload.put_part(offset, part)
    assert upload.take_parts() == b"somemore"
    upload.close()
    assert not list((tmp_path / "v1" / "incoming").iterdir())
    store.close()
