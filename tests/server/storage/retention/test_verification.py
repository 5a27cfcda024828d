"""Every root of what is stored is computed and compared."""

from contextlib import closing
from pathlib import Path

from skymount.server.storage.reading.local_reader import LocalReader
from skymount.server.storage.retention.verification import verify
from skymount.server.storage.skyfile_store import SkyfileStore
from skymount.wire.skylink import SECTOR_SIZE, Skylink
from tests.server.storage.stored import damage, directory_of, put


def _flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


def test_what_is_damaged_is_named(tmp_path: Path) -> None:
    """RT4: by a bit in any place, a file that is shorter, or one that is gone."""
    with (
        closing(SkyfileStore.open(tmp_path)) as store,
        closing(LocalReader(tmp_path)) as beside,
    ):
        good = [put(store, b"good"), put(store, b"g" * (SECTOR_SIZE + 1))]
        small = put(store, b"small")
        spilled = put(store, b"s" * (SECTOR_SIZE + 1), b"{" + b" " * SECTOR_SIZE + b"}")
        links = [put(store, bytes([number]) * (SECTOR_SIZE + 9)) for number in range(4)]
        places = [
            (links[0], "base", 100),
            (links[1], "payload", SECTOR_SIZE + 3),
            (spilled, "extension", 77),
        ]

        assert not [found for found in verify(beside) if found.problem]
        for link, name, at in places:
            _flip(directory_of(tmp_path, link) / name, at)
        damage(tmp_path, small, lambda base: base[:-1] + b"L")
        (directory_of(tmp_path, links[2]) / "payload").write_bytes(b"short")
        (directory_of(tmp_path, links[3]) / "base").unlink()
        found = {found.skylink: found.problem for found in verify(beside)}
        assert {link for link, problem in found.items() if not problem} == set(good)
        assert set(found) == {*good, *links, spilled, small}
        assert "base sector" in found[links[0]]
        assert "base sector" in found[small]
        assert "sector 2" in found[links[1]]
        assert [one.skylink for one in verify(beside, [good[0], Skylink.v1(bytes(32), 9)])] == [
            good[0]
        ]
