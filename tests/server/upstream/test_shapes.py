"""Content of every shape, through a portal with an upstream."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from skymount.wire.base_sector import CIPHER_LEGACY_PLAIN, Layout
from skymount.wire.merkle import sector_root
from skymount.wire.metadata import Metadata, Subfile, encode_metadata
from skymount.wire.skylink import SECTOR_SIZE, Skylink
from tests.fakes.portal import FakePortal, flips, in_thread
from tests.fakes.skyfiles import (
    FakeSkyfile,
    noise,
    of_files,
    of_metadata,
    packed,
    sealed,
    unverifiable,
)
from tests.portal_process import portal_process
from tests.server.http_client import Client, message_of

MIB = 1 << 20


def spilled() -> FakeSkyfile:
    """Content whose metadata does not fit its base sector."""
    paths = [f"{n:05d}-{'x' * 200}" for n in range(12_000)]
    subfiles = {path: Subfile(0o644, path, "", n, 1) for n, path in enumerate(paths)}
    metadata = encode_metadata(Metadata("many", len(paths), subfiles=subfiles))
    assert len(metadata) > SECTOR_SIZE
    payload = noise(len(paths), 4)
    files = {path: payload[n : n + 1] for n, path in enumerate(paths[:3])}
    return of_metadata(metadata, payload, fan_out=True, files=files)


def in_packed_sector() -> FakeSkyfile:
    """Content behind other content, of a portal that hands out whole sectors."""
    made = packed({"packed": b"behind other content"}, offset=64 << 10)
    assert made.base is not None
    whole = noise(64 << 10, 3) + made.base
    return replace(made, sectors={made.skylink.root: whole})


@pytest.fixture(scope="module")
def upstream() -> Iterator[FakePortal]:
    with in_thread(FakePortal()) as portal:
        yield portal


@pytest.fixture(scope="module")
def mirror(upstream: FakePortal, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    data = tmp_path_factory.mktemp("mirror")
    with (
        portal_process(data, "--upstream", upstream.url) as running,
        Client(base_url=running.url, timeout=60) as client,
    ):
        yield client


@pytest.mark.parametrize(
    "skyfile",
    [
        of_files({"a": b"inline", "b": b"content"}),
        of_files({"old": b"inline"}, cipher=CIPHER_LEGACY_PLAIN),
        of_files({"empty": b""}),
        of_files({"a": noise(MIB), "b": noise(9 * MIB, 2)}),
        of_files({"wide": noise(25 * MIB, 3)}, pieces=2),
        in_packed_sector(),
        spilled(),
    ],
    ids=["inline", "before 2020", "empty", "large", "two pieces", "packed", "spilled metadata"],
)
def test_shapes(skyfile: FakeSkyfile, upstream: FakePortal, mirror: Client) -> None:
    """U1: all that can be proved is served, byte by byte as upstream has it."""
    upstream.add(skyfile)
    for path, content in skyfile.files.items():
        assert mirror.get(f"/{skyfile.name}/{path}").content == content
    assert mirror.get(f"/{skyfile.name}?format=concat").content == skyfile.payload
    assert mirror.get(f"/svc/metadata/{skyfile.name}").content == skyfile.metadata
    assert skyfile.base is not None
    base = mirror.get(f"/svc/basesector/{skyfile.name}").content
    assert base.rstrip(b"\0") == skyfile.base.rstrip(b"\0")
    for root, sector in skyfile.sectors.items():
        found = mirror.get(f"/svc/root?root={root.hex()}&offset=0&length={len(sector)}")
        assert found.content == sector


@pytest.mark.parametrize(
    ("skyfile", "reason"),
    [
        (of_files({"wide, too": noise(9 * MIB, 9)}, pieces=2), "another layout"),
        (in_packed_sector(), "packed sector"),
    ],
    ids=["two pieces", "packed"],
)
def test_pins_of_what_cannot_be_stored(
    skyfile: FakeSkyfile, reason: str, upstream: FakePortal, mirror: Client
) -> None:
    """U8: it is refused with the reason, and still served."""
    upstream.add(skyfile)
    answer = mirror.post(f"/svc/pin/{skyfile.name}")
    assert (answer.status_code, reason in message_of(answer)) == (400, True)
    assert mirror.get(f"/{skyfile.name}?format=concat").content == skyfile.payload


def test_encrypted_sectors(upstream: FakePortal, mirror: Client) -> None:
    skyfile = sealed({"secret": b"of somebody"})
    upstream.add(skyfile)
    base = mirror.get(f"/svc/basesector/{skyfile.name}").content
    assert skyfile.base is not None
    assert base.startswith(skyfile.base)
    answer = mirror.get(f"/{skyfile.name}")
    assert (answer.status_code, "skykey" in message_of(answer)) == (500, True)


def test_small_content_of_a_portal_without_base_sectors(
    upstream: FakePortal, mirror: Client
) -> None:
    skyfile = of_files({"rebuilt": b"exactly", "as it": b"was"})
    upstream.add(skyfile)
    upstream.base_sectors = False
    try:
        assert mirror.get(f"/{skyfile.name}/rebuilt").content == b"exactly"
        large = of_files({"large": noise(5 * MIB, 6)})
        upstream.add(large)
        assert mirror.get(f"/{large.name}").status_code == 502
    finally:
        upstream.base_sectors = True


def test_what_nobody_can_prove_is_refused(upstream: FakePortal, mirror: Client) -> None:
    skyfile = unverifiable(of_files({"x": b"y"}).metadata, b"y")
    upstream.add(skyfile)
    assert mirror.get(f"/{skyfile.name}").status_code == 502


def test_what_cannot_be_read_is_refused(upstream: FakePortal, mirror: Client) -> None:
    """The layout is proved, and claims metadata beyond the limit."""
    base = bytes(Layout(1, 1 << 40, data_pieces=1)) + bytes(64)
    skylink = Skylink.v1(sector_root(base), len(base))
    upstream.add(FakeSkyfile(skylink, b"", b"", base))
    answer = mirror.get(f"/{skylink}")
    assert (answer.status_code, "limit" in message_of(answer)) == (502, True)


def test_the_second_upstream_has_the_truth(
    upstream: FakePortal, tmp_path_factory: pytest.TempPathFactory
) -> None:
    skyfile = of_files({"a": noise(5 * MIB, 8)})
    upstream.add(skyfile)
    with in_thread(FakePortal()) as liar:
        liar.add(skyfile)
        liar.fault(flips(3 * MIB), f"GET /{skyfile.name}")
        flags = ["--upstream", liar.url, "--upstream", upstream.url]
        with (
            portal_process(tmp_path_factory.mktemp("two"), *flags) as running,
            Client(base_url=running.url, timeout=60) as client,
        ):
            assert client.get(f"/{skyfile.name}").content == skyfile.payload
