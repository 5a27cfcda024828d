"""Plans of uploads that portals store with the metadata that there are."""

import struct
from collections.abc import Mapping

import pytest

from skymount.content.replication.upload_plan import UploadPlan, plan_upload
from skymount.errors import BadContentError, MalformedError
from skymount.wire.metadata import Metadata, Subfile, encode_metadata
from tests.fakes.skyfiles import describe

BOUNDARY = "b0undary"


def plan(metadata: Metadata | bytes, size: int | None = None) -> UploadPlan:
    raw = metadata if isinstance(metadata, bytes) else encode_metadata(metadata)
    length = metadata.length if isinstance(metadata, Metadata) else size
    return read(b"".join(plan_upload(raw, (length or 0) if size is None else size, BOUNDARY)))


def read(made: bytes) -> UploadPlan:
    return UploadPlan.read(lambda at, size: made[at : at + size], len(made))


def site(*files: tuple[str, int, int], **more: object) -> Metadata:
    """Return metadata of files, each a path, an offset and a length."""
    subfiles = {
        path: Subfile(0o644, path, "text/plain", offset, length) for path, offset, length in files
    }
    length = sum(length for _, _, length in files)
    return Metadata("site", length, subfiles=subfiles, **more)  # type: ignore[arg-type]


def test_a_form_with_the_files_in_the_order_of_the_payload():
    found = plan(site(("a", 3, 4), ("b", 0, 3)))
    parts = list(found.parts())
    assert [count for _, count in parts] == [3, 4, 0]
    assert [b'filename="b"' in parts[0][0], b'filename="a"' in parts[1][0]] == [True, True]
    assert parts[0][0].startswith(b"--b0undary\r\n")
    assert all(b'name="files[]"' in text for text, _ in parts[:2])
    assert parts[2][0] == b"\r\n--b0undary--\r\n"
    assert found.size == sum(len(text) + count for text, count in parts)
    assert found.media_type == "multipart/form-data; boundary=b0undary"


def test_one_file():
    found = plan(site(("a", 0, 4)))
    assert b'name="file"' in next(found.parts())[0]


def test_a_raw_upload():
    """Metadata without files are those of a body that is the file itself."""
    found = plan(Metadata("a.bin", 5, mode=0o600))
    assert list(found.parts()) == [(b"", 5)]
    assert (found.size, found.media_type) == (5, "application/octet-stream")
    assert found.query == (("filename", "a.bin"), ("mode", "600"))


@pytest.mark.parametrize(
    ("more", "query"),
    [
        ({}, {"tryfiles": "[]"}),
        ({"tryfiles": ("index.html",)}, {"tryfiles": '["index.html"]'}),
        ({"defaultpath": "/a"}, {"defaultpath": "/a"}),
        ({"disabledefaultpath": True}, {"disabledefaultpath": "true"}),
        ({"errorpages": {"404": "/a"}}, {"tryfiles": "[]", "errorpages": '{"404": "/a"}'}),
    ],
)
def test_what_a_browser_is_shown(more: dict[str, object], query: Mapping[str, str]):
    assert dict(plan(site(("a", 0, 4), **more)).query) == {"filename": "site", **query}


def test_empty_files():
    assert [count for _, count in plan(site(("a", 0, 0), ("b", 0, 3), ("c", 3, 0))).parts()] == [
        *(0, 3, 0),
        0,
    ]


def test_many_files():
    """The plan is read piece by piece."""
    files = {f"{number:06}": b"" for number in range(5000)}
    found = plan(describe(files), 0)
    assert sum(1 for _ in found.parts()) == 5001
    assert found.size == sum(len(text) for text, _ in found.parts())


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        (site(("a", 0, 4), ("b", 3, 4)), "overlap, or leave gaps"),
        (site(("a", 0, 4), ("b", 5, 4)), "overlap, or leave gaps"),
        (site(("../a", 0, 4)), "'..' element"),
        (site(("a", 0, 4), defaultpath="/a", tryfiles=("a",)), "contradict themselves"),
        (site(("a", 0, 4), errorpages={"404": "/" + "a" * 9000}), "too long"),
        (Metadata("", 4), "not as portals write them now"),
        (b'{"filename":"sia.pdf"}', "not as portals write them now"),
        (b'{"filename":"a","length":0,"monetization":[]}', "not as portals write them now"),
        (b'{"length":0,"filename":"a"}', "not as portals write them now"),
        (Metadata("a", 4, subfiles={"a": Subfile(0, "b", "", 0, 4)}), "two names"),
        (Metadata("a", 4, subfiles={"a": Subfile(0, "a", "x\ny", 0, 4)}), "no header can hold"),
    ],
)
def test_metadata_that_no_upload_has(metadata: Metadata | bytes, reason: str):
    with pytest.raises(MalformedError, match=reason):
        plan(metadata)


def test_another_size():
    with pytest.raises(MalformedError, match="of 4 bytes, and it has 5"):
        plan(site(("a", 0, 4)), 5)
    with pytest.raises(MalformedError, match="not all of the content"):
        plan(Metadata("a", 5, subfiles={"a": Subfile(0, "a", "", 0, 4)}))


@pytest.mark.parametrize("cut", [0, 5, 30, -1])
def test_a_plan_that_is_cut_off(cut: int):
    made = b"".join(plan_upload(encode_metadata(site(("a", 0, 4))), 4, BOUNDARY))
    with pytest.raises((BadContentError, ValueError, struct.error)):
        list(read(made[:cut]).parts())
