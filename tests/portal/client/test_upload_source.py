"""What can be uploaded: paths, bytes, file objects; and what is refused before anything is sent."""

import io
import os
import tempfile
from pathlib import Path

import pytest

from skymount.errors import MalformedError, WrongTypeError
from skymount.portal.client.client import PortalClient
from skymount.portal.client.upload_source import UPLOAD_CHUNK_SIZE, UploadSource, mapping_sources
from tests.fakes.skyfiles import noise
from tests.portal_process import PortalProcess


def content(source: UploadSource) -> bytes:
    """Return the bytes of a source, whose size must be as it says."""
    found = b"".join(source.read())
    assert source.size in (None, len(found))
    return found


class Named(io.BytesIO):
    """Bytes as a file object with a name."""

    name = "dir/named.bin"


def test_bytes_of_every_sort():
    """Bytes, bytearray and memoryview are content, under the name that is given with them."""
    for data in (b"abc", bytearray(b"abc"), memoryview(b"abc")):
        source = UploadSource.of(data, "n.txt")
        assert (content(source), source.name, source.size) == (b"abc", "n.txt", 3)
        assert source.media_type == "text/plain"
    with pytest.raises(MalformedError, match="give a file name"):
        UploadSource.of(b"abc")


def test_bytes_are_a_copy():
    """What happens to a buffer later does not reach the upload."""
    data = bytearray(b"abc")
    source = UploadSource.of(data, "n")
    data[:] = b"xyz"
    assert content(source) == b"abc"


def test_path_as_text_and_as_object(tmp_path: Path):
    """A str is a path, as is anything with __fspath__."""
    (tmp_path / "f.json").write_bytes(b"{}")
    for path in (tmp_path / "f.json", str(tmp_path / "f.json")):
        source = UploadSource.of(path)
        assert (content(source), source.name) == (b"{}", "f.json")
        assert source.media_type == "application/json"


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_text_that_is_no_path(path: str):
    """A text that cannot be a path is a MalformedError, not one of the operating system's."""
    with pytest.raises(MalformedError, match="must be a path"):
        UploadSource.of(path)


def test_file_object_at_an_offset(tmp_path: Path):
    """A file object is read from where it stands, again and again, and stays open."""
    (tmp_path / "f.txt").write_bytes(b"0123456789")
    with open(tmp_path / "f.txt", "rb") as file:
        file.seek(4)
        source = UploadSource.of(file)
        assert (source.name, source.size) == ("f.txt", 6)
        assert content(source) == content(source) == b"456789"
        assert not file.closed


def test_file_object_beyond_its_end():
    """One that stands behind its end has nothing left."""
    file = Named(b"abc")
    file.seek(100)
    source = UploadSource.of(file)
    assert (source.size, content(source)) == (0, b"")


def test_name_of_a_file_object():
    """Its own name without directories, unless one is given."""
    assert UploadSource.of(Named(b"x")).name == "named.bin"
    assert UploadSource.of(Named(b"x"), "other").name == "other"
    with pytest.raises(MalformedError, match="no name"):
        UploadSource.of(io.BytesIO(b"x"))
    read, write = os.pipe()
    os.close(write)
    with open(read, "rb") as pipe, pytest.raises(MalformedError, match="no name"):
        UploadSource.of(pipe)


def test_pipe():
    """What cannot be sought is of unknown size, and read to its end."""
    read, write = os.pipe()
    with open(read, "rb") as reader, open(write, "wb") as writer:
        source = UploadSource.of(reader, "p")
        writer.write(b"some bytes")
        writer.close()
        assert (source.size, source.is_spent) == (None, False)
        assert content(source) == b"some bytes"
        assert source.is_spent


def test_minimal_file_object():
    """An object with nothing but read() will do, when a name comes with it."""

    class Reader:
        left = 2 * UPLOAD_CHUNK_SIZE + 5

        def read(self, size: int) -> bytes:
            given = min(size, self.left)
            self.left -= given
            return b"x" * given

    source = UploadSource.of(Reader(), "r")  # type: ignore[arg-type]
    assert source.size is None
    assert content(source) == b"x" * (2 * UPLOAD_CHUNK_SIZE + 5)


def test_text_mode(tmp_path: Path):
    """A file object in text mode is refused, in whatever wrapping, before it is read."""
    (tmp_path / "f").write_text("text")
    with open(tmp_path / "f") as plain, tempfile.NamedTemporaryFile("w+") as wrapped:
        for file in (plain, wrapped, io.StringIO("text")):
            with pytest.raises(WrongTypeError, match="binary mode"):
                UploadSource.of(file, "n")  # type: ignore[arg-type]
            assert file.tell() == 0


def test_file_object_that_cannot_be_read(tmp_path: Path):
    """One that is closed is a MalformedError, one that was opened for writing an OSError."""
    with open(tmp_path / "f", "wb") as file, pytest.raises(OSError, match="read"):
        UploadSource.of(file)  # type: ignore[arg-type]
    with pytest.raises(MalformedError, match="closed"):
        UploadSource.of(file)  # type: ignore[arg-type]


@pytest.mark.parametrize("thing", [None, 5, 1.5, ["a"], {"a": b""}, object()])
def test_things_that_are_no_content(thing: object):
    """Anything else is a WrongTypeError that names its type."""
    with pytest.raises(WrongTypeError, match=type(thing).__name__):
        UploadSource.of(thing, "n")  # type: ignore[arg-type]


def test_mapping(tmp_path: Path):
    """A mapping keeps its order; its values are content of each sort."""
    (tmp_path / "f").write_bytes(b"3")
    found = mapping_sources({"z/a": b"1", "b": Named(b"2"), "a": tmp_path / "f"})
    assert [(source.name, content(source)) for source in found] == [
        *(("z/a", b"1"), ("b", b"2"), ("a", b"3"))
    ]


def test_mapping_with_wrong_keys():
    """Its keys are texts that are not empty and valid Unicode."""
    with pytest.raises(WrongTypeError, match="path must be a text"):
        mapping_sources({5: b""})  # type: ignore[dict-item]
    with pytest.raises(MalformedError, match="empty"):
        mapping_sources({"": b""})
    with pytest.raises(MalformedError, match="UTF-8"):
        mapping_sources({"\ud800": b""})


# --- at a real portal


async def test_every_sort_arrives(portal: PortalProcess, tmp_path: Path):
    """The same bytes and name give the same skylink, wherever they come from."""
    data = noise(UPLOAD_CHUNK_SIZE + 77)
    (tmp_path / "f.bin").write_bytes(data)
    (tmp_path / "f.bin").chmod(0o644)
    read, write = os.pipe()
    async with PortalClient(portal.url) as client:
        with open(write, "wb") as writer, open(read, "rb") as pipe, Named(b"..." + data) as file:
            file.seek(3)
            writer.raw.write(data[:60_000])  # as much as a pipe holds
            writer.close()
            links = [
                (await client.upload_file(content, custom_filename="f.bin")).skylink
                for content in (data, bytearray(data), file)
            ]
            piped = await client.upload_file(pipe, custom_filename="f.bin")
        assert len(set(links)) == 1
        assert (await client.get_file_content(links[0])).data == data
        assert (await client.get_file_content(piped.skylink)).data == data[:60_000]
        named = await client.upload_file(tmp_path / "f.bin")
        metadata = (await client.get_metadata(named.skylink)).metadata
        assert metadata["filename"] == "f.bin"
        assert metadata["subfiles"]["f.bin"]["mode"] == 0o644
