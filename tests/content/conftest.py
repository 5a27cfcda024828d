"""Retries that do not wait, and rigs."""

import pytest

from tests.fakes.rig import OpenRig, open_rig


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> OpenRig:
    """Open rigs, whose failovers hardly wait: `async with rig(portals=2) as made`."""
    monkeypatch.setattr("skymount.portal.failover.BACKOFF", 0.001)
    return open_rig
