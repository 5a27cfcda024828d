"""`--max-storage`: uploads beyond it are refused, and nothing of them is kept."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from skymount.wire.http.multipart import PartHeader
from tests.portal_process import portal_process
from tests.server.http_client import Client, message_of
from tests.server.raw_connection import connect

_LIMIT = 10 << 20


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def client(data: Path) -> Iterator[Client]:
    with (
        portal_process(data, "--max-storage", "10M") as portal,
        Client(base_url=portal.url, timeout=60) as connected,
    ):
        yield connected


def _incoming(data: Path) -> list[Path]:
    return list((data / "v1/incoming").iterdir())


def test_a_stated_length_is_refused_before_the_body(client: Client, data: Path) -> None:
    """RT3: nobody has to send what cannot be stored."""
    with connect(str(client.base_url)) as connection:
        connection.sendall(
            b"POST /svc/skyfile?filename=a HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % (_LIMIT + 1)
        )
        assert connection.recv(100).startswith(b"HTTP/1.1 507 ")
    assert not _incoming(data)


def test_a_body_without_a_length_is_refused_in_the_middle(client: Client, data: Path) -> None:
    """RT3: what came until then is dropped, and its room is free again."""

    def body() -> Iterator[bytes]:
        for _ in range(12):
            yield bytes(1 << 20)

    answer = client.post(
        "/svc/skyfile?filename=a", content=body(), headers={"Content-Type": "text/plain"}
    )
    assert answer.status_code == 507
    assert "at most 10 MiB" in message_of(answer)
    assert not _incoming(data)
    assert client.get("/svc/stats").json()["numfiles"] == 0
    link = client.upload_file("fits", bytes(9 << 20))
    answer = client.post(
        "/svc/skyfile?filename=b", content=bytes(2 << 20), headers={"Content-Type": "text/plain"}
    )
    assert answer.status_code == 507
    assert len(client.get(f"/{link}").content) == 9 << 20
    assert client.upload_file("small", b"still fits")
    dry = client.post(
        "/svc/skyfile?filename=b&dryrun=true",
        content=bytes(2 << 20),
        headers={"Content-Type": "text/plain"},
    )
    assert dry.status_code == 200


def test_encrypted_content_counts_with_its_whole_sectors(client: Client) -> None:
    """RT3: a small one takes 8 MiB for a moment, 4 MiB for good."""
    client.post("/svc/createskykey", params={"name": "key", "type": "public-id"})
    assert client.upload_file("a", b"x", skykeyname="key")
    answer = client.post(
        "/svc/skyfile?filename=b&skykeyname=key",
        content=b"x",
        headers={"Content-Type": "text/plain"},
    )
    assert answer.status_code == 507


def test_padding_counts_before_it_is_written(client: Client, data: Path) -> None:
    """RT3: metadata that do not fit the base sector take whole sectors, here two of them."""
    files = {"x" * 200 + str(n): b"1" for n in range(11_000)}
    first = client.upload_file("first", bytes(4 << 20))
    parts = [(PartHeader("files[]", name), content) for name, content in files.items()]
    answer = client.post_form(parts, {"filename": "many"})
    assert answer.status_code == 507
    assert not _incoming(data)
    assert client.get(f"/{first}").content == bytes(4 << 20)
    assert client.get("/svc/stats").json()["numfiles"] == 1
