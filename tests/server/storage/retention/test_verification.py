"""Every root of what is stored is computed and compared."""

from contextlib import closing
from pathlib import Path

from skymount.server.storage.retention.verification import verify
from skymount.server.storage.skyfile_store import SkyfileStore
from skymount.wire.skylink import SECTOR_SIZE, Skylink
from tests.server.storage.stored import put


def _flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


def test_what_is_damaged_is_named(tmp_path: Path) -> None:
    """RT4: by a bit in any place, a file that is shorter, or one that is gone."""
    with closing(SkyfileStore.open(tmp_path)) as store:
        good = [put(store, b"good"), put(store, b"g" * (SECTOR_SIZE + 1))]
        spilled = put(store, b"s" * (SECTOR_SIZE + 1), b"{" + b" " * SECTOR_SIZE + b"}")
        links = [put(store, bytes([number]) * (SECTOR_SIZE + 9)) for number in range(4)]
        places = [
            (links[0], "base", 100),
            (links[1], "payload", SECTOR_SIZE + 3),
            (spilled, "extension", 77),
        ]

        def directory(link: Skylink) -> Path:
            return tmp_path / "v1/skyfiles" / f"{link.root[0]:02x}" / str(link)

        beside = SkyfileStore.beside(tmp_path)
        assert not [found for found in verify(beside) if found.problem]
        for link, name, at in places:
            _flip(directory(link) / name, at)
        (directory(links[2]) / "payload").write_bytes(b"short")
        (directory(links[3]) / "base").unlink()
        found = {found.skylink: found.problem for found in verify(beside)}
        assert {link for link, problem in found.items() if not problem} == set(good)
        assert set(found) == {*good, *links, spilled}
        assert "base sector" in found[links[0]]
        assert "sector 2" in found[links[1]]
        assert [one.skylink for one in verify(beside, [good[0], Skylink.v1(bytes(32), 9)])] == [
            good[0]
        ]
