"""Commands on shared storage, while portals run."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from skymount.server.storage.cluster.skyfile_object import skyfile_name
from skymount.wire.skylink import SECTOR_SIZE, Skylink
from tests.portal_commands import upload, use
from tests.portal_process import portal_process
from tests.server.http_client import Client
from tests.server.raw_connection import eventually
from tests.server.registry_entries import get, put, signed
from tests.server.storage.cluster.conftest import StartPortal, opened_content
from tests.server.storage.cluster.servers import CREDENTIALS, Postgres, Shared
from tests.skymount_process import Sandbox

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.timeout(180)]


@pytest.fixture
def box(sandbox: Sandbox) -> Sandbox:
    return sandbox.with_env(**CREDENTIALS)


@pytest.fixture
def client(shared: Shared, start: StartPortal) -> Iterator[Client]:
    with start(shared) as portal, Client(base_url=portal.url, timeout=60) as connected:
        yield connected


def test_commands_as_on_a_disk(box: Sandbox, shared: Shared, client: Client) -> None:
    """RT5: list, show, pin, unpin, remove, gc and verify, beside a portal that runs."""
    links = upload(client)
    use(box, shared.arguments, links)
    assert client.get(f"/{links[0]}").content == b"one"
    with opened_content(shared) as content:
        assert [str(link) for link in content.skylinks()] == [links[0]]


def test_what_is_damaged_is_named(
    box: Sandbox, shared: Shared, client: Client, tmp_path: Path
) -> None:
    """RT4, RT6: an object that was changed, cut off, is gone, or far too large."""
    large = [client.upload_file("large", os.urandom(SECTOR_SIZE + 5)) for _ in range(4)]
    with opened_content(shared) as content:
        found = {str(link): content.load_known(link) for link in content.skylinks()}
        changed, short, gone, _ = (found[link].payload_roots[1].hex() for link in large)
        content.objects.put(f"sectors/{changed}", b"other")
        content.objects.put(f"sectors/{short}", b"")
        content.objects.delete([f"sectors/{gone}"])
        foreign = Skylink.v1(b"f" * 32, 99)
        content.objects.put(skyfile_name(foreign), bytes(65 << 20))
    said = box.skymount("portal", "verify", "--json", *shared.arguments)
    assert said.returncode == 1
    report = json.loads(said.stdout)
    assert {one["skylink"] for one in report["damaged"]} == {*large[:3], str(foreign)}
    assert report["skyfiles"] == 5
    archive, copy = tmp_path / "archive", tmp_path / "copy"
    written = box.skymount("portal", "export", archive, *shared.arguments)
    assert written.returncode == 1
    assert all(link in written.stderr for link in (large[2], str(foreign)))
    brought = box.skymount("portal", "import", "--data", copy, archive)
    assert brought.returncode == 1
    assert [link for link in large if link not in brought.stdout] == large[3:]
    assert box.succeed("portal", "list", "--data", copy).startswith(large[3])
    box.succeed("portal", "remove", str(foreign), *shared.arguments)


def test_from_a_disk_to_shared_storage_and_back(
    box: Sandbox, shared: Shared, client: Client, tmp_path: Path
) -> None:
    """RT6: everything is brought, both ways, while portals on shared storage run."""
    first, last = tmp_path / "first", tmp_path / "last"
    secret = noise = os.urandom(SECTOR_SIZE + 5)
    with portal_process(first) as portal, Client(base_url=portal.url, timeout=60) as local:
        local.post("/svc/createskykey", params={"name": "key", "type": "public-id"})
        contents = {
            local.upload_file("small", b"small"): b"small",
            local.upload_file("empty", b""): b"",
            local.upload_file("large", noise): noise,
            local.upload_file("locked", secret, skykeyname="key"): secret,
            local.upload_file("little", b"secret", skykeyname="key"): b"secret",
        }
        many = local.upload({f"{'n' * 1000}/{n}": b"" for n in range(5_000)}, filename="m")
        put(local, signed("entry", b"data", 5))
    small = next(iter(contents))
    box.succeed("portal", "pin", small, "--reason", "why", "--data", first)
    box.succeed("portal", "hns", "set", "example", small, "--data", first)
    out, back = tmp_path / "out.tar", tmp_path / "back.tar"
    keys = "--with-skykeys"
    assert box.skymount("portal", "export", out, keys, "--data", first).returncode == 0
    said = box.succeed("portal", "import", out, keys, "--json", *shared.arguments)
    counts = {"skyfiles": 6, "entries": 1, "pins": 1, "names": 1, "skykeys": 1}
    assert {name: json.loads(said)[name] for name in counts} == counts
    for link, content in contents.items():
        assert client.get(f"/{link}").content == content
    assert client.get("/hns/example").content == b"small"
    assert len(client.get(f"/svc/metadata/{many}").json()["subfiles"]) == 5_000
    entry = get(client, "entry")
    assert entry is not None
    assert entry.entry.revision == 5
    eventually(lambda: client.get("/svc/stats").json()["numfiles"] == 6)
    again = json.loads(box.succeed("portal", "import", out, "--json", *shared.arguments))
    assert (again["skyfiles"], again["present"], again["problems"]) == (0, 7, [])
    assert box.skymount("portal", "export", back, keys, *shared.arguments).returncode == 0
    said = box.succeed("portal", "import", back, keys, "--json", "--data", last)
    assert {name: json.loads(said)[name] for name in counts} == counts
    assert "0 damaged" in box.succeed("portal", "verify", "--data", last)
    assert box.succeed("portal", "show", small, "--data", last).endswith("UTC why\n")
    with portal_process(last) as portal, Client(base_url=portal.url, timeout=60) as local:
        for link, content in contents.items():
            assert local.get(f"/{link}").content == content


def test_without_the_options_that_belong_together(box: Sandbox, postgres: Postgres) -> None:
    """RT5: wrong usage, as with `serve`."""
    url = postgres.url("none")
    refused = box.skymount("portal", "list", "--database", url)
    assert refused.returncode == 2
    assert "need --store" in refused.stderr
    refused = box.skymount("portal", "list", "--store", "s3://bucket")
    assert refused.returncode != 0
    assert "SKYMOUNT_PORTAL_DATABASE" in refused.stderr
