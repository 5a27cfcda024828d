"""The registry of a portal with upstreams, while they fail."""

from dataclasses import dataclass
from typing import Any, cast

import pytest

from skymount.errors import UnavailableError
from skymount.portal.failover.portals import Portals
from skymount.server.storage.interfaces import Entries
from skymount.server.upstream.entries import UpstreamEntries
from skymount.wire.registry_entry import SignedEntry
from tests.server.registry_entries import signed

ENTRY = signed("seen", bytes(34), 3)


@dataclass(frozen=True)
class FailingPortals(Portals):
    async def poll(self, *args: Any, **options: Any) -> Any:
        raise UnavailableError("it is away")


class Kept:
    """A store with one entry."""

    async def find(self, entry: bytes) -> SignedEntry | None:
        return ENTRY


async def test_the_log_says_once_that_upstream_fails(caplog: pytest.LogCaptureFixture) -> None:
    """U4: mounts ask again and again."""
    entries = UpstreamEntries(FailingPortals([]), cast(Entries, Kept()))
    for _ in range(3):
        assert await entries.read(ENTRY.public_key, ENTRY.entry.tweak) == ENTRY
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "it is away" in caplog.text
