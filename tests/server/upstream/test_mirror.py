"""Portals with `--upstream`, as processes: what they fetch, keep, serve and refuse."""

import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random

import httpx
import pytest

from skymount.wire.skylink import Skylink
from tests.portal_process import PortalProcess, portal_command, portal_environment, portal_process
from tests.recording_proxy import RecordingProxy, recording_proxy
from tests.server.http_client import Client, message_of
from tests.server.registry_entries import get, link_of, post, put, question, signed

MIB = 1 << 20
READERS = 8
LARGE = Random(15).randbytes(10 * MIB + 12_345)
SMALL = b"a small file"
ABSENT = str(Skylink.v1(bytes(range(32)), 4096))


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PortalProcess]:
    with portal_process(tmp_path_factory.mktemp("origin") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def at_origin(origin: PortalProcess) -> Iterator[Client]:
    with Client(base_url=origin.url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def large(at_origin: Client) -> str:
    """Content of several sectors."""
    return at_origin.upload({"large.bin": LARGE, "small.txt": SMALL})


@pytest.fixture
def proxy(origin: PortalProcess) -> Iterator[RecordingProxy]:
    with recording_proxy(origin.url) as running:
        yield running


@contextmanager
def mirror_of(data: Path, *urls: str, size: str = "1 GiB") -> Iterator[Client]:
    flags = [flag for url in urls for flag in ("--upstream", url)]
    with (
        portal_process(data, *flags, "--upstream-cache", size) as running,
        Client(base_url=running.url, timeout=60) as client,
    ):
        yield client


def test_readers_share_what_is_fetched(
    large: str, at_origin: Client, proxy: RecordingProxy, tmp_path: Path
) -> None:
    """U2: all who read the same at once share one fetch of each unit. Uploads stay here."""
    with mirror_of(tmp_path / "mirror", proxy.url) as mirror:

        def read(_: int) -> bytes:
            with httpx.Client(base_url=mirror.base_url, timeout=60) as client:
                return client.get(f"/{large}/large.bin").content

        with ThreadPoolExecutor(READERS) as readers:
            found = list(readers.map(read, range(READERS)))
        assert all(each == LARGE for each in found)
        assert mirror.get(f"/{large}/small.txt").content == SMALL
        assert proxy.sent < 1.05 * len(LARGE)
        base = [each for each in proxy.requests if "basesector" in each[1]]
        assert len(base) == 1
        own = mirror.upload_file("local.txt", b"stays here")
        assert mirror.get(f"/{own}").content == b"stays here"
        assert at_origin.get(f"/{own}").status_code == 404


def test_what_was_seen_reads_without_upstream(
    large: str, at_origin: Client, proxy: RecordingProxy, tmp_path: Path
) -> None:
    """U3: also after a restart of the mirror; what was not seen is no 404 then. What is damaged on
    disk is fetched again.
    """
    unseen = at_origin.upload_file("unseen.txt", b"never read through the mirror")
    put(at_origin, signed("seen", bytes(34), 3))
    with mirror_of(tmp_path / "mirror", proxy.url) as mirror:
        assert mirror.get(f"/{large}/large.bin").content == LARGE
        assert get(mirror, "seen") == signed("seen", bytes(34), 3)
        proxy.is_gone = True
        assert mirror.get(f"/{large}/large.bin").content == LARGE
    with mirror_of(tmp_path / "mirror", proxy.url) as mirror:
        assert mirror.get(f"/{large}/large.bin").content == LARGE
        assert mirror.get(f"/{large}/small.txt").content == SMALL
        assert mirror.get(f"/svc/metadata/{large}").content
        assert get(mirror, "seen") == signed("seen", bytes(34), 3)
        answer = mirror.get(f"/{unseen}")
        assert answer.status_code == 502
        assert "upstream cannot be asked" in message_of(answer)
        assert mirror.get("/svc/registry", params=question("unseen")).status_code == 502
    for path in (tmp_path / "mirror/v1/upstream/content/v1").glob("*/*"):
        with path.open("r+b") as file:
            file.seek(path.stat().st_size // 2)
            file.write(b"damage")
    proxy.is_gone = False
    proxy.requests.clear()
    with mirror_of(tmp_path / "mirror", proxy.url) as mirror:
        assert mirror.get(f"/{large}/large.bin").content == LARGE
        assert proxy.sent >= len(LARGE)


def test_nothing_of_a_lie_is_served(large: str, proxy: RecordingProxy, tmp_path: Path) -> None:
    """U1, U7: neither of a base sector nor of a payload; nor is it kept."""

    def flip(target: str, body: bytes) -> bytes:
        middle = len(body) // 2
        return body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :] if body else body

    def flip_payload(target: str, body: bytes) -> bytes:
        return body if "/svc/" in target else flip(target, body)

    def flip_end(target: str, body: bytes) -> bytes:
        is_end = "/svc/" not in target and len(body) % MIB
        return body[:-1] + bytes([body[-1] ^ 1]) if is_end else body

    with mirror_of(tmp_path / "mirror", proxy.url) as mirror:
        proxy.change = flip
        answer = mirror.get(f"/{large}/large.bin")
        assert answer.status_code == 502
        assert "upstream sent something else" in message_of(answer)
        proxy.change = flip_payload
        answer = mirror.get(f"/{large}/large.bin")
        assert answer.status_code == 502
        assert "upstream sent something else" in message_of(answer)
        assert answer.headers["cache-control"] == "no-store"
        assert "etag" not in answer.headers
        proxy.change = flip_end
        with pytest.raises(httpx.RemoteProtocolError, match="complete message body"):
            mirror.get(f"/{large}/large.bin")
        proxy.change = lambda target, body: body
        assert mirror.get(f"/{large}/large.bin").content == LARGE


def test_entries_are_never_rolled_back(
    origin: PortalProcess, at_origin: Client, proxy: RecordingProxy, tmp_path: Path
) -> None:
    """U4: a revision that was served is the least that is served later, whatever upstream has."""
    old, new = signed("shared", b"through the mirror", 5), signed("shared", b"at upstream", 7)
    with mirror_of(tmp_path / "mirror", proxy.url) as mirror:
        put(mirror, old)
        assert get(at_origin, "shared") == old
        put(at_origin, new)
        assert get(mirror, "shared") == new
        assert post(mirror, signed("shared", b"too old", 6)).status_code == 400
    with (
        portal_process(tmp_path / "behind") as behind,
        Client(base_url=behind.url, timeout=60) as at_behind,
        mirror_of(tmp_path / "mirror", proxy.url) as mirror,
    ):
        proxy.target = behind.url
        assert get(mirror, "shared") == new
        put(at_behind, old)
        assert get(mirror, "shared") == new
        refused = post(mirror, signed("shared", b"too old", 6))
        assert refused.status_code == 400
        assert "provided revision number is invalid" in message_of(refused)
        newest = signed("shared", b"newest", 8)
        put(mirror, newest)
        assert get(at_behind, "shared") == newest
        behind.process.send_signal(signal.SIGSTOP)
        try:
            assert get(mirror, "shared") == newest
        finally:
            behind.process.send_signal(signal.SIGCONT)


def test_names_that_move_are_followed(
    large: str,
    origin: PortalProcess,
    at_origin: Client,
    proxy: RecordingProxy,
    tmp_path: Path,
) -> None:
    small = at_origin.upload_file("moved.txt", b"moved")
    (origin.data / "hns.zone").write_text(f"named sia://{small}\n")
    put(at_origin, signed("moving", large.encode(), 1))
    with mirror_of(tmp_path / "mirror", proxy.url) as mirror:
        link = link_of("moving")
        assert mirror.get(f"/{link}/small.txt").content == SMALL
        put(at_origin, signed("moving", small.encode(), 2))
        assert mirror.get(f"/{link}").content == b"moved"
        assert mirror.get("/hns/named").content == b"moved"
        proxy.is_gone = True
        assert mirror.get("/hns/named").content == b"moved"
        assert mirror.get(f"/{link}").content == b"moved"
        assert mirror.get(f"/svc/resolve/{link}").json() == {"skylink": small}


def test_encrypted_content_is_passed_on(
    at_origin: Client, proxy: RecordingProxy, tmp_path: Path
) -> None:
    """U5: its sectors are, and a mirror that has the skykey decrypts them."""
    key = at_origin.post("/svc/createskykey", data={"name": "mirrored", "type": "public-id"})
    content = LARGE[: 5 * MIB]
    link = at_origin.upload_file("secret.bin", content, skykeyname="mirrored")
    with mirror_of(tmp_path / "mirror", proxy.url) as mirror:
        for path in (
            f"/svc/basesector/{link}",
            f"/svc/root?root={Skylink(link).root.hex()}&offset=0&length=64",
        ):
            assert mirror.get(path).content == at_origin.get(path).content
        assert mirror.get(f"/{link}").status_code == 500
        mirror.post("/svc/addskykey", data={"skykey": key.json()["skykey"]})
        assert mirror.get(f"/{link}").content == content
        proxy.is_gone = True
        assert mirror.get(f"/{link}").content == content


def test_what_is_kept_is_bounded(at_origin: Client, origin: PortalProcess, tmp_path: Path) -> None:
    """U3: the size that is given holds."""
    links = [at_origin.upload_file(f"{n}.bin", LARGE[n:]) for n in range(4)]
    with mirror_of(tmp_path / "mirror", origin.url, size="32 MiB") as mirror:
        for n, link in enumerate(links):
            assert mirror.get(f"/{link}").content == LARGE[n:]
    kept = [
        path.stat().st_size
        for path in (tmp_path / "mirror/v1/upstream").rglob("*")
        if path.is_file()
    ]
    assert 8 * MIB < sum(kept) <= 33 * MIB


def test_a_portal_upstream_of_itself_asks_nobody_else(
    proxy: RecordingProxy, tmp_path: Path
) -> None:
    """U6: at once."""
    with mirror_of(tmp_path / "own", proxy.url) as own:
        proxy.target = str(own.base_url).rstrip("/")
        assert own.get(f"/{ABSENT}").status_code == 404
        assert 0 < len(proxy.requests) < 10


def test_portals_upstream_of_each_other_have_all_that_one_has(
    proxy: RecordingProxy, tmp_path: Path
) -> None:
    """U6: content and entries, whichever is asked first, and how often."""
    with (
        mirror_of(tmp_path / "first", proxy.url) as first,
        mirror_of(tmp_path / "second", str(first.base_url).rstrip("/")) as second,
    ):
        proxy.target = str(second.base_url).rstrip("/")
        both = (first, second)
        for turn in range(2):
            for number, portal in enumerate(both):
                other = both[1 - number]
                content = f"{turn} {number}".encode()
                small = portal.upload_file("small.txt", content)
                large = portal.upload_file("large.bin", content + LARGE)
                assert other.get(f"/{small}").content == content
                assert other.get(f"/{large}").content == content + LARGE
                assert other.get(f"/{ABSENT}").status_code == 404
                put(portal, signed(f"of {number}", content, turn))
                assert get(other, f"of {number}") == signed(f"of {number}", content, turn)
                assert other.get("/svc/registry", params=question("nowhere")).status_code == 404


def test_mirrors_of_each_other_and_of_a_portal_outside(
    large: str, proxy: RecordingProxy, tmp_path: Path
) -> None:
    """U6: what both read at once, and what only one has, is read, and not fetched over and over."""
    outside = proxy.url
    with (
        recording_proxy(outside) as between,
        mirror_of(tmp_path / "first", between.url, outside) as first,
        mirror_of(tmp_path / "second", str(first.base_url).rstrip("/"), outside) as second,
    ):
        between.target = str(second.base_url).rstrip("/")

        def read(client: Client) -> bytes:
            return client.get(f"/{large}/large.bin").content

        with ThreadPoolExecutor(2) as readers:
            assert list(readers.map(read, (first, second))) == [LARGE, LARGE]
        assert proxy.sent < 5 * len(LARGE)
        for mirror in (first, second):
            assert mirror.get(f"/{ABSENT}").status_code == 404
        proxy.is_gone = True
        for mirror in (first, second):
            assert read(mirror) == LARGE
            assert mirror.get(f"/{ABSENT}").status_code == 502


def test_what_was_read_and_then_uploaded_is_stored_here(
    at_origin: Client, proxy: RecordingProxy, tmp_path: Path
) -> None:
    """Upstream is not asked for it any more."""
    files = {"small": b"uploaded later", "large": LARGE[5:], "middle": bytes(100_000)}
    links = {name: at_origin.upload_file(name, content) for name, content in files.items()}
    with mirror_of(tmp_path / "mirror", proxy.url, size="32 MiB") as mirror:
        for name, content in files.items():
            assert mirror.get(f"/{links[name]}").content == content
            assert mirror.upload_file(name, content) == links[name]
        proxy.requests.clear()
        for name, content in files.items():
            assert mirror.get(f"/{links[name]}").content == content
            assert mirror.get(f"/svc/metadata/{links[name]}").status_code == 200
        assert not proxy.requests


def test_a_pin_brings_content_here(
    large: str, at_origin: Client, proxy: RecordingProxy, tmp_path: Path
) -> None:
    """U8: small, large, encrypted and extended content, as an upload stores it."""
    key = at_origin.post("/svc/createskykey", data={"name": "pinned", "type": "public-id"})
    locked = at_origin.upload_file("locked.bin", LARGE[:5_000_000], skykeyname="pinned")
    extended = at_origin.upload({"x" * 200 + str(n): b"1" for n in range(13_000)})
    small = at_origin.upload_file("pinned.txt", b"pinned")
    put(at_origin, signed("to be pinned", small.encode(), 1))
    data = tmp_path / "mirror"
    with mirror_of(data, proxy.url) as mirror:
        assert mirror.post(f"/svc/pin/{locked}").status_code == 500
        mirror.post("/svc/addskykey", data={"skykey": key.json()["skykey"]})
        for link in (large, locked, extended, link_of("to be pinned")):
            for _ in range(2):
                assert mirror.post(f"/svc/pin/{link}").status_code == 204
        assert mirror.post(f"/svc/pin/{ABSENT}").status_code == 404
        assert mirror.get("/svc/stats").json()["numfiles"] == 4
        proxy.is_gone = True
        assert mirror.get(f"/{large}/large.bin").content == LARGE
        assert mirror.get(f"/{locked}").content == LARGE[:5_000_000]
        metadata = at_origin.get(f"/svc/metadata/{extended}").content
        assert mirror.get(f"/svc/metadata/{extended}").content == metadata
        assert mirror.get(f"/{small}").content == b"pinned"
    done = subprocess.run(
        portal_command("verify", "--data", str(data)),
        capture_output=True,
        text=True,
        env=portal_environment(),
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_pin_of_a_lie_leaves_nothing(large: str, proxy: RecordingProxy, tmp_path: Path) -> None:
    """U8: nor does one that finds no room."""

    def flip_payload(target: str, body: bytes) -> bytes:
        is_end = "/svc/" not in target and len(body) % MIB
        return body[:-1] + bytes([body[-1] ^ 1]) if is_end else body

    with (
        portal_process(tmp_path / "small", "--upstream", proxy.url, "--max-storage", "8M") as tight,
        Client(base_url=tight.url, timeout=60) as client,
    ):
        assert client.post(f"/svc/pin/{large}").status_code == 507
    with mirror_of(tmp_path / "mirror", proxy.url) as mirror:
        proxy.change = flip_payload
        assert mirror.post(f"/svc/pin/{large}").status_code == 502
        assert mirror.get("/svc/stats").json()["numfiles"] == 0
        assert not [*(tmp_path / "mirror/v1/incoming").iterdir()]
        proxy.change = lambda target, body: body
        assert mirror.post(f"/svc/pin/{large}").status_code == 204


def test_what_no_upstream_has_is_absent(
    origin: PortalProcess, proxy: RecordingProxy, tmp_path: Path
) -> None:
    """U7: only if all of them say so."""
    with mirror_of(tmp_path / "mirror", origin.url, proxy.url) as mirror:
        for expected in (404, 502):
            assert mirror.get(f"/{ABSENT}").status_code == expected
            assert mirror.get("/svc/registry", params=question("nowhere")).status_code == expected
            root = f"/svc/root?root={'ab' * 32}&offset=0&length=64"
            assert mirror.get(root).status_code == expected
            assert mirror.get("/hnsres/nowhere").status_code == expected
            assert mirror.get(f"/{link_of('nowhere')}").status_code == expected
            proxy.is_gone = True


def test_wrong_options(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path))
    assert "bad portal URL" in refused_start(*data, "--upstream", "http://user@x")
    assert "32 MiB" in refused_start(*data, "--upstream-cache", "1 MiB")
    assert "not a size" in refused_start(*data, "--upstream-cache", "much")


def refused_start(*args: str) -> str:
    """Run a portal that must not start; return what it says."""
    done = subprocess.run(
        portal_command("serve", "--listen", "127.0.0.1:0", *args),
        capture_output=True,
        text=True,
        env=portal_environment(),
        timeout=60,
        check=False,
    )
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    return done.stderr
