"""An archive brings everything into another directory, and nothing that is not proved."""

import io
import os
import shutil
import tarfile
import time
from contextlib import closing
from pathlib import Path

import pytest

from skymount.errors import MalformedError, StorageError
from skymount.server.backup import exporting
from skymount.server.backup.exporting import export
from skymount.server.backup.importing import Imported, import_archive
from skymount.server.config import PortalConfig
from skymount.server.storage.reading.local_reader import LocalReader
from skymount.server.storage.retention.pin_store import PinStore, peek_pins
from skymount.server.storage.retention.verification import Verified, verify
from skymount.server.storage.skyfile_store import SkyfileStore
from skymount.wire import merkle
from skymount.wire.base_sector import build_fanned_out, build_inline
from skymount.wire.skylink import SECTOR_SIZE, Skylink
from tests.portal_process import portal_process
from tests.server.http_client import Client
from tests.server.registry_entries import put, signed
from tests.server.storage.stored import damage


def _archive(data: Path, *, with_skykeys: bool = False) -> bytes:
    file = io.BytesIO()
    with closing(LocalReader(data)) as reader:
        export(reader, file, with_skykeys=with_skykeys, progress=lambda _: None)
    return file.getvalue()


def _import(data: Path, archive: bytes, *, with_skykeys: bool = False) -> Imported:
    return import_archive(
        PortalConfig(data), io.BytesIO(archive), with_skykeys=with_skykeys, progress=lambda _: None
    )


def _verified(data: Path) -> list[Verified]:
    with closing(LocalReader(data)) as reader:
        return list(verify(reader))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of a portal with one of each kind."""
    data = tmp_path_factory.mktemp("source")
    with portal_process(data) as portal, Client(base_url=portal.url, timeout=60) as client:
        client.post("/svc/createskykey", params={"name": "key", "type": "public-id"})
        links = {
            "small": client.upload_file("small", b"small"),
            "large": client.upload_file("large", os.urandom(SECTOR_SIZE + 5)),
            "locked": client.upload_file("locked", b"secret" * SECTOR_SIZE, skykeyname="key"),
            "many": client.upload({f"{'n' * 100}/{n}": b"" for n in range(20_000)}, filename="m"),
        }
        put(client, signed("entry", b"data", 5))
    with closing(PinStore.open(data)) as pins:
        pins.pin(Skylink(links["small"]), "why", 7.0)
    (data / "hns.zone").write_text(f"example sia://{links['small']}\n")
    (data / "links").write_text(" ".join(links.values()))
    return data


def test_everything_is_brought(source: Path, tmp_path: Path) -> None:
    """RT6: twice is the same; the archive has no skykeys unless asked for."""
    small, large, locked, many = (source / "links").read_text().split()
    archive = _archive(source, with_skykeys=True)
    assert b"skykeys.json" not in _archive(source)
    done = _import(tmp_path, archive, with_skykeys=True)
    assert done == Imported(skyfiles=4, entries=1, pins=1, names=1, skykeys=1)
    again = _import(tmp_path, archive)
    assert (again.skyfiles, again.entries, again.present, again.problems) == (0, 0, 5, [])
    assert not [found for found in _verified(tmp_path) if found.problem]
    (pin,) = peek_pins(tmp_path, [Skylink(small)]).values()
    assert (pin.reason, pin.pinned) == ("why", 7.0)
    with portal_process(tmp_path) as portal, Client(base_url=portal.url, timeout=60) as client:
        assert client.get("/hns/example").content == b"small"
        assert len(client.get(f"/{large}").content) == SECTOR_SIZE + 5
        assert client.get(f"/{locked}").content == b"secret" * SECTOR_SIZE
        assert len(client.get(f"/svc/metadata/{many}").json()["subfiles"]) == 20_000
        assert client.get("/svc/stats").json()["numfiles"] == 4
        put(client, signed("entry", b"newer", 6))
        with pytest.raises(StorageError, match="another portal is running"):
            _import(tmp_path, archive)
    assert _import(tmp_path, archive).entries == 0


def test_what_is_not_proved_is_not_brought(source: Path, tmp_path: Path) -> None:
    """RT6: a bit anywhere is found; the rest is brought."""
    small, large, locked, many = (source / "links").read_text().split()
    bad = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(_archive(source))) as old,
        tarfile.open(fileobj=bad, mode="w") as new,
    ):
        for member in old:
            file = old.extractfile(member)
            assert file is not None
            content = bytearray(file.read())
            if member.name in (
                f"skyfiles/{small}/base",
                f"skyfiles/{large}/payload",
                f"skyfiles/{many}/extension",
            ):
                content[-1 if "base" in member.name else 200] ^= 1
            if member.name.startswith("entries"):
                content = bytearray(content.replace(b'"revision":5', b'"revision":9'))
            new.addfile(member, io.BytesIO(content))
    done = _import(tmp_path, bad.getvalue())
    assert done.skyfiles == 1
    assert sorted(problem.partition(":")[0] for problem in done.problems if "entry" not in problem)
    assert len(done.problems) == 4
    with closing(SkyfileStore.beside(tmp_path)) as store:
        absent = [store.find(Skylink(each)) is None for each in (small, large, locked, many)]
    assert absent == [True, True, False, True]
    assert not list((tmp_path / "v1/incoming").iterdir())


@pytest.mark.parametrize(
    "archive", [b"", b"no archive" * 1000, b"\0" * 10240], ids=["empty", "noise", "zeros"]
)
def test_what_is_no_archive(tmp_path: Path, archive: bytes) -> None:
    """RT6: one line."""
    with pytest.raises(MalformedError):
        _import(tmp_path, archive)


def _made(*members: tuple[tarfile.TarInfo | str, bytes]) -> bytes:
    """Return an archive made by hand."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in (("portal.json", b'{"portal_archive":1}'), *members):
            member = tarfile.TarInfo(name) if isinstance(name, str) else name
            if content:
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
            else:
                file.write(member.tobuf(tarfile.PAX_FORMAT))
    return file.getvalue()


def _member(**fields: object) -> tarfile.TarInfo:
    member = tarfile.TarInfo("unknown")
    for name, value in fields.items():
        setattr(member, name, value)
    return member


_HOSTILE = {
    "sparse": (_member(type=tarfile.GNUTYPE_SPARSE), "no file"),
    "link": (_member(type=tarfile.SYMTYPE, linkname="/etc/passwd"), "no file"),
    "long header": (_member(pax_headers={"comment": "x" * (2 << 20)}), "too long"),
    "no numbers": (_member(pax_headers={"GNU.sparse.map": "x"}), "damaged"),
    "huge": (_member(size=1 << 62), "cut off"),
}


@pytest.mark.parametrize("name", _HOSTILE)
def test_hostile_archives(tmp_path: Path, name: str) -> None:
    """RT6: an error at once, whatever tarfile does with them."""
    member, said = _HOSTILE[name]
    with pytest.raises(MalformedError, match=said):
        _import(tmp_path, _made((member, b""), ("end.json", b"{}")))


def test_a_base_sector_without_its_last_zeros(tmp_path: Path) -> None:
    """RT6: it has the right root, but cannot be served. One that is stored so is damaged (RT4)."""
    content = b"f" + bytes(9)
    whole = build_inline(b'{"filename":"f"}', content)
    link = Skylink.v1(merkle.sector_root(whole), len(whole))
    for base, problems in ((whole[:-4], 1), (whole, 0)):
        made = _made((f"skyfiles/{link}/base", base), ("end.json", b"{}"))
        assert len(_import(tmp_path, made).problems) == problems
    assert [one.problem for one in _verified(tmp_path)] == [""]
    damage(tmp_path, link, lambda base: base[:-4])
    (found,) = _verified(tmp_path)
    assert "its base sector is cut short" in found.problem


def test_a_payload_without_its_last_zeros(tmp_path: Path) -> None:
    """RT6: it has the right root, as sectors are padded, but not its length."""
    content = bytes(SECTOR_SIZE + 5)
    roots = b"".join(merkle.sector_root(part) for part in (content[5:], content[SECTOR_SIZE:]))
    base, _ = build_fanned_out(len(content), roots, b'{"filename":"f"}')
    link = Skylink.v1(merkle.sector_root(base), len(base))
    for payload, problems in ((content[:-4], 1), (content, 0)):
        made = _made(
            (f"skyfiles/{link}/base", base),
            (f"skyfiles/{link}/payload", payload),
            ("end.json", b"{}"),
        )
        assert len(_import(tmp_path, made).problems) == problems


def test_pins_are_in_members_of_bounded_size(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RT6: what is exported can be imported, however many there are."""
    monkeypatch.setattr(exporting, "_LINES", 1)
    data = tmp_path / "data"
    shutil.copytree(source, data)
    links = (source / "links").read_text().split()
    with closing(PinStore.open(data)) as pins:
        for link in links:
            pins.pin(Skylink(link))
    archive = _archive(data)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        names = tar.getnames()
    assert names[-5:] == [*(f"pins/{number:06}.jsonl" for number in range(1, 5)), "end.json"]
    assert _import(tmp_path / "brought", archive).pins == 4


def test_what_cannot_be_read_is_replaced(source: Path, tmp_path: Path) -> None:
    """RT6: a skyfile that is damaged here keeps nothing of the archive away."""
    archive = _archive(source)
    assert _import(tmp_path, archive).skyfiles == 4
    small, large, *_ = (source / "links").read_text().split()
    for link in (small, large):
        damage(tmp_path, link, lambda base: base[:20])
    again = _import(tmp_path, archive)
    assert (again.skyfiles, again.present, again.problems) == (2, 3, [])
    assert not [found for found in _verified(tmp_path) if found.problem]


def test_times_of_pins_that_are_no_times(tmp_path: Path) -> None:
    """RT6: they are never after now, so each can be shown."""
    base = build_inline(b'{"filename":"f"}', b"x")
    link = Skylink.v1(merkle.sector_root(base), len(base))
    for number, given in enumerate(("1e300", "-1e300")):
        data, pin = tmp_path / str(number), f'{{"skylink":"{link}","reason":"","pinned":{given}}}'
        made = _made(
            (f"skyfiles/{link}/base", base), ("pins/1.jsonl", pin.encode()), ("end.json", b"{}")
        )
        assert _import(data, made).pins == 1
        assert 0 <= peek_pins(data, [link])[link].pinned <= time.time()


def test_an_archive_that_ends_between_members(source: Path, tmp_path: Path) -> None:
    """RT6: tarfile takes that, zeros and a damaged header for the end."""
    archive = _archive(source)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        place = tar.getmembers()[-4].offset
    damaged = archive[:place] + b"?" + archive[place + 1 :]
    for cut in (archive[:place], archive[:place] + bytes(10240), damaged):
        with pytest.raises(MalformedError, match="cut off"):
            _import(tmp_path, cut)


def test_an_archive_that_is_cut_off(source: Path, tmp_path: Path) -> None:
    """RT6: nothing of it is half there; it can be begun again."""
    archive = _archive(source)
    with pytest.raises(MalformedError):
        _import(tmp_path, archive[: len(archive) // 2])
    assert not [found for found in _verified(tmp_path) if found.problem]
    assert not list((tmp_path / "v1/incoming").iterdir())
    _import(tmp_path, archive)
    assert len(_verified(tmp_path)) == 4
