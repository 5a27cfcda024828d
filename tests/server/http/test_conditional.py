"""Ranges, ETags and conditional requests."""

import email

import pytest

from skymount.server.http.messages import select_ranges
from tests.server.http_client import Client, assert_same_headers, message_of


def test_a_multipart_plan_knows_its_length() -> None:
    """Literal bytes and ranges together."""
    made = select_ranges({}, "bytes=0-1,5-9", '"' + "e" * 64 + '"', "a/b", 100)
    literal = sum(len(part) for part in made.segments if isinstance(part, bytes))
    assert made.length == literal + 7
    assert made.headers == (("Content-Type", f"multipart/byteranges; boundary={'e' * 32}"),)


_CONTENT = bytes(range(256)) * 8


@pytest.fixture(scope="module")
def blob(client: Client) -> str:
    """A file of 2 KiB."""
    return client.upload_file("blob.bin", _CONTENT, "application/x-blob")


@pytest.fixture(scope="module")
def large(client: Client) -> tuple[str, bytes]:
    """A file of 9 MiB, which lies behind a fan-out."""
    content = b"".join(n.to_bytes(4, "little") for n in range(9 << 18))
    return client.upload_file("large.bin", content), content


_SIZE = len(_CONTENT)


@pytest.mark.parametrize(
    ("asked", "start", "stop"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=5-9", 5, 10),
        ("bytes=2000-", 2000, _SIZE),
        ("bytes=-7", _SIZE - 7, _SIZE),
        ("bytes=-999999", 0, _SIZE),
        ("bytes=2040-99999", 2040, _SIZE),
        ("bytes=0-", 0, _SIZE),
    ],
)
def test_a_single_range(client: Client, blob: str, asked: str, start: int, stop: int) -> None:
    """206 with Content-Range, for GET and HEAD."""
    answer = client.get(f"/{blob}", headers={"Range": asked})
    assert (answer.status_code, answer.content) == (206, _CONTENT[start:stop])
    assert answer.headers["Content-Range"] == f"bytes {start}-{stop - 1}/{_SIZE}"
    assert_same_headers(client.head(f"/{blob}", headers={"Range": asked}), answer)


@pytest.mark.parametrize("asked", ["bytes=2048-", "bytes=9-3", "bytes=x", "bytes=-0", "bytes="])
def test_an_impossible_range(client: Client, blob: str, asked: str) -> None:
    """416, and the size."""
    answer = client.get(f"/{blob}", headers={"Range": asked})
    assert answer.status_code == 416
    assert answer.headers["Content-Range"] == f"bytes */{_SIZE}"
    assert "range" in message_of(answer)


@pytest.mark.parametrize("asked", ["lines=0-1", "bytes=0-2047,0-2047", "bytes=" + "0-0," * 99])
def test_ranges_that_are_not_worth_it(client: Client, blob: str, asked: str) -> None:
    """Another unit, more than the whole, or very many: everything is sent."""
    answer = client.get(f"/{blob}", headers={"Range": asked})
    assert (answer.status_code, answer.content) == (200, _CONTENT)


def test_several_ranges(client: Client, large: tuple[str, bytes]) -> None:
    """multipart/byteranges, in the order asked, with a true Content-Length."""
    link, content = large
    size = len(content)
    asked = {"Range": "bytes=10-19,-5,5000000-5000002"}
    answer = client.get(f"/{link}", headers=asked)
    assert answer.status_code == 206
    assert answer.headers["Content-Length"] == str(len(answer.content))
    head = f"Content-Type: {answer.headers['Content-Type']}\r\n\r\n".encode()
    parts = email.message_from_bytes(head + answer.content).get_payload()
    assert isinstance(parts, list)
    expected = [(10, 20), (size - 5, size), (5_000_000, 5_000_003)]
    assert len(parts) == len(expected)
    for part, (start, stop) in zip(parts, expected, strict=True):
        assert part["Content-Range"] == f"bytes {start}-{stop - 1}/{size}"
        assert part["Content-Type"] == "application/octet-stream"
        assert part.get_payload(decode=True) == content[start:stop]
    assert_same_headers(client.head(f"/{link}", headers=asked), answer)


def test_ranges_of_large_content(client: Client, large: tuple[str, bytes]) -> None:
    """Across the borders of sectors and of the pieces that are sent."""
    link, content = large
    assert client.get(f"/{link}").content == content
    for start, stop in [(4194300, 4194310), (1048575, 8388609), (9437183, 9437184)]:
        answer = client.get(f"/{link}", headers={"Range": f"bytes={start}-{stop - 1}"})
        assert answer.content == content[start:stop]


def test_a_range_in_the_query(client: Client, blob: str) -> None:
    """start and end, both or neither, not with a Range header."""
    answer = client.get(f"/{blob}?start=3&end=5")
    assert (answer.status_code, answer.content) == (206, _CONTENT[3:6])
    for query in ("start=3", "end=3", "start=5&end=3", "start=x&end=3"):
        assert client.get(f"/{blob}?{query}").status_code == 400
    answer = client.get(f"/{blob}?start=1&end=2", headers={"Range": "bytes=0-1"})
    assert answer.status_code == 400


def test_an_empty_file_ignores_ranges(client: Client) -> None:
    """There is nothing to divide."""
    link = client.upload_file("empty", b"")
    answer = client.get(f"/{link}", headers={"Range": "bytes=0-10"})
    assert (answer.status_code, answer.content) == (200, b"")


def test_conditional_requests(client: Client, blob: str) -> None:
    """304, 412 and If-Range by the entity tag."""
    whole = client.get(f"/{blob}")
    tag = whole.headers["ETag"]
    for given in (tag, f'"x", {tag}', "*", f"W/{tag}"):
        answer = client.get(f"/{blob}", headers={"If-None-Match": given})
        assert (answer.status_code, answer.content) == (304, b"")
        assert answer.headers["ETag"] == tag
    assert client.get(f"/{blob}", headers={"If-None-Match": '"x"'}).status_code == 200
    assert client.get(f"/{blob}", headers={"If-Match": '"x"'}).status_code == 412
    assert client.get(f"/{blob}", headers={"If-Match": tag}).status_code == 200
    ranged = {"Range": "bytes=0-1", "If-Range": tag}
    assert client.get(f"/{blob}", headers=ranged).status_code == 206
    ranged["If-Range"] = '"other"'
    assert client.get(f"/{blob}", headers=ranged).status_code == 200


def test_tags_differ_by_path_and_format(client: Client) -> None:
    """But not by method."""
    link = client.upload({"a": b"1", "b": b"2"})
    urls = [f"/{link}/a", f"/{link}/b", f"/{link}?format=tar", f"/{link}?format=zip"]
    tags = [client.get(url).headers["ETag"] for url in urls]
    assert len(set(tags)) == len(tags)
    assert [client.head(url).headers["ETag"] for url in urls] == tags
