"""Archives: byte for byte what was uploaded, under the full names."""

import io
import tarfile
import zipfile

import pytest

from skymount.wire.http.multipart import PartHeader
from tests.server.http_client import Client, skylink_of

_FILES = {
    "readme.txt": b"hello",
    "dir/empty": b"",
    "dir/ünï/\U0001f600.bin": bytes(range(256)) * 5000,
    "dir/" + "long" * 40: b"x",
    "z": b"last" * 300_000,
}


@pytest.fixture(scope="module")
def link(client: Client) -> str:
    """A directory of odd files, above 2 MiB."""
    parts = [(PartHeader("files[]", name, "", 0o755), data) for name, data in _FILES.items()]
    return skylink_of(client.post_form(parts, {"filename": "bundle"}))


def _unzip(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def _untar(data: bytes, mode: str) -> dict[str, bytes]:
    found = {}
    with tarfile.open(fileobj=io.BytesIO(data), mode=mode) as archive:  # type: ignore[call-overload]
        for member in archive:
            assert member.mode == 0o755
            assert member.mtime == 0
            file = archive.extractfile(member)
            assert file is not None
            found[member.name] = file.read()
    return found


@pytest.mark.parametrize("archive", ["zip", "tar", "targz", "ZIP"])
@pytest.mark.parametrize(("path", "prefix"), [("", ""), ("/dir", "dir/"), ("/z", "z")])
def test_an_archive_holds_what_was_uploaded(
    client: Client, link: str, archive: str, path: str, prefix: str
) -> None:
    """In upload order, with full names, the whole or a part; the same bytes each time."""
    answer = client.get(f"/{link}{path}?format={archive}", headers={"Range": "bytes=0-1"})
    assert answer.status_code == 200
    assert "Content-Length" not in answer.headers
    kind = archive.lower()
    types = {"zip": "application/zip", "tar": "application/x-tar", "targz": "application/gzip"}
    assert answer.headers["Content-Type"] == types[kind]
    name = (path[1:] or "bundle") + {"targz": ".tar.gz"}.get(kind, f".{kind}")
    assert answer.headers["Content-Disposition"] == f'attachment; filename="{name}"'
    data = answer.content
    found = _unzip(data) if kind == "zip" else _untar(data, "r:" if kind == "tar" else "r:gz")
    expected = {name: data for name, data in _FILES.items() if name.startswith(prefix)}
    assert found == expected
    assert list(found) == list(expected)
    assert client.get(f"/{link}{path}?format={archive}").content == data


def test_a_raw_upload_is_an_archive_of_one(client: Client) -> None:
    """Under its filename, with a mode that unpacks readable."""
    posted = client.post(
        "/svc/skyfile?filename=raw.txt", content=b"raw", headers={"Content-Type": "x/y"}
    )
    answer = client.get(f"/{skylink_of(posted)}?format=tar")
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        member = archive.getmember("raw.txt")
        assert (member.size, member.mode) == (3, 0o644)


def test_an_archive_of_many_files(client: Client) -> None:
    """Tiny members are sent together."""
    files = {f"d{n % 7}/{n}": b"%d" % n for n in range(5000)}
    link = client.upload(files)
    assert _unzip(client.get(f"/{link}?format=zip&no-response-metadata=1").content) == files
