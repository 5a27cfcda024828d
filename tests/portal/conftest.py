"""A real portal for the tests of the client library, and both sides of TLS."""

import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio.testing
import trustme

from skymount.portal.ledger.ledger import Ledger
from tests.portal_process import PortalProcess, portal_process


@pytest.fixture
def clock() -> trio.testing.MockClock:
    """Return a clock that jumps when nothing happens, also at the sockets."""
    return trio.testing.MockClock(autojump_threshold=0.01)


@pytest.fixture(scope="session")
def portal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PortalProcess]:
    """A portal that all tests share."""
    with portal_process(tmp_path_factory.mktemp("portal") / "data") as running:
        yield running


@dataclass(frozen=True, slots=True)
class Contexts:
    """Both sides of TLS."""

    client: ssl.SSLContext
    server: ssl.SSLContext
    authority: bytes
    """The certificate of the authority (PEM)."""

    async def trusted(self) -> ssl.SSLContext:
        return self.client


@pytest.fixture(scope="session")
def contexts() -> Contexts:
    """A certificate, and an authority for it that only the client trusts."""
    authority = trustme.CA()
    client = ssl.create_default_context()
    authority.configure_trust(client)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1", "localhost", "portal.example").configure_cert(server)
    return Contexts(client, server, authority.cert_pem.bytes())


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger.open(tmp_path / "ledger.sqlite3")
    yield opened
    opened.close()
