"""Registries of one and of two portals over a ledger."""

import pytest

from skymount.portal.ledger.ledger import Ledger
from skymount.portal.registry.verified_registry import VerifiedRegistry
from tests.fakes.entries import FakeRegistry, portals_of


@pytest.fixture
def one() -> FakeRegistry:
    return FakeRegistry(1)


@pytest.fixture
def two() -> FakeRegistry:
    return FakeRegistry(2)


@pytest.fixture
def alone(one: FakeRegistry, ledger: Ledger) -> VerifiedRegistry:
    return VerifiedRegistry(portals_of([one]), ledger, fresh=0)


@pytest.fixture
def both(one: FakeRegistry, two: FakeRegistry, ledger: Ledger) -> VerifiedRegistry:
    return VerifiedRegistry(portals_of([one, two]), ledger, fresh=0)
