"""Portals that are behind get the newest entry in the background, while a mount runs."""

from collections.abc import Iterator

import pytest

from skymount.wire.registry_entry import SignedEntry, hash_data_key
from tests.mount.keys import Owner, files, until
from tests.mount.scripted import ScriptedPortal, scripted_portal
from tests.skymount_process import Sandbox, output, run


@pytest.fixture
def portals() -> Iterator[list[ScriptedPortal]]:
    """Two portals whose faults are told."""
    with scripted_portal() as one, scripted_portal() as two:
        yield [one, two]


@pytest.fixture
def reader(sandbox: Sandbox) -> Owner:
    """A home with a key, and no portal."""
    return Owner.make(sandbox, "")


def held(portal: ScriptedPortal, owner: Owner, name: str) -> SignedEntry | None:
    return portal.latest(owner.pair.public_key, hash_data_key(name))


def lose(portal: ScriptedPortal, owner: Owner, name: str) -> None:
    """Let a portal lose an entry."""
    with portal.lock:
        del portal.stored[owner.pair.public_key, hash_data_key(name)]


@pytest.mark.parametrize("newer", [0, 1])
def test_newest_is_read_and_goes_everywhere(
    reader: Owner, portals: list[ScriptedPortal], newer: int
) -> None:
    """G18: one portal has revision 0 and the other one 4, or has lost the entry again."""
    old, new = reader.signed("a", b"old", 0), reader.signed("a", b"new", 4)
    for portal in portals:
        portal.set(old)
    portals[newer].set(new)
    behind = portals[1 - newer]
    with reader.mounted("--portal", portals[1].url, portal=portals[0].url) as path:
        file = path / "a"
        assert output(["cat", file]) == b"new"
        until(lambda: held(behind, reader, "a") == new)
        assert output(["cat", file]) == b"new"
        lose(behind, reader, "a")
        assert output(["cat", file]) == b"new"
        until(lambda: held(behind, reader, "a") == new)
    assert [each for each in portals[newer].posts if each != new] == []


def test_single_portal_gets_back_what_it_lost(reader: Owner, portals: list[ScriptedPortal]) -> None:
    """G18: the entry is absent for a moment, and then there again."""
    portal, entry = portals[0], reader.signed("a", b"x", 3)
    portal.set(entry)
    with reader.mounted(portal=portal.url) as path:
        file = path / "a"
        assert output(["cat", file]) == b"x"
        lose(portal, reader, "a")
        assert run(["cat", file]).returncode == 1
        until(lambda: held(portal, reader, "a") == entry)
        until(lambda: run(["cat", file]).stdout == "x")


def test_a_write_that_its_only_portal_denies(reader: Owner, portals: list[ScriptedPortal]) -> None:
    """G4: one portal took it, the other one is owed it, and the first one says «not found» now."""
    one, two = portals
    two.always = "deaf"
    with reader.mounted("--portal", two.url, portal=one.url) as path:
        file = path / "a"
        file.write_text("x")
        one.always = "missing"
        done = run(["cat", file])
        assert "Input/output error" in done.stderr
        one.always = ""
        assert output(["cat", file]) == b"x"


def test_equal_revisions(reader: Owner, portals: list[ScriptedPortal]) -> None:
    """G18: the registry's own rule decides, and the portals agree soon."""
    found = [reader.signed("a", data, 7) for data in (b"one", b"two")]
    wins = min(found, key=lambda each: each.entry.work)
    for portal, entry in zip(portals, found, strict=True):
        portal.set(entry)
    with reader.mounted("--portal", portals[1].url, portal=portals[0].url) as path:
        file = path / "a"
        assert output(["cat", file]) == wins.entry.data
        until(lambda: all(held(each, reader, "a") == wins for each in portals))
        assert output(["cat", file]) == wins.entry.data


def test_nothing_is_posted(reader: Owner, portals: list[ScriptedPortal]) -> None:
    """G18, W2: not with `send_pending = false`, and never to a portal that is `read_only`."""
    one, two = portals
    one.set(reader.signed("a", b"old", 0))
    two.set(reader.signed("a", b"new", 4))
    table = '[[portals]]\nurl = "{}"\n'
    both = table.format(one.url) + "{}" + table.format(two.url)
    for text in ("send_pending = false\n" + both.format(""), both.format("read_only = true\n")):
        reader.sandbox.configure(text)
        with reader.sandbox.mounted() as mount:
            for _ in range(3):
                assert output(["cat", files(mount) / "a"]) == b"new"
    assert one.posts == two.posts == []
