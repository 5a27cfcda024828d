"""Metadata, base sectors and sectors by root: a client can check all content with them."""

import json
from pathlib import Path

import httpx
import pytest

from skymount.wire import merkle
from skymount.wire.base_sector import (
    check_fanout,
    parse_base_sector,
    split_body,
)
from skymount.wire.metadata import parse_metadata
from skymount.wire.skylink import SECTOR_SIZE, Skylink
from tests.server.http_client import Client, message_of, portal_client
from tests.wire.chunks import chunk_is_authentic


def _sector(client: httpx.Client, root: bytes, offset: int = 0, length: int = SECTOR_SIZE) -> bytes:
    answer = client.get(
        "/svc/root", params={"root": root.hex(), "offset": offset, "length": length}
    )
    assert answer.status_code == 200, answer.text
    assert len(answer.content) == length
    return answer.content


@pytest.mark.parametrize("prefix", ["svc", "skynet"])
def test_small_content_proves_itself(client: Client, prefix: str) -> None:
    """The base sector's root is that of the skylink; it comes padded to the fetch size."""
    link = Skylink(client.upload_file("small", b"s" * 40_000))
    answer = client.get(f"/{prefix}/basesector/{link}")
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["Skynet-Skylink"] == str(link)
    assert len(answer.content) == link.fetch_size
    assert merkle.sector_root(answer.content) == link.root
    base = parse_base_sector(answer.content)
    assert base.payload == b"s" * 40_000
    assert client.get(f"/{prefix}/metadata/{link}").content == base.metadata
    assert client.get(f"/{prefix}/trustless/basesector/{link}").content == answer.content
    assert _sector(client, link.root)[: len(answer.content)] == answer.content


def test_large_content_proves_itself_chunk_by_chunk(client: Client) -> None:
    """One piece per 4 MiB chunk, in the fan-out of the base sector (docs/wire.md 2.3)."""
    content = b"".join(n.to_bytes(4, "big") for n in range((9 << 18) + 7))
    link = Skylink(client.upload_file("large", content))
    data = client.get(f"/svc/basesector/{link}").content
    assert merkle.sector_root(data) == link.root
    base = parse_base_sector(data)
    assert (base.layout.data_pieces, base.layout.parity_pieces) == (1, 0)
    check_fanout(base.layout, base.fanout)
    assert base.layout.chunks == 3
    for index in range(3):
        chunk = content[index * SECTOR_SIZE : (index + 1) * SECTOR_SIZE]
        assert chunk_is_authentic(base.layout, base.fanout, index, chunk)
        sector = _sector(client, base.fanout[index * 32 : index * 32 + 32])
        assert sector == chunk.ljust(SECTOR_SIZE, b"\0")
    tail = _sector(client, base.fanout[64:96], (1 << 20) + 26, 10)
    assert tail == content[-2:] + bytes(8)


_CROWDED = 5 * "directory/"


@pytest.fixture(scope="module")
def crowd(client: Client) -> tuple[Skylink, int]:
    """A directory of 30,000 tiny files, whose metadata exceeds a sector."""
    count = 30_000
    files = {f"{_CROWDED}{n:05}.txt": b"%05d" % n for n in range(count)}
    return Skylink(client.upload(files, filename="crowd")), count


def test_metadata_beyond_a_sector_is_spilled(client: Client, crowd: tuple[Skylink, int]) -> None:
    """Its sectors are found by their roots, and all of it adds up."""
    link, count = crowd
    data = client.get(f"/svc/basesector/{link}").content
    assert merkle.sector_root(data) == link.root
    base = parse_base_sector(data)
    assert base.layout.is_extended
    sectors = [_sector(client, base.roots[at : at + 32]) for at in range(0, len(base.roots), 32)]
    for index, sector in enumerate(sectors):
        assert merkle.sector_root(sector) == base.roots[32 * index : 32 * index + 32]
    fanout, raw = split_body(base.layout, b"".join(sectors))
    assert raw == client.get(f"/svc/metadata/{link}").content
    assert len(parse_metadata(raw).subfiles) == count
    check_fanout(base.layout, fanout)
    payload = b"".join(b"%05d" % n for n in range(count))
    assert chunk_is_authentic(base.layout, fanout, 0, payload)
    assert _sector(client, fanout[:32])[: len(payload)] == payload


def test_files_of_a_crowd_are_served(client: Client, crowd: tuple[Skylink, int]) -> None:
    """Each with its own short metadata; the whole in one go."""
    link, count = crowd
    answer = client.get(f"/{link}/{_CROWDED}23456.txt")
    assert answer.content == b"23456"
    assert json.loads(answer.headers["svc-metadata"])["length"] == 5
    whole = client.get(f"/{link}?format=concat&no-response-metadata=true")
    assert whole.content == b"".join(b"%05d" % n for n in range(count))


@pytest.mark.parametrize(
    ("params", "status", "message"),
    [
        ({}, 400, "unable to parse 'root' parameter"),
        ({"root": "zz"}, 400, "unable to parse 'root' parameter"),
        ({"root": "00" * 31}, 400, "unable to parse 'root' parameter"),
        ({"root": "00" * 32}, 400, "'offset' and 'length' parameters are needed"),
        ({"root": "00" * 32, "offset": "0", "length": "-1"}, 400, "unable to parse 'length'"),
        ({"root": "00" * 32, "offset": "1", "length": "4194304"}, 400, "beyond the sector"),
        ({"root": "00" * 32, "offset": "0", "length": "10"}, 404, "root not found"),
        (
            {"root": "00" * 32, "offset": "0", "length": "1", "timeout": "901"},
            400,
            "'timeout' parameter too high",
        ),
    ],
)
def test_bad_questions_for_a_root(
    client: Client, params: dict[str, str], status: int, message: str
) -> None:
    """400 for what makes no sense, 404 for what is not there."""
    answer = client.get("/skynet/root", params=params)
    assert answer.status_code == status
    assert message in message_of(answer)


def test_metadata_beyond_the_bound_has_no_header(tmp_path: Path) -> None:
    """The metadata endpoint has it, and so has HEAD of a file inside."""
    with portal_client(tmp_path, "--header-limit", "200") as client:
        link = client.upload({f"file-{n}": b"x" for n in range(10)})
        assert not [name for name in client.head(f"/{link}").headers if name.endswith("metadata")]
        assert len(client.get(f"/svc/metadata/{link}").json()["subfiles"]) == 10
        assert "svc-metadata" in client.head(f"/{link}/file-1").headers
