"""The contract's SDK functions, each called as a user would, against a real portal."""

import json
import secrets
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from skymount.errors import NotFoundError
from skymount.portal import (
    EntryResult,
    JSONResult,
    PortalClient,
    RegistryEntry,
    derive_child_seed,
    gen_key_pair_and_seed,
    gen_key_pair_from_seed,
)
from tests.contract.conftest import FILES, LAST, Ready

KEYS = gen_key_pair_from_seed("contract")
PUBLIC, PRIVATE = KEYS.public_key, KEYS.private_key


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file into which the system's browser writes what it is asked to open."""
    browser, page = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" >"{page}.new" && mv "{page}.new" "{page}"\n')
    browser.chmod(0o700)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    monkeypatch.delitem(sys.modules, "webbrowser", raising=False)
    yield page
    sys.modules.pop("webbrowser", None)


@pytest.fixture
def data_key() -> str:
    """A data key that no other test uses."""
    return f"key {secrets.token_hex(8)}"


async def test_upload_file(client: PortalClient, tmp_path: Path) -> None:
    """uploadFile gives a link as text that holds skylink, merkleroot and bitfield."""
    path = tmp_path / "notes.txt"
    path.write_bytes(b"content")
    result = await client.upload_file(str(path))
    assert str(result) == f"svc://{result.skylink}"
    assert (len(result.merkleroot), result.bitfield) == (64, 0)
    assert (await client.get_file_content(str(result))).data == b"content"
    assert (await client.get_metadata(str(result))).metadata["filename"] == "notes.txt"


async def test_upload_directory(client: PortalClient, tmp_path: Path) -> None:
    """uploadDirectory takes a path, or files by their relative paths."""
    for name, content in FILES.items():
        (tmp_path / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "site" / name).write_bytes(content)
    for what, name in ((tmp_path / "site", ""), (FILES, "site")):
        link = str(await client.upload_directory(what, custom_dirname=name))
        metadata = (await client.get_metadata(link)).metadata
        assert (metadata["filename"], set(metadata["subfiles"])) == ("site", set(FILES))
        assert (await client.get_file_content(f"{link}/a.txt")).data == FILES["a.txt"]


async def test_download_file(client: PortalClient, ready: Ready, tmp_path: Path) -> None:
    """downloadFile writes content, or what a path selects, to a local file."""
    copy = tmp_path / "copy"
    link = f"svc://{ready.skylink}/dir/d.bin"
    assert (await client.download_file(copy, link)).verified == "yes"
    assert copy.read_bytes() == FILES["dir/d.bin"]
    await client.download_file(str(copy), ready.skylink)
    with zipfile.ZipFile(copy) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == FILES


async def test_open_file(client: PortalClient, ready: Ready, opened: Path) -> None:
    """openFile shows content in a browser."""
    await client.open_file(ready.skylink)
    await _written(opened)
    assert opened.read_text() == f"{ready.url}/{ready.skylink}"


async def _written(path: Path) -> None:
    import trio

    with trio.fail_after(30):
        while not path.exists():  # the browser may outlive the call that starts it
            await trio.sleep(0.01)


async def test_get_metadata(client: PortalClient, ready: Ready) -> None:
    """getMetadata gives {metadata, content_type, skylink}, also of a path inside."""
    found = await client.get_metadata(ready.skylink)
    assert found.metadata["filename"] == "site"
    assert found.content_type == "application/zip"
    assert found.skylink == f"svc://{ready.skylink}"
    inside = await client.get_metadata(f"{ready.skylink}/a.txt")
    assert set(inside.metadata["subfiles"]) == {"a.txt"}
    assert inside.content_type.startswith("text/plain")


async def test_get_file_content(client: PortalClient, ready: Ready) -> None:
    """getFileContent gives {data, content_type, metadata, skylink}; JSON is parsed."""
    found = await client.get_file_content(ready.skylink, path="dir/b c+%.json")
    assert found.data == {"n": 2**53 + 1}
    assert found.content_type == "application/json"
    assert found.metadata is not None
    assert set(found.metadata["subfiles"]) == {"dir/b c+%.json"}
    assert found.skylink == f"svc://{ready.skylink}"
    assert (await client.get_file_content(f"{ready.skylink}/a.txt")).data == FILES["a.txt"]


async def test_get_skylink_url(client: PortalClient, ready: Ready) -> None:
    """getSkylinkUrl is {base_url}/<skylink>."""
    base = f"{ready.url}/{ready.skylink}"
    assert client.get_skylink_url(f"svc://{ready.skylink}") == base
    assert client.get_skylink_url(ready.skylink, download=True) == f"{base}?attachment=true"


async def test_get_hns_url(client: PortalClient, ready: Ready) -> None:
    """getHnsUrl is {base_url}/hns/<domain>."""
    base = f"{ready.url}/hns/example"
    assert client.get_hns_url("example") == base
    assert client.get_hns_url("hns://example", download=True) == f"{base}?attachment=true"


async def test_get_hnsres_url(client: PortalClient, ready: Ready) -> None:
    """getHnsresUrl is {base_url}/hnsres/<domain>."""
    base = f"{ready.url}/hnsres/example"
    assert client.get_hnsres_url("example") == base
    assert client.get_hnsres_url("example", download=True) == f"{base}?attachment=true"


async def test_download_file_hns(client: PortalClient, ready: Ready, tmp_path: Path) -> None:
    """downloadFileHns writes what a domain leads to to a local file."""
    await client.download_file_hns(tmp_path / "copy", ready.domain, path="a.txt")
    assert (tmp_path / "copy").read_bytes() == FILES["a.txt"]


async def test_open_file_hns(client: PortalClient, ready: Ready, opened: Path) -> None:
    """openFileHns shows what a domain leads to in a browser."""
    await client.open_file_hns(ready.domain)
    await _written(opened)
    assert opened.read_text() == f"{ready.url}/hns/{ready.domain}"


async def test_resolve_hns(client: PortalClient, ready: Ready) -> None:
    """resolveHns gives the record as JSON."""
    assert (await client.resolve_hns(ready.domain)).data == {"skylink": f"svc://{ready.skylink}"}


async def test_registry_get_entry(client: PortalClient, data_key: str) -> None:
    """registry.getEntry gives {entry: {datakey, data, revision}, signature: hex}."""
    entry = RegistryEntry(data_key, b"data", LAST)
    await client.registry.set_entry(PRIVATE, entry)
    found = await client.registry.get_entry(PUBLIC, data_key, timeout=10)
    assert found.entry == entry
    assert found.signature is not None
    assert len(bytes.fromhex(found.signature)) == 64


async def test_registry_set_entry(client: PortalClient, data_key: str) -> None:
    """registry.setEntry returns nothing; what it set is there."""
    for revision, data in ((0, b"zero"), (1, b""), (7, b"seven")):
        entry = RegistryEntry(data_key, data, revision)
        assert await client.registry.set_entry(PRIVATE, entry) is None  # type: ignore[func-returns-value]
        assert (await client.registry.get_entry(PUBLIC, data_key)).entry == entry


async def test_registry_get_entry_url(client: PortalClient, ready: Ready) -> None:
    """registry.getEntryUrl has the algorithm, the key and the hashed data key, and no more."""
    hashed = "7c96a0537ab2aaac9cfe0eca217732f4e10791625b4ab4c17e4d91c8078713b9"
    query = f"publickey=ed25519%3A{PUBLIC}&datakey={hashed}"
    assert client.registry.get_entry_url(PUBLIC, "app") == f"{ready.url}/svc/registry?{query}"


async def test_db_get_json(client: PortalClient, data_key: str) -> None:
    """db.getJSON gives {data, revision}; both are None when there is nothing."""
    absent = await client.db.get_json(PUBLIC, data_key, timeout=10)
    assert (absent.data, absent.revision) == (None, None)
    await client.db.set_json(PRIVATE, data_key, {"n": 2**53 + 1})
    found = await client.db.get_json(PUBLIC, data_key)
    assert (found.data, found.revision) == ({"n": 2**53 + 1}, 0)


async def test_db_set_json(client: PortalClient, data_key: str) -> None:
    """db.setJSON takes the next revision, or the one it is told."""
    for document, revision, stored in (([1], None, 0), ({"a": 1}, None, 1), ([], 2**60, 2**60)):
        await client.db.set_json(PRIVATE, data_key, document, revision=revision)
        found = await client.db.get_json(PUBLIC, data_key)
        assert (found.data, found.revision) == (document, stored)


async def test_create_skykey(client: PortalClient, data_key: str) -> None:
    """createSkykey gives the record {skykey, name, id, type}."""
    made = await client.create_skykey(data_key, "public-id")
    record = json.loads(made.encode_record())
    assert list(record) == ["skykey", "name", "id", "type"]
    assert (made.name, made.kind.value, len(made.id)) == (data_key, "public-id", 24)
    assert made.text.startswith("skykey:")


async def test_add_skykey(client: PortalClient, data_key: str) -> None:
    """addSkykey takes a key made elsewhere and returns nothing."""
    made = await client.create_skykey(data_key, "private-id")
    await client.delete_skykey(name=data_key)
    assert await client.add_skykey(made.text) is None  # type: ignore[func-returns-value]
    assert await client.get_skykey_by_id(made.id) == made


async def test_get_skykey_by_name(client: PortalClient, data_key: str) -> None:
    """getSkykeyByName gives the record; an unknown one is not found."""
    made = await client.create_skykey(data_key, "private-id")
    assert await client.get_skykey_by_name(data_key) == made
    with pytest.raises(NotFoundError):
        await client.get_skykey_by_name(f"not {data_key}")


async def test_get_skykey_by_id(client: PortalClient, data_key: str) -> None:
    """getSkykeyById gives the record; an unknown one is not found."""
    made = await client.create_skykey(data_key, "public-id")
    assert await client.get_skykey_by_id(made.id) == made
    with pytest.raises(NotFoundError):
        await client.get_skykey_by_id("A" * 22 + "==")


async def test_get_skykeys(client: PortalClient, data_key: str) -> None:
    """getSkykeys gives the records of all."""
    made = await client.create_skykey(data_key, "private-id")
    assert made in await client.get_skykeys()


def test_gen_key_pair_and_seed() -> None:
    """genKeyPairAndSeed gives a new pair, which its seed gives again."""
    pair, other = gen_key_pair_and_seed(), gen_key_pair_and_seed()
    assert pair.seed != other.seed
    assert gen_key_pair_from_seed(pair.seed).private_key == pair.private_key
    assert (len(pair.public_key), len(pair.private_key)) == (64, 128)
    bytes.fromhex(pair.seed)


def test_gen_key_pair_from_seed() -> None:
    """genKeyPairFromSeed always gives the pair of docs/wire.md 10 for its seed."""
    pair = gen_key_pair_from_seed("insecure test seed")
    assert pair.public_key == "658b900df55e983ce85f3f9fb2a088d568ab514e7bbda51cfbfb16ea945378d9"
    assert pair.private_key.endswith(pair.public_key)
    assert len(gen_key_pair_from_seed("a pass-phrase of any length, " * 99).public_key) == 64


def test_derive_child_seed() -> None:
    """deriveChildSeed gives the hex digits of docs/wire.md 10."""
    master = "c1197e1275fbf570d21dde01a00af83ed4a743d1884e4a09cebce0dd21ae254c"
    child = "6140d0d1d8f9e2b759ca7fc96ad3620cd382189f8d46339737e26a2764122b99"
    assert derive_child_seed(master, "seed") == child


async def test_absent_results_are_not_none(client: PortalClient, data_key: str) -> None:
    """What is absent is a result with empty members, rather than None itself."""
    assert await client.registry.get_entry(PUBLIC, data_key) == EntryResult()
    assert await client.db.get_json(PUBLIC, data_key) == JSONResult()
