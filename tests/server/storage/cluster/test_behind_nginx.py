"""Two and four portals behind nginx, as docs/scaling.md has it: one for clients and mounts."""

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from skymount.wire.registry_entry import Entry, hash_data_key
from skymount.wire.skylink import SECTOR_SIZE
from tests.fakes.skyfiles import noise
from tests.fuse_device import NEEDS_MOUNTS
from tests.mount.keys import HOME, Owner, program, until
from tests.nginx import cache_before, needs_nginx_cache
from tests.server.http_client import Client
from tests.server.registry_entries import OWNER, get, post
from tests.server.storage.cluster.conftest import running
from tests.server.storage.cluster.servers import Postgres, Shared
from tests.skymount_process import Sandbox, output, run

pytestmark = [
    *NEEDS_MOUNTS,
    needs_nginx_cache,
    pytest.mark.xdist_group("kills"),
    pytest.mark.timeout(180),
]

_LARGE = noise(2 * SECTOR_SIZE + 70_000)


@dataclass(frozen=True)
class Group:
    """Portals that share their storage, and the nginx before them."""

    portals: list[str]
    url: str


@pytest.fixture(scope="module", params=[("moto", 2), ("s3rver", 4)], ids=["two", "four"])
def group(
    request: pytest.FixtureRequest, postgres: Postgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Group]:
    store, count = request.param
    directory = tmp_path_factory.mktemp("group")
    shared = Shared.new(request.getfixturevalue(store), postgres, directory)
    with ExitStack() as stack:
        portals = [stack.enter_context(running(shared, directory)).url for _ in range(count)]
        url = stack.enter_context(cache_before(portals, directory / "nginx"))
        yield Group(portals, url)


def test_content(group: Group, client: Client, tmp_path: Path) -> None:
    """SP1: a mount reads by nginx, and by another portal, what came by any of them; the skylinks
    are those of a portal on a disk.
    """
    source = tmp_path / "site"
    source.mkdir()
    for number in range(20):
        (source / f"f{number}").write_bytes(noise(number * 1000))
    (source / "large").write_bytes(_LARGE)
    sandbox = Sandbox.make(tmp_path / "sandbox")
    links = []
    for portal in [group.url, *group.portals]:
        (source / "from").write_text(portal)  # so each stores another one
        links.append(sandbox.upload(source, portal))
        assert sandbox.upload(source, str(client.base_url)) == links[-1]
    for portal in (group.url, group.portals[-1]):
        with sandbox.mounted("--portal", portal, "--disk-cache", "off") as mount:
            for link in links:
                tree = mount.skylink(link)
                assert output(["cat", tree / "large"]) == _LARGE
                assert len(output(["ls", tree]).split()) == 22
                assert output(["cat", tree / "f15"]) == noise(15_000)


def test_registry_and_documents(group: Group, tmp_path: Path) -> None:
    """SP3: a file that is written in one mount is read in another one, by another portal."""
    owner = Owner.make(Sandbox.make(tmp_path / "sandbox"), group.portals[0])
    places = [owner.sandbox.directory(name) for name in ("one", "two", "three")]
    with (
        owner.mounted(at=places[0]) as one,
        owner.mounted(portal=group.portals[-1], at=places[1]) as two,
        owner.mounted(portal=group.url, at=places[2]) as three,
    ):
        mounts = [one, two, three]
        for number, (written, others) in enumerate([(one, [two, three]), (three, [one, two])]):
            text, document = f"text {number}", {"number": number}
            with program(written) as tool:
                assert tool.do(f"open('entry', 'w').write({text!r})") == str(len(text))
            with program(_documents(written)) as tool:
                assert tool.do(f"open('doc.json', 'w').write({json.dumps(document)!r})")
            for other in others:
                until(partial(_is, other / "entry", text))
                until(partial(_is, _documents(other) / "doc.json", json.dumps(document, indent=2)))
        assert {*map(_read, [each / "entry" for each in mounts])} == {b"text 1"}


def _documents(files: Path) -> Path:
    return files.parent.parent / "skydb" / HOME


def _read(path: Path) -> bytes:
    return output(["cat", path])


def _is(path: Path, text: str) -> bool:
    found = run(["cat", path])
    return found.returncode == 0 and found.stdout.rstrip("\n") == text


def test_of_many_writers_the_highest_wins(group: Group) -> None:
    """SP3: 16 by all portals; of one revision that with the least hash."""
    tweak = hash_data_key("many")
    random_ = random.Random(7)
    entries = [
        Entry(tweak, bytes([writer, number]), random_.randrange(20)).sign(OWNER.private_key)
        for writer in range(16)
        for number in range(6)
    ]

    def write(writer: int) -> list[int]:
        url = group.portals[writer % len(group.portals)]
        with Client(base_url=url, timeout=60) as client:
            return [post(client, entry).status_code for entry in entries[writer * 6 :][:6]]

    with ThreadPoolExecutor(16) as threads:
        codes = [code for found in threads.map(write, range(16)) for code in found]
    assert {*codes} <= {204, 400}
    best = max(entries, key=lambda each: (each.entry.revision, -int.from_bytes(each.entry.work)))
    for url in [group.url, *group.portals]:
        with Client(base_url=url, timeout=60) as client:
            assert get(client, "many") == best
