"""A portal that the tests of a worker share, and commands that ask it."""

from collections.abc import Iterator

import pytest

from tests.fakes.portal import FakePortal, in_thread
from tests.portal_process import PortalProcess, portal_process
from tests.skymount_process import Sandbox


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PortalProcess]:
    """A portal to which the tests of a module give names."""
    with portal_process(tmp_path_factory.mktemp("names")) as running:
        yield running


@pytest.fixture
def fake() -> Iterator[FakePortal]:
    with in_thread(FakePortal()) as portal:
        yield portal


@pytest.fixture
def box(sandbox: Sandbox, portal: str) -> Sandbox:
    """Commands in it ask the real portal."""
    return sandbox.with_env(SKYMOUNT_PORTALS=portal)


@pytest.fixture
def owner(box: Sandbox) -> str:
    """The public key of a new key in the box, which is called home."""
    return box.succeed("key", "generate", "home").rstrip("\n")
