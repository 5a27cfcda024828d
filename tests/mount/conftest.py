"""A portal, a published tree and a mount that the tests of a worker share, and sandboxes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuse_device import NEEDS_MOUNTS
from tests.mount.keys import Owner
from tests.mount.namespaces import Namespace, new_namespace
from tests.mount.proxy import Proxy, proxy_to
from tests.mount.site import Site, make_source
from tests.skymount_process import Sandbox, output


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test of this directory, and skip them all where nothing can be mounted."""
    here = f"{Path(__file__).parent}/"
    for item in items:
        if str(item.path).startswith(here):
            for mark in NEEDS_MOUNTS:
                item.add_marker(mark)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory, portal: str) -> Iterator[Site]:
    """A tree of all sorts of files, published and mounted; tests only read it."""
    root = tmp_path_factory.mktemp("site")
    source = make_source(root / "source")
    sandbox = Sandbox.make(root / "sandbox")
    skylink = sandbox.upload(source, portal)
    with sandbox.mounted("--portal", portal) as mount:
        made = Site(source, skylink, mount, sandbox, portal)
        output(["ls", made.tree])  # what was used is listed; no test is to depend on another's use
        yield made


@pytest.fixture(scope="module")
def owner(tmp_path_factory: pytest.TempPathFactory, portal: str) -> Owner:
    """A home with a key, which the tests of a module share."""
    return Owner.make(Sandbox.make(tmp_path_factory.mktemp("owner") / "sandbox"), portal)


@pytest.fixture(scope="module")
def files(owner: Owner) -> Iterator[Path]:
    """The directory of its key, mounted."""
    with owner.mounted() as directory:
        yield directory


@pytest.fixture
def proxy(portal: str) -> Iterator[Proxy]:
    """A proxy in front of the shared portal."""
    with proxy_to(portal) as running:
        yield running


@pytest.fixture
def mount_namespace() -> Iterator[Namespace]:
    """A place where a test may mount unseen; the network is everybody's."""
    with new_namespace(network=False) as made:
        yield made


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    """A place where a test may mount unseen and use any port."""
    with new_namespace(network=True) as made:
        yield made
