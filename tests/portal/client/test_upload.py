"""The body of an upload: exactly as long as it says, with names of every sort, read from disk."""

import io
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from python_multipart.multipart import MultipartParser

from skymount.errors import (
    MalformedError,
    NotFoundError,
    PortalError,
    PortalTimeoutError,
    RequestRefusedError,
)
from skymount.portal.client.client import PortalClient
from skymount.portal.client.upload import UploadBody
from skymount.portal.client.upload_source import UPLOAD_CHUNK_SIZE, UploadSource
from skymount.settings import UploadProgress
from skymount.wire.http.multipart import PartHeader
from skymount.wire.http.responses import UploadResult
from tests.fakes.portal import (
    FakePortal,
    closes_after,
    redirects,
    resets_after,
    running,
    stalls_after,
    status,
)
from tests.fakes.skyfiles import noise, of_files
from tests.portal_process import PortalProcess

SMALL = of_files({"a.txt": b"hello"})


class Named(io.BytesIO):
    """Bytes as a file object with a name."""

    name = "named.bin"


class Unsized(io.BytesIO):
    """A file object that cannot be sought, as a pipe."""

    def seekable(self) -> bool:
        return False


async def bytes_of(body: UploadBody) -> bytes:
    """Return a whole body, whose length must be as declared."""
    found = b"".join([piece async for piece in body])
    assert len(found) == body.size
    return found


def parts_of(body: UploadBody, raw: bytes) -> list[tuple[PartHeader, bytes]]:
    """Take a form apart with a parser that is not ours."""
    found: list[tuple[PartHeader, bytes]] = []
    headers: list[tuple[bytes, bytes]] = []
    state = {"field": b"", "value": b"", "data": b""}

    def collect(key: str):
        def add(data: bytes, start: int, stop: int) -> None:
            state[key] += data[start:stop]

        return add

    def header_end() -> None:
        headers.append((state["field"], state["value"]))
        state.update(field=b"", value=b"")

    def part_end() -> None:
        found.append((PartHeader.parse(headers), state["data"]))
        headers.clear()
        state.update(data=b"")

    parser = MultipartParser(
        body.headers["Content-Type"].partition("boundary=")[2],
        {
            "on_header_field": collect("field"),
            "on_header_value": collect("value"),
            "on_header_end": header_end,
            "on_part_data": collect("data"),
            "on_part_end": part_end,
        },
    )
    parser.write(raw)
    parser.finalize()
    return found


async def test_file(tmp_path: Path):
    """A file is one part named `file`, with name, type, mode and content."""
    file = tmp_path / "page.html"
    file.write_bytes(b"<html>")
    file.chmod(0o4750)
    body = UploadBody.of_path(file)
    assert body.dirname == ""
    part = PartHeader("file", "page.html", "text/html", 0o750)
    assert parts_of(body, await bytes_of(body)) == [(part, b"<html>")]


@pytest.mark.parametrize(
    "size",
    [
        UPLOAD_CHUNK_SIZE - 1,
        UPLOAD_CHUNK_SIZE,
        UPLOAD_CHUNK_SIZE + 1,
        3 * UPLOAD_CHUNK_SIZE,
        3 * UPLOAD_CHUNK_SIZE - 100,
    ],
)
async def test_sizes_around_a_piece(tmp_path: Path, size: int):
    """Whatever the size, the body has the length it says, in pieces that are not much larger."""
    (tmp_path / "f").write_bytes(noise(size))
    body = UploadBody.of_path(tmp_path / "f")
    pieces = [piece async for piece in body]
    assert sum(map(len, pieces)) == body.size
    assert all(pieces)
    assert max(map(len, pieces)) < 2 * UPLOAD_CHUNK_SIZE + 1000


async def test_directory(tmp_path: Path):
    """A directory is its files by their paths, in the order of their bytes; its name is sent."""
    root = tmp_path / "site é"
    for name in ["b.txt", "a/z", "a/b/c", "é", "a.txt", "sub dir/x"]:
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(name.encode())
    body = UploadBody.of_path(root)
    assert body.dirname == "site é"
    parts = parts_of(body, await bytes_of(body))
    assert [part.filename for part, _ in parts] == [
        *("a.txt", "a/b/c", "a/z", "b.txt", "sub dir/x", "é")
    ]
    assert {part.field for part, _ in parts} == {"files[]"}
    assert all(part.filename.encode() == data for part, data in parts)


@pytest.mark.parametrize(
    "name",
    [
        'qu"ote',
        "new\nline",
        "cr\rlf\r\n",
        "back\\slash",
        'a"; name="x',
        "%0d%0a",
        "tab\t",
        "😀",
        "-",
    ],
)
async def test_odd_names(tmp_path: Path, name: str):
    """Names arrive as they are, and cannot add a header or a parameter."""
    (tmp_path / name).write_bytes(b"odd")
    body = UploadBody.of_path(tmp_path / name)
    [(part, data)] = parts_of(body, await bytes_of(body))
    assert (part.field, part.filename, data) == ("file", name, b"odd")
    assert part.contenttype == ""


async def test_progress(tmp_path: Path):
    """Progress is reported in bytes sent, never backwards, up to the size of the body."""
    for n in range(5):
        (tmp_path / str(n)).write_bytes(noise(700_000, n))
    seen: list[tuple[int, int]] = []
    body = UploadBody.of_path(tmp_path).with_progress(lambda *now: seen.append(now))
    await bytes_of(body)
    sent = [at for at, _ in seen]
    assert sent == sorted(sent)
    assert seen[-1] == (body.size, body.size)
    assert len(seen) >= 3


async def test_sent_again(tmp_path: Path):
    """A body is the same at each iteration, and progress begins again with it."""
    (tmp_path / "f").write_bytes(noise(2_500_000))
    seen: list[tuple[float, int, int]] = []
    ours: list[tuple[int, int]] = []
    body = UploadBody.of_path(tmp_path / "f").with_progress(lambda *now: ours.append(now))
    told = body.reporting(lambda part, now: seen.append((part, now["loaded"], now["total"])))
    assert await bytes_of(told) == await bytes_of(told)
    assert [(loaded, total) for _, loaded, total in seen] == ours
    assert [part for part, _, _ in seen] == [loaded / body.size for loaded, _ in ours]
    assert seen.count((1.0, body.size, body.size)) == 2
    seen.clear()
    await bytes_of(body)
    assert seen == []


async def test_file_that_grows(tmp_path: Path):
    """A file that holds more than its size said is an error, not cut short in silence."""
    file = tmp_path / "f"
    file.write_bytes(b"x" * 5000)
    body = UploadBody.of_path(file)
    file.write_bytes(b"x" * 9000)
    with pytest.raises(OSError, match="more than its size of 5000 bytes"):
        await bytes_of(body)


async def test_file_that_vanishes(tmp_path: Path):
    """A file that is gone is the operating system's error."""
    (tmp_path / "f").touch()
    (tmp_path / "f").write_bytes(b"x")
    body = UploadBody.of_path(tmp_path / "f")
    (tmp_path / "f").unlink()
    with pytest.raises(FileNotFoundError):
        await bytes_of(body)


@pytest.mark.parametrize("where", ["file", "folder", "link"])
async def test_another_file_in_the_place_of_the_one_that_was_looked_at(tmp_path: Path, where: str):
    """It is refused, whatever leads to it."""
    (tmp_path / "d/sub").mkdir(parents=True)
    (tmp_path / "d/sub/f").write_bytes(b"abc")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/f").write_bytes(b"xyz")
    body = UploadBody.of_path(tmp_path / "d")
    if where == "folder":
        (tmp_path / "d/sub").rename(tmp_path / "away")
        (tmp_path / "d/sub").symlink_to(tmp_path / "secret")
    else:
        (tmp_path / "d/sub/f").rename(tmp_path / "away")
        if where == "file":
            (tmp_path / "d/sub/f").write_bytes(b"xyz")
        else:
            (tmp_path / "d/sub/f").symlink_to(tmp_path / "secret/f")
    with pytest.raises(OSError, match="/d/sub/f: another file is in its place now"):
        await bytes_of(body)


@pytest.mark.parametrize("kind", ["fifo", "socket"])
def test_special_files(tmp_path: Path, kind: str):
    """What is not a regular file is refused by its name, and not opened: that might block."""
    path = tmp_path / kind
    if kind == "fifo":
        os.mkfifo(path)
    else:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(os.path.relpath(path))
    with pytest.raises(MalformedError, match="only regular files"):
        UploadBody.of_path(path)


def test_device():
    """A device without an end is refused too."""
    with pytest.raises(MalformedError, match="only regular files"):
        UploadBody.of_path(Path("/dev/zero"))


@pytest.mark.parametrize("where", ["file", "inside", "directory"])
def test_names_that_are_not_utf_8(tmp_path: Path, where: str):
    """A name that is not UTF-8 is refused, wherever it stands, by its bytes."""
    bad = os.fsdecode(b"bad\xff")
    if where == "file":
        path = tmp_path / bad
        path.touch()
    else:
        path = tmp_path / (bad if where == "directory" else "good")
        path.mkdir()
        (path / (bad if where == "inside" else "good")).touch()
    with pytest.raises(MalformedError, match=r"bad\\xff.*not valid UTF-8") as caught:
        UploadBody.of_path(path)
    str(caught.value).encode()


def test_nothing_to_send(tmp_path: Path):
    """An empty directory is refused; what is not there is the operating system's error."""
    (tmp_path / "sub").mkdir()
    with pytest.raises(MalformedError, match="no file in it"):
        UploadBody.of_path(tmp_path)
    with pytest.raises(FileNotFoundError):
        UploadBody.of_path(tmp_path / "none")


def test_source_of_a_file(tmp_path: Path):
    """A single file may be sent under another name."""
    (tmp_path / "f").write_bytes(b"abc")
    source = UploadSource.of_path(tmp_path / "f", "other/name")
    assert (source.name, source.size) == ("other/name", 3)


# --- at a real portal


async def metadata_of(client: PortalClient, result: UploadResult) -> dict[str, Any]:
    return (await client.get_metadata(str(result))).metadata


async def test_upload_file(portal: PortalProcess, tmp_path: Path):
    """The result is the skylink with its parts; as text it is the content link."""
    (tmp_path / "notes é.txt").write_bytes(b"notes")
    async with PortalClient(portal.url) as client:
        result = await client.upload_file(tmp_path / "notes é.txt")
        assert str(result) == f"svc://{result.skylink}"
        assert result.merkleroot == result.skylink.root.hex()
        assert result.bitfield == result.skylink.bitfield
        assert (await metadata_of(client, result))["filename"] == "notes é.txt"
        assert (await client.get_file_content(str(result))).data == b"notes"


async def test_custom_names(portal: PortalProcess, tmp_path: Path):
    """Custom names replace those of the file and the directory, which are sent otherwise."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site/a.txt").write_bytes(b"a")
    async with PortalClient(portal.url) as client:
        file = await client.upload_file(tmp_path / "site/a.txt", custom_filename="b.html")
        assert list((await metadata_of(client, file))["subfiles"]) == ["b.html"]
        plain = await client.upload_directory(tmp_path / "site")
        assert (await metadata_of(client, plain))["filename"] == "site"
        named = await client.upload_directory(str(tmp_path / "site"), custom_dirname="other é")
        assert (await metadata_of(client, named))["filename"] == "other é"
        dots = await client.upload_directory(tmp_path / "site/../site/.")
        assert dots == plain


async def test_links_and_secrets_of_a_directory(portal: PortalProcess, tmp_path: Path):
    """All is taken but loops and what links lead to outside, of which there is a warning."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site/.env").write_bytes(b"a")
    (tmp_path / "site/.skymountignore").write_bytes(b".env")
    (tmp_path / "site/loop").symlink_to(".")
    (tmp_path / "site/out").symlink_to("../file")
    (tmp_path / "file").write_bytes(b"b")
    async with PortalClient(portal.url) as client:
        with pytest.warns(UserWarning, match="loop: it leads to a directory .*/out: "):
            result = await client.upload_directory(tmp_path / "site")
        found = (await metadata_of(client, result))["subfiles"]
        assert sorted(found) == [".env", ".skymountignore"]
        with pytest.warns(UserWarning, match="loop: [^;]*$"):
            result = await client.upload_directory(tmp_path / "site", follow_outside=True)
        assert "out" in (await metadata_of(client, result))["subfiles"]


async def test_upload_of_a_mapping(portal: PortalProcess, tmp_path: Path):
    """A mapping of paths to content is a directory, as the same files on disk are."""
    (tmp_path / "x/sub").mkdir(parents=True)
    (tmp_path / "x/sub/b.txt").write_bytes(b"bb")
    (tmp_path / "x/a.txt").write_bytes(b"a")
    (tmp_path / "x/empty").touch()
    files = {"a.txt": b"a", "empty": b"", "sub/b.txt": io.BytesIO(b"bb")}
    async with PortalClient(portal.url) as client:
        result = await client.upload_directory(files, custom_dirname="x")
        metadata = await metadata_of(client, result)
        sizes = {name: file.get("len", 0) for name, file in metadata["subfiles"].items()}
        assert sizes == {"a.txt": 1, "empty": 0, "sub/b.txt": 2}
        disk = await metadata_of(client, await client.upload_directory(tmp_path / "x"))
        assert disk["subfiles"].keys() == metadata["subfiles"].keys()
        assert (await client.get_file_content(str(result), path="sub/b.txt")).data == b"bb"


async def test_nothing_in_it(portal: PortalProcess, tmp_path: Path):
    """What holds no file, has no name or is no directory is refused before any request."""
    (tmp_path / "f").touch()
    async with running(FakePortal()) as fake, PortalClient(fake.url) as client:
        with pytest.raises(MalformedError, match="no file in the mapping"):
            await client.upload_directory({}, custom_dirname="x")
        with pytest.raises(MalformedError, match="give a custom_dirname"):
            await client.upload_directory({"a": b""})
        with pytest.raises(NotADirectoryError):
            await client.upload_directory(tmp_path / "f")
        with pytest.raises(FileNotFoundError):
            await client.upload_directory(tmp_path / "none")
        with pytest.raises(IsADirectoryError):
            await client.upload_file(tmp_path)
        with pytest.raises(FileNotFoundError):
            await client.upload_file(tmp_path / "none")
        assert fake.accepted == 0


async def test_what_a_browser_is_shown(portal: PortalProcess):
    """Default path, try-files and error pages are stored with the directory."""
    files = {"index.html": b"i", "404.html": b"nothing here", "about.html": b"a"}
    async with PortalClient(portal.url) as client:

        async def stored(**options: Any) -> dict[str, Any]:
            result = await client.upload_directory(files, custom_dirname="site", **options)
            metadata = await metadata_of(client, result)
            return {key: metadata[key] for key in metadata if key not in ("subfiles", "filename")}

        assert (await stored(default_path="/about.html"))["defaultpath"] == "/about.html"
        assert (await stored(disable_default_path=True))["disabledefaultpath"] is True
        found = await stored(try_files=["about.html"], error_pages={"404": "/404.html"})
        assert (found["tryfiles"], found["errorpages"]) == (["about.html"], {"404": "/404.html"})
        assert found.keys() <= {"length", "tryfiles", "errorpages"}


@pytest.mark.parametrize(
    "options",
    [
        {"default_path": "/a", "disable_default_path": True},
        {"default_path": "/a", "try_files": ["a"]},
        {"try_files": [], "disable_default_path": True},
        {"skykey_name": "a", "skykey_id": "b"},
    ],
)
async def test_options_that_exclude_each_other(options: dict[str, Any]):
    """C3: options that contradict each other are refused before any request."""
    async with running(FakePortal()) as fake, PortalClient(fake.url) as client:
        with pytest.raises(MalformedError, match=r"exclude|both"):
            await client.upload_directory({"a": b""}, custom_dirname="x", **options)
        assert fake.accepted == 0


async def test_dry_run(portal: PortalProcess):
    """A dry run tells the skylink and stores nothing."""
    async with PortalClient(portal.url) as client:
        data = noise(5000, 77)
        told = await client.upload_file(data, custom_filename="dry", dry_run=True)
        with pytest.raises(NotFoundError):
            await client.get_file_content(told.skylink, timeout_seconds=1)
        assert await client.upload_file(data, custom_filename="dry") == told


async def test_skykeys(portal: PortalProcess, tmp_path: Path):
    """With a skykey, by name or id, the portal encrypts: a new skylink for the same content."""
    async with PortalClient(portal.url) as client:
        key = await client.create_skykey("for uploads", "private-id")
        results = [
            await client.upload_file(b"secret", custom_filename="f", **option)
            for option in ({}, {"skykey_name": key.name}, {"skykey_id": key.id})
        ]
        assert len({result.skylink for result in results}) == 3
        for result in results:
            assert (await client.get_file_content(str(result))).data == b"secret"
        directory = await client.upload_directory(
            {"a": b"secret"}, custom_dirname="d", skykey_name=key.name
        )
        await client.download_file(tmp_path / "a", str(directory), path="a", skykey_id=key.id)
        assert (tmp_path / "a").read_bytes() == b"secret"
        with pytest.raises(PortalError):
            await client.upload_file(b"x", custom_filename="f", skykey_name="unknown")


async def test_upload_progress(portal: PortalProcess):
    """Progress grows to exactly 1.0, with the bytes of the body, per client or per call."""
    seen: list[tuple[float, int, int]] = []
    also: list[float] = []

    def report(progress: float, state: UploadProgress) -> None:
        seen.append((progress, state["loaded"], state["total"]))

    async with PortalClient(portal.url, on_upload_progress=report) as client:
        await client.upload_file(noise(3_500_000), custom_filename="f")
        assert len(seen) >= 3
        assert seen == sorted(seen)
        assert all(progress == loaded / total for progress, loaded, total in seen)
        assert seen[-1][0] == 1.0
        assert seen[-1][1] == seen[-1][2] > 3_500_000
        before = list(seen)
        await client.upload_file(
            b"x", custom_filename="f", on_upload_progress=lambda progress, _: also.append(progress)
        )
        assert also[-1] == 1.0
        await client.upload_file(b"x", custom_filename="f", on_upload_progress=None)
        assert seen == before


async def test_progress_that_raises(portal: PortalProcess):
    """What a callback raises ends the upload and reaches the caller; the client goes on."""

    def report(progress: float, state: UploadProgress) -> None:
        raise ZeroDivisionError

    async with PortalClient(portal.url, connections=1) as client:
        with pytest.raises(ZeroDivisionError):
            await client.upload_file(b"x", custom_filename="f", on_upload_progress=report)
        await client.upload_file(b"x", custom_filename="f")


# --- what goes over the wire


async def test_field_names():
    """The names of the fields are as asked; the default where they are empty."""
    async with running(FakePortal()) as fake, PortalClient(fake.url) as client:
        fake.add(SMALL)
        for field, sent in (("", "file"), ("other", "other")):
            await client.upload_file(b"x", custom_filename="f", portal_file_field_name=field)
            assert f'form-data; name="{sent}"; filename="f"'.encode() in fake.requests[-1].body
        for field, sent in (("", "files[]"), ("other", "other")):
            await client.upload_directory(
                {"a/b": b""}, custom_dirname="d é", portal_directory_file_field_name=field
            )
            assert f'form-data; name="{sent}"; filename="a/b"'.encode() in fake.requests[-1].body
            assert fake.requests[-1].query == {"filename": "d é"}
        count = len(fake.requests)
        with pytest.raises(MalformedError, match="UTF-8"):
            await client.upload_file(b"", custom_filename="f", portal_file_field_name="\ud800")
        assert len(fake.requests) == count


async def test_unknown_size_is_chunked(portal: PortalProcess):
    """What tells no size is sent in chunks; the portal gets all of it, and progress ends at 1."""
    data = noise(2_500_000, 5)
    seen: list[float] = []
    body = UploadBody([UploadSource.of(Unsized(data), "f")], field="file")
    assert body.size is None
    assert "Content-Length" not in body.headers
    async with PortalClient(portal.url) as client:
        result = await client.upload_file(
            Unsized(data),  # type: ignore[arg-type]
            custom_filename="f",
            on_upload_progress=lambda progress, _: seen.append(progress),
        )
        assert (await client.get_file_content(result.skylink)).data == data
    assert set(seen) == {1.0}


@pytest.mark.parametrize("code", [307, 308])
async def test_redirected(portal: PortalProcess, code: int):
    """C7: after 307 and 308 the body is sent again from its start, and progress starts again."""
    data = noise(1_500_000, 6)
    seen: list[float] = []
    there = portal.url.removeprefix("http://")
    async with (
        running(FakePortal()) as fake,
        PortalClient(fake.url, redirect_hosts=[there]) as client,
    ):
        fake.add(SMALL)
        fake.fault(redirects(f"{portal.url}/svc/skyfile", code))
        result = await client.upload_file(
            Named(data), on_upload_progress=lambda progress, _: seen.append(progress)
        )
    async with PortalClient(portal.url) as client:
        assert (await client.get_file_content(result.skylink)).data == data
    assert seen.count(1.0) == 2


async def test_redirected_but_read_only_once():
    """C7: what can be read only once cannot be sent again: a clear error, not half a file."""
    async with running(FakePortal()) as fake, PortalClient(fake.url) as client:
        fake.add(SMALL)
        fake.fault(redirects(f"{fake.url}/svc/skyfile", 307))
        with pytest.raises(RequestRefusedError, match="can be read only once") as caught:
            await client.upload_file(Unsized(b"data"), custom_filename="f")  # type: ignore[arg-type]
        assert (caught.value.status, caught.value.method) == (307, "POST")
        assert len(fake.requests) == 1


async def test_time_out_of_an_upload():
    """`timeout_seconds` bounds the whole upload, also one whose source or portal is silent."""
    read, write = os.pipe()
    async with running(FakePortal()) as fake, PortalClient(fake.url, timeout=0.1) as client:
        fake.add(SMALL)
        with open(read, "rb") as pipe, open(write, "wb") as writer:
            with pytest.raises(PortalTimeoutError, match="not done in 1 s"):
                await client.upload_file(pipe, custom_filename="f", timeout_seconds="0.5")
            writer.close()
        fake.fault(stalls_after(-1))
        with pytest.raises(PortalTimeoutError, match="not done in 1 s"):
            await client.upload_file(b"", custom_filename="f", timeout_seconds=1)
        with pytest.raises(PortalTimeoutError, match="no answer in time"):
            await client.upload_file(b"", custom_filename="f")


async def test_never_sent_twice():
    """C8: an upload that fails is not sent again."""
    async with running(FakePortal()) as fake, PortalClient(fake.url) as client:
        fake.add(SMALL)
        for fault in (status(503), resets_after(-1), closes_after(-1)):
            fake.heal()
            fake.fault(fault)
            fake.requests.clear()
            with pytest.raises(PortalError):
                await client.upload_file(b"x", custom_filename="f")
            assert len(fake.requests) == 1
