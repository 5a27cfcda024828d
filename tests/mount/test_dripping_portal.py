"""Writes of a mount and of `publish` while one of two real portals takes everything and drips its
answers (W4, G19). The times have room for a busy machine.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.chaos.fault_proxy import FaultProxies, ProxyConfig, fault_proxies
from tests.mount.keys import HOME, Owner, until
from tests.portal_process import PortalProcess, portal_process
from tests.skymount_process import Sandbox

CLOSE_LIMIT = 20.0
"""Seconds for close(2); an upload waits 2 s for the dripping portal."""
PUBLISH_LIMIT = 45.0
"""Seconds for `publish`, which waits 10 s for it, and as long again as the other one took."""


@dataclass
class Pair:
    """Two portals behind proxies."""

    portals: list[PortalProcess]
    proxies: FaultProxies

    def drip(self, number: int) -> None:
        self.proxies.set_mode(number, "drip", seed=5)

    def at(self, owner: Owner, number: int, name: str) -> bytes | None:
        return Owner(owner.sandbox, self.portals[number].url, owner.pair).data(name)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        portals = [
            stack.enter_context(portal_process(tmp_path / f"portal-{number}"))
            for number in range(2)
        ]
        configs = [ProxyConfig(int(each.url.rpartition(":")[2])) for each in portals]
        yield Pair(portals, stack.enter_context(fault_proxies(configs, lambda _: None)))


def test_close(sandbox: Sandbox, pair: Pair) -> None:
    """It returns soon, with the entry and the document at the other portal; later at both."""
    owner = Owner.make(sandbox, pair.portals[1].url)
    words = [word for url in pair.proxies.urls for word in ("--portal", url)]
    with owner.sandbox.mounted(*words) as mount:
        entry = mount.path / "registry" / HOME / "x"
        document = mount.path / "skydb" / HOME / "d.json"
        entry.write_text("first")
        pair.drip(0)
        for path, text, name in ((entry, "second", "x"), (document, "{}", "d")):
            begun = time.monotonic()
            path.write_text(text)  # and closes it
            assert time.monotonic() < begun + CLOSE_LIMIT
            assert pair.at(owner, 1, name) is not None
        assert pair.at(owner, 1, "x") == b"second"
        pair.proxies.set_mode(0, "")
        names = ("x", "d")
        until(lambda: all(pair.at(owner, 0, n) == pair.at(owner, 1, n) for n in names))


def test_publish(sandbox: Sandbox, pair: Pair) -> None:
    """It ends soon, and what was published is at the other portal."""
    owner = Owner.make(sandbox, pair.portals[1].url)
    page = sandbox.root / "page"
    page.write_text("published")
    pair.drip(0)
    words = [word for url in pair.proxies.urls for word in ("--portal", url)]
    begun = time.monotonic()
    done = sandbox.skymount("publish", page, "--key", HOME, "--as", "site", *words)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() < begun + PUBLISH_LIMIT
    assert pair.at(owner, 1, "site") is not None
    found = sandbox.succeed("cat", done.stdout.strip(), "--portal", pair.portals[1].url)
    assert found == "published"
