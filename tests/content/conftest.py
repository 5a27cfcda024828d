"""A content stack."""

import pytest

from tests.fakes.content_stack import OpenContentStack, open_content_stack


@pytest.fixture
def stack() -> OpenContentStack:
    """Open content stacks whose failover hardly waits: `async with stack(portals=2) as made`."""
    return open_content_stack
