"""Portals that share an object store and a database: what one stores all have."""

import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from skymount.wire.skylink import SECTOR_SIZE
from tests.fakes.skyfiles import noise
from tests.portal_process import PortalProcess, portal_command, portal_environment
from tests.server.http_client import FORM_TYPE, Client, message_of
from tests.server.pages.page_client import page, token_of
from tests.server.raw_connection import eventually
from tests.server.registry_entries import get, post, put, signed
from tests.server.storage.cluster.conftest import StartPortal, running
from tests.server.storage.cluster.servers import Postgres, Shared
from tests.server.test_observed import figures_of, lines_of

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.timeout(180)]

LARGE = 2 * SECTOR_SIZE + 70_000


@dataclass(frozen=True)
class Pair:
    """Two portals that share their storage."""

    one: PortalProcess
    two: PortalProcess
    shared: Shared


@pytest.fixture(scope="module")
def pair(
    s3rver: str, postgres: Postgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    directory = tmp_path_factory.mktemp("pair")
    shared = Shared.new(s3rver, postgres, directory)
    with running(shared, directory) as one, running(shared, directory) as two:
        yield Pair(one, two, shared)


def connected(url: str) -> Client:
    return Client(base_url=url, timeout=60)


def test_all_portals_have_what_one_stores(
    shared_on_each: Shared, start: StartPortal, client: Client
) -> None:
    """SP1: under the skylinks that a portal on a disk gives, whole and in ranges."""
    contents = {
        "small": b"hello",
        "empty": b"",
        "large": noise(LARGE),
        "zeros": noise(SECTOR_SIZE) + bytes(SECTOR_SIZE + 5),
    }
    with start(shared_on_each) as one, start(shared_on_each) as two:
        first, second = connected(one.url), connected(two.url)
        links = {name: first.upload_file(name, data) for name, data in contents.items()}
        assert links == {name: client.upload_file(name, data) for name, data in contents.items()}
        for name, link in links.items():
            assert second.get(f"/{link}").content == contents[name]
        middle = {"Range": f"bytes={SECTOR_SIZE - 5}-{LARGE - 3}"}
        answer = second.get(f"/{links['large']}", headers=middle)
        assert answer.content == contents["large"][SECTOR_SIZE - 5 : LARGE - 2]
        ahead = {"Range": f"bytes={2 * SECTOR_SIZE + 1}-"}
        assert second.get(f"/{links['zeros']}", headers=ahead).content == bytes(4)
        site = {f"f{number}": noise(number * 1000) for number in range(30)}
        link = first.upload(site)
        assert link == client.upload(site)
        for path in (f"/svc/metadata/{link}", f"/svc/basesector/{links['large']}"):
            assert second.get(path).content == client.get(path).content
        assert second.get(f"/{link}/f7").content == site["f7"]
        eventually(lambda: second.get("/svc/stats").json()["numfiles"] == 5)
        assert second.post(f"/svc/pin/{link}").status_code == 204
        page = second.get("/", headers={"Accept": "text/html"})
        assert page.status_code == 200
        assert "large" in page.text
        first.close()
        second.close()


def test_sectors_are_found_by_their_roots(pair: Pair) -> None:
    """SP1: those of base sectors and those of payloads; others are 404."""
    with connected(pair.one.url) as client:
        large = noise(LARGE)
        link = client.upload_file("large", large)
        base = client.get(f"/svc/basesector/{link}").content
        root = base[99 : 99 + 32]
        asked = {"root": root.hex(), "offset": "10", "length": "20"}
        assert client.get("/svc/root", params=asked).content == large[10:30]
        asked["root"] = "ab" * 32
        assert client.get("/svc/root", params=asked).status_code == 404


def test_a_client_verifies_what_another_portal_stored(pair: Pair, tmp_path: Path) -> None:
    """SP1: the bytes of each sector are those that the skylink promises."""
    large = noise(LARGE)
    with connected(pair.one.url) as client:
        link = client.upload_file("large", large)
        command = [*portal_command()[:-1], "cat", link, "--portal", pair.two.url]
        environment = {
            **portal_environment(),
            "HOME": str(tmp_path),
            "XDG_CACHE_HOME": str(tmp_path),
        }
        done = subprocess.run(command, capture_output=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout == large


def test_a_deleted_skykey_locks_its_content_everywhere(pair: Pair) -> None:
    """SP4: also at a portal that has decrypted the content before."""
    with connected(pair.one.url) as first, connected(pair.two.url) as second:
        made = first.post("/svc/createskykey", params={"name": "k", "type": "private-id"})
        assert made.status_code == 200, made.text
        link = first.upload_file("secret", b"secret", skykeyname="k")
        large = first.upload_file("secret", noise(LARGE), skykeyname="k")
        assert second.get(f"/{link}").content == b"secret"
        assert second.get(f"/{large}").content == noise(LARGE)
        first.post("/svc/deleteskykey", params={"name": "k"}).raise_for_status()
        assert second.get(f"/{link}").status_code == 500
        assert second.get(f"/{large}").status_code == 500
        assert (
            b"secret"
            not in pair.shared.postgres.execute(
                pair.shared.database, "SELECT * FROM skyfiles, skykeys_state"
            ).encode()
        )


def test_entries_are_seen_at_once(pair: Pair) -> None:
    """SP3: a revision posted at one portal is read at the other; an old one is refused there."""
    with connected(pair.one.url) as first, connected(pair.two.url) as second:
        for revision in range(5):
            put(first, signed("a", b"%d" % revision, revision))
            found = get(second, "a")
            assert found is not None
            assert found.entry.revision == revision
        refused = post(second, signed("a", b"old", 3))
        assert refused.status_code == 400
        assert "provided revision number is invalid" in message_of(refused)


def objects_of(shared: Shared, directory: str) -> int:
    query = {"list-type": "2", "prefix": f"{shared.prefix}/{directory}/"}
    answer = httpx.get(f"{shared.endpoint}/portals", params=query)
    return answer.text.count("<Key>")


def test_workers(shared: Shared, start: StartPortal) -> None:
    """SP6: several processes at one address; one that dies is started again; all end together."""

    def children(process: int) -> set[int]:
        path = Path(f"/proc/{process}/task/{process}/children")
        return {int(child) for child in path.read_text().split()}

    with start(shared, "--workers", "3") as portal:
        eventually(lambda: len(children(portal.process.pid)) == 3)
        before = children(portal.process.pid)
        with connected(portal.url) as client:
            link = client.upload_file("a", b"content")
        os.kill(min(before), signal.SIGKILL)
        eventually(lambda: len(children(portal.process.pid) - before) == 1)
        for _ in range(12):
            assert httpx.get(f"{portal.url}/{link}", timeout=60).content == b"content"
        running = children(portal.process.pid)
        portal.process.terminate()
        assert portal.process.wait(30) == 0
        assert not [each for each in running if Path(f"/proc/{each}").exists()]
    password = shared.key_file.with_name("password")
    password.write_text("secret")
    password.chmod(0o600)
    with start(shared, "--workers", "2", "--password-file", str(password)) as portal:
        eventually(lambda: len(children(portal.process.pid)) == 2)
        running = children(portal.process.pid)
        assert_signed_in(portal.url)
        portal.kill()
        eventually(lambda: not [each for each in running if alive(each)])


def test_workers_log_and_count_together(shared: Shared, start: StartPortal, tmp_path: Path) -> None:
    """AL3, AL4, MT3: into one file, which all open again; what one of them counted stays."""
    log, moved = tmp_path / "access.log", tmp_path / "access.log.1"
    directories = set(Path("/dev/shm").glob("skymount-metrics-*"))
    with start(shared, "--workers", "3", "--metrics", "--access-log", str(log)) as portal:
        process = portal.process.pid
        children = Path(f"/proc/{process}/task/{process}/children")
        eventually(lambda: len(children.read_text().split()) == 3)

        def ask(count: int) -> None:
            """Many clients at once, so that each process has some."""
            with ThreadPoolExecutor(16) as threads:
                answers = [
                    threads.submit(httpx.get, f"{portal.url}/svc/portals", timeout=60)
                    for _ in range(count)
                ]
                assert {each.result().status_code for each in answers} == {200}

        ask(100)
        lines_of(log, 100)
        log.rename(moved)
        portal.process.send_signal(signal.SIGHUP)
        killed = int(children.read_text().split()[0])
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: str(killed) not in children.read_text().split())
        eventually(lambda: len(children.read_text().split()) == 3)
        eventually(log.exists)
        # One may still write to the file before: until it was told.
        ask(100)
        eventually(lambda: log.read_bytes().count(b"\n") + moved.read_bytes().count(b"\n") == 200)
        for _ in range(3):
            with httpx.Client(base_url=portal.url, timeout=60) as client:
                assert figures_of(client)["skymount_server_requests_total{portals,200}"] == 200
    assert set(Path("/dev/shm").glob("skymount-metrics-*")) == directories


def assert_signed_in(url: str) -> None:
    """Sign in, and ask for the page on further connections, which any process may have."""
    with connected(url) as client:
        token = token_of(page(client, "/"))
        answer = client.post("/-/sign-in", data={"token": token, "password": "secret"})
        assert answer.status_code == 303, answer.text
        cookie = answer.headers["set-cookie"].partition(";")[0]
    for _ in range(8):
        with connected(url) as client:
            assert "/-/sign-out" in page(client, "/", {"Cookie": cookie}).text


def alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_forms_are_as_ever(pair: Pair) -> None:
    """SP1: what is refused on a disk is refused here, and stores nothing."""
    before = objects_of(pair.shared, "skyfiles")
    with connected(pair.one.url) as client:
        answer = client.post(
            "/svc/skyfile", content=b"no form", headers={"Content-Type": FORM_TYPE}
        )
        assert answer.status_code == 400
        dry = client.upload_file("x", b"dry", dryrun="true")
        assert client.get(f"/{dry}").status_code == 404
        assert client.get(f"/AA{'B' * 44}").status_code == 404
    assert objects_of(pair.shared, "skyfiles") == before


def test_names_are_those_of_all(pair: Pair) -> None:
    """SP1: set from any machine that reaches the database."""
    database = ("--database", pair.shared.postgres.url(pair.shared.database))

    def hns(*arguments: str) -> str:
        done = subprocess.run(
            portal_command("hns", *arguments, *database),
            capture_output=True,
            text=True,
            env=portal_environment(),
            check=True,
        )
        return done.stdout

    with connected(pair.one.url) as first, connected(pair.two.url) as second:
        link = first.upload_file("named", b"named")
        hns("set", "example", link)
        for client in (first, second):
            assert client.get("/hns/example").content == b"named"
        assert hns("list").split()[0] == "example"
        hns("remove", "example")
        assert second.get("/hns/example").status_code == 404
