"""The body of an upload: exactly as long as it says, with names of every sort, read from disk."""

import os
import socket
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from python_multipart.multipart import MultipartParser

from skymount.errors import MalformedError
from skymount.portal.sources import PIECE, Source, directory_sources
from skymount.portal.upload import UploadBody
from skymount.wire.messages import Part
from tests.fakes.skyfiles import noise


async def bytes_of(body: UploadBody) -> bytes:
    """Return a whole body, whose length must be as declared."""
    found = b"".join([piece async for piece in body])
    assert len(found) == body.size
    return found


def parts_of(body: UploadBody, raw: bytes) -> list[tuple[Part, bytes]]:
    """Take a form apart with a parser that is not ours."""
    found: list[tuple[Part, bytes]] = []
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
        found.append((Part.parse(headers), state["data"]))
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


async def contents(path: Path) -> list[tuple[str, bytes]]:
    """Return what an upload of a path would carry, by name."""
    body = UploadBody.of_path(path)
    return [(part.filename, data) for part, data in parts_of(body, await bytes_of(body))]


async def test_file(tmp_path: Path):
    """A file is one part named `file`, with name, type, mode and content."""
    file = tmp_path / "page.html"
    file.write_bytes(b"<html>")
    file.chmod(0o4750)
    body = UploadBody.of_path(file)
    assert body.dirname == ""
    part = Part("file", "page.html", "text/html", 0o750)
    assert parts_of(body, await bytes_of(body)) == [(part, b"<html>")]


async def test_empty_file(tmp_path: Path):
    """An empty file is a part without content."""
    (tmp_path / "empty").touch()
    assert await contents(tmp_path / "empty") == [("empty", b"")]


@pytest.mark.parametrize("size", [PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, 3 * PIECE - 100])
async def test_sizes_around_a_piece(tmp_path: Path, size: int):
    """Whatever the size, the body has the length it says, in pieces that are not much larger."""
    (tmp_path / "f").write_bytes(noise(size))
    body = UploadBody.of_path(tmp_path / "f")
    pieces = [piece async for piece in body]
    assert sum(map(len, pieces)) == body.size
    assert all(pieces)
    assert max(map(len, pieces)) < 2 * PIECE + 1000


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
    assert part.contenttype == "application/octet-stream"


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    files=st.dictionaries(
        st.text(
            st.characters(exclude_characters="/\0", exclude_categories=["Cs"]),
            min_size=1,
            max_size=40,
        ).filter(lambda name: name not in (".", "..")),
        st.binary(max_size=300),
        min_size=1,
        max_size=5,
    )
)
async def test_any_names(tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]):
    """Whatever a file system lets a file be called, name and content arrive."""
    root = tmp_path_factory.mktemp("any")
    for name, content in files.items():
        (root / name).write_bytes(content)
    assert sorted(await contents(root)) == sorted(files.items())


async def test_progress(tmp_path: Path):
    """Progress is reported in bytes sent, never backwards, up to the size of the body."""
    for n in range(5):
        (tmp_path / str(n)).write_bytes(noise(700_000, n))
    seen: list[tuple[int, int]] = []
    body = UploadBody.of_path(tmp_path, progress=lambda *now: seen.append(now))
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
    body = UploadBody.of_path(tmp_path / "f", progress=lambda *now: ours.append(now))
    told = body.reporting(lambda part, now: seen.append((part, now["loaded"], now["total"])))
    assert await bytes_of(told) == await bytes_of(told)
    assert [(loaded, total) for _, loaded, total in seen] == ours
    assert [part for part, _, _ in seen] == [loaded / body.size for loaded, _ in ours]
    assert seen.count((1.0, body.size, body.size)) == 2
    seen.clear()
    await bytes_of(body)
    assert seen == []


async def test_file_that_shrinks(tmp_path: Path):
    """A file that became shorter is an error that names it, not a body that is too short."""
    file = tmp_path / "f"
    file.write_bytes(noise(5000))
    body = UploadBody.of_path(file)
    file.write_bytes(b"x")
    with pytest.raises(MalformedError, match="/f: became shorter"):
        await bytes_of(body)


async def test_file_that_grows(tmp_path: Path):
    """A file that holds more than its size said is an error, not cut short in silence."""
    file = tmp_path / "f"
    file.write_bytes(b"x" * 5000)
    body = UploadBody.of_path(file)
    file.write_bytes(b"x" * 9000)
    with pytest.raises(MalformedError, match="more than its size of 5000 bytes"):
        await bytes_of(body)


async def test_file_that_vanishes(tmp_path: Path):
    """A file that is gone is the operating system's error."""
    (tmp_path / "f").touch()
    (tmp_path / "f").write_bytes(b"x")
    body = UploadBody.of_path(tmp_path / "f")
    (tmp_path / "f").unlink()
    with pytest.raises(FileNotFoundError):
        await bytes_of(body)


async def test_link_to_a_file(tmp_path: Path):
    """A link to a file is the file."""
    (tmp_path / "d").mkdir()
    (tmp_path / "target").write_bytes(b"linked")
    (tmp_path / "d/link").symlink_to("../target")
    assert await contents(tmp_path / "d") == [("link", b"linked")]


def test_links_that_cannot_be_followed(tmp_path: Path):
    """Loops, broken links and links to directories are errors that name them."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d/self").symlink_to(".")
    with pytest.raises(MalformedError, match="/d/self: links to directories are not followed"):
        directory_sources(tmp_path / "d")
    (tmp_path / "d/self").unlink()
    (tmp_path / "d/broken").symlink_to("nowhere")
    with pytest.raises(MalformedError, match="/d/broken: a link to nothing"):
        directory_sources(tmp_path / "d")
    (tmp_path / "d/broken").unlink()
    (tmp_path / "d/loop").symlink_to("loop")
    with pytest.raises(OSError, match="symbolic links"):
        directory_sources(tmp_path / "d")


@pytest.mark.parametrize("directly", [True, False])
@pytest.mark.parametrize("kind", ["fifo", "socket"])
def test_special_files(tmp_path: Path, kind: str, directly: bool):
    """What is not a regular file is refused by its name, and not opened: that might block."""
    path = tmp_path / kind
    if kind == "fifo":
        os.mkfifo(path)
    else:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(os.path.relpath(path))
    with pytest.raises(MalformedError, match="only regular files"):
        UploadBody.of_path(path if directly else tmp_path)


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


def test_directory_that_cannot_be_read(tmp_path: Path):
    """A directory that vanishes while it is walked is an error, not an empty directory."""
    with pytest.raises(FileNotFoundError):
        directory_sources(tmp_path / "none")


def test_source_of_a_file(tmp_path: Path):
    """A single file may be sent under another name."""
    (tmp_path / "f").write_bytes(b"abc")
    source = Source.of_path(tmp_path / "f", "other/name")
    assert (source.name, source.size) == ("other/name", 3)
