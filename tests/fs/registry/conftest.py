"""The fixture that the tests of `/registry` share."""

import pytest

from tests.fakes.registry_mount import RegistryMount


@pytest.fixture
def mount() -> RegistryMount:
    """A tree whose store is empty."""
    return RegistryMount()
