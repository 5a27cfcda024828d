"""A ledger, and registries of one and of two portals over it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from skymount.portal.registry.ledger import Ledger
from skymount.portal.registry.verified_registry import VerifiedRegistry
from tests.fakes.entries import FakeRegistry, portals_of


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger.open(tmp_path / "ledger.sqlite3")
    yield opened
    opened.close()


@pytest.fixture
def one() -> FakeRegistry:
    return FakeRegistry(1)


@pytest.fixture
def two() -> FakeRegistry:
    return FakeRegistry(2)


@pytest.fixture
def alone(one: FakeRegistry, ledger: Ledger) -> VerifiedRegistry:
    """A registry with one portal."""
    return VerifiedRegistry(portals_of([one]), ledger, fresh=0)


@pytest.fixture
def both(one: FakeRegistry, two: FakeRegistry, ledger: Ledger) -> VerifiedRegistry:
    """A registry with two portals."""
    return VerifiedRegistry(portals_of([one, two]), ledger, fresh=0)
