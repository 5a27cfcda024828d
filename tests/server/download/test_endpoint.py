"""Downloads: URLs, headers, parameters, errors."""

import itertools

import pytest

from skymount.server.download.endpoint import metadata_fields, payload_ranges
from skymount.server.http.clients import Requester
from skymount.wire.http.byte_range import ByteRange
from skymount.wire.skylink import Skylink
from tests.server.http_client import Client, assert_same_headers, message_of

_CONTENT = bytes(range(256)) * 8


@pytest.fixture(scope="module")
def blob(client: Client) -> str:
    """A file of 2 KiB."""
    return client.upload_file("blob.bin", _CONTENT, "application/x-blob")


@pytest.mark.parametrize(
    "form", ["/{}", "/{}/", "/svc/skylink/{}", "/skynet/skylink/{}", "/skynet/skylink/{}/"]
)
def test_every_download_url_serves_the_same(client: Client, blob: str, form: str) -> None:
    """Both dialects and the bare form, base64 and base32, GET and HEAD with the same headers."""
    for link in (blob, Skylink(blob).base32, Skylink(blob).base32.upper()):
        answer = client.get(form.format(link))
        assert (answer.status_code, answer.content) == (200, _CONTENT)
        assert answer.headers["Content-Type"] == "application/x-blob"
        assert answer.headers["Content-Length"] == str(len(_CONTENT))
        assert answer.headers["Content-Disposition"] == 'inline; filename="blob.bin"'
        assert answer.headers["Accept-Ranges"] == "bytes"
        for name in ("Svc-Skylink", "Skynet-Skylink"):
            assert answer.headers[name] == blob
        stored = client.get(f"/svc/metadata/{blob}").content
        raw = {name.lower(): value for name, value in answer.headers.raw}
        for name in (b"svc-metadata", b"skynet-file-metadata"):
            assert raw[name] == stored
        assert_same_headers(client.head(form.format(link)), answer)


def test_a_file_inside_carries_its_own_metadata(client: Client) -> None:
    """As in the example of docs/wire.md 4.5."""
    link = client.upload({"a/1": b"xx", "a/2": b"yyy"})
    answer = client.get(f"/{link}/a/2")
    assert answer.content == b"yyy"
    assert answer.headers["svc-metadata"] == (
        '{"filename":"/a/2","length":3,"subfiles":{"a/2":{"filename":"a/2","len":3}}}'
    )
    assert answer.headers["Content-Disposition"] == 'inline; filename="2"'
    assert_same_headers(client.head(f"/{link}/a/2"), answer)


def test_headers_can_be_chosen(client: Client, blob: str) -> None:
    """Without metadata, with the layout, as an attachment."""
    answer = client.get(f"/{blob}?no-response-metadata=true")
    assert "svc-metadata" not in answer.headers
    assert "skynet-file-metadata" not in answer.headers
    layout = client.get(f"/svc/basesector/{blob}").content[:99].hex()
    answer = client.get(f"/{blob}?include-layout=1")
    assert answer.headers["Svc-File-Layout"] == answer.headers["Skynet-File-Layout"] == layout
    for url in (f"/{blob}?attachment=true", f"/file/{blob}", f"/file/{blob}?attachment=0"):
        answer = client.get(url)
        assert answer.headers["Content-Disposition"] == 'attachment; filename="blob.bin"'


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("format=rar", "allowed values are: 'concat', 'tar', 'targz' and 'zip'"),
        ("timeout=901", "'timeout' parameter too high, maximum allowed timeout is 900s"),
        ("timeout=900", ""),
        ("timeout=", ""),
        ("timeout=x", "unable to parse 'timeout' parameter"),
        ("timeout=-1", "unable to parse 'timeout' parameter"),
        ("attachment=yes", "unable to parse 'attachment' parameter"),
        ("timeout=%ff", "failed to parse query params"),
    ],
)
def test_bad_parameters(client: Client, blob: str, query: str, message: str) -> None:
    """400 with the message that portals give. A time in bounds means nothing on a local disk."""
    answer = client.get(f"/{blob}?{query}")
    assert answer.status_code == (400 if message else 200)
    assert not message or message in message_of(answer)


def test_what_is_not_there(client: Client, blob: str) -> None:
    """404 for unknown content and paths, 400 for what is no skylink, all as JSON."""
    unknown = "A" * 46
    for url in (f"/{unknown}", f"/svc/skylink/{unknown}", f"/svc/basesector/{unknown}"):
        answer = client.get(url)
        assert answer.status_code == 404
        assert message_of(answer) == "failed to fetch skylink: root not found"
    answer = client.get(f"/{blob}/nothing/here")
    assert answer.status_code == 404
    assert message_of(answer) == "failed to download contents for path: /nothing/here"
    for url in ("/svc/skylink/short", f"/{'_' * 46}", f"/{'z' * 55}"):
        answer = client.get(url)
        assert answer.status_code == 400
        assert message_of(answer).startswith("error parsing skylink: ")
    assert client.get(f"/{Skylink.v2(bytes(32))}").status_code == 404


def test_cut_gives_every_slice_of_every_extent() -> None:
    """Compared with slicing the joined bytes, for all ranges."""
    payload = bytes(range(30))
    extents = ((20, 5), (3, 0), (0, 4), (28, 2))
    joined = b"".join(payload[at : at + size] for at, size in extents)
    for start, stop in itertools.combinations(range(len(joined) + 1), 2):
        pieces = [
            payload[at : at + size] for at, size in payload_ranges(extents, ByteRange(start, stop))
        ]
        assert b"".join(pieces) == joined[start:stop]
        assert all(pieces)


def test_metadata_in_headers_is_what_a_client_can_take() -> None:
    """An agent gets all of it under its dialect's name, a program 16 KiB in all, a script 192."""
    names = ["svc-metadata", "Skynet-File-Metadata"]
    for agent, own in (("x svc-agent/1", names[0]), ("Sia-Agent", names[1])):
        sent = metadata_fields(b"x" * 10**6, Requester.of({"user-agent": agent}))
        assert sent.lower() == f"{own.lower()}: ".encode() + b"x" * 10**6 + b"\r\n"
    for headers, room in (({"user-agent": "curl/8"}, 16384), ({"origin": "http://a"}, 192 << 10)):
        asker = Requester.of(headers)
        for size, found in (
            (room // 2, names),
            (room // 2 + 1, names[:1]),
            (room, names[:1]),
            (room + 1, []),
        ):
            lines = metadata_fields(b"x" * size, asker).decode().split("\r\n")[:-1]
            assert [line.partition(":")[0].lower() for line in lines] == [*map(str.lower, found)]
    assert metadata_fields(b"x", Requester.of({"sec-fetch-mode": "no-cors"})) == b""
