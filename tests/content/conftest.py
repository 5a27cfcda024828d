"""A content stack whose retries do not wait."""

import pytest

from tests.fakes.content_stack import OpenContentStack, open_content_stack


@pytest.fixture
def stack(monkeypatch: pytest.MonkeyPatch) -> OpenContentStack:
    """Open content stacks whose failover hardly waits: `async with stack(portals=2) as made`."""
    monkeypatch.setattr("skymount.portal.failover.BACKOFF", 0.001)
    return open_content_stack
