"""Names at a portal: what a domain resolves to, and the URLs of names with a port."""

from collections.abc import AsyncIterator

import pytest

from skymount.errors import (
    AccessDeniedError,
    BadContentError,
    MalformedError,
    NotFoundError,
    PortalError,
    UnavailableError,
    WrongTypeError,
)
from skymount.portal import PortalClient
from skymount.server.storage import zone_file
from skymount.wire.hns import RegistryRecord, SkylinkRecord
from skymount.wire.registry_entry import entry_link
from tests.fakes.portal import FakePortal, Reply, endless_body, running
from tests.fakes.portal import error as refusal
from tests.portal_process import PortalProcess

LINK = "AAA9s0sR9i8NGy19EadRGcpUt0HdvDMHJilKGmW545-k1g"
KEY, TWEAK = "ab" * 32, "cd" * 32
RECORDS = {
    "plain": f"svc://{LINK}",
    "sub.with-path": f"svc://{LINK}/a%20b",
    "entry": f"svcns://ed25519%3A{KEY}/{TWEAK}",
}


@pytest.fixture
async def client(portal: PortalProcess) -> AsyncIterator[PortalClient]:
    """A client of a portal that knows some names."""
    for domain, value in RECORDS.items():
        zone_file.change(portal.data, lambda found, d=domain, v=value: found.with_record(d, v))
    async with PortalClient(portal.url) as connected:
        yield connected


async def test_resolve_a_skylink(client: PortalClient):
    """The record comes as the portal has it, and as a link."""
    found = await client.resolve_hns("plain")
    assert found.data == {"skylink": f"svc://{LINK}"}
    assert found.skylink == f"svc://{LINK}"
    assert isinstance(found.record, SkylinkRecord)


async def test_resolve_a_skylink_with_a_path(client: PortalClient):
    """A path in the record stays in the link."""
    found = await client.resolve_hns("sub.with-path")
    assert found.skylink == f"svc://{LINK}/a%20b"


async def test_resolve_a_registry_entry(client: PortalClient):
    """A registry record gives the link of its entry."""
    found = await client.resolve_hns("entry")
    expected = entry_link(bytes.fromhex(KEY), bytes.fromhex(TWEAK))
    assert found.data == {"registry": {"publickey": f"ed25519:{KEY}", "datakey": TWEAK}}
    assert found.skylink == f"svc://{expected}"
    assert found.record == RegistryRecord(bytes.fromhex(KEY), bytes.fromhex(TWEAK))


@pytest.mark.parametrize("domain", ["hns://Plain/", "PLAIN.", " plain "])
async def test_domains_are_found_however_they_are_written(client: PortalClient, domain: str):
    """A domain is looked up in its canonical form."""
    assert (await client.resolve_hns(domain)).skylink == f"svc://{LINK}"


async def test_unknown_domain(client: PortalClient):
    """C5: An unknown domain is a NotFoundError that says where it was looked for."""
    with pytest.raises(NotFoundError) as caught:
        await client.resolve_hns("nobody.has-this")
    error = caught.value
    assert (error.status, error.method) == (404, "GET")
    assert error.url == f"{client.options.url}/hnsres/nobody.has-this"


@pytest.mark.parametrize(
    ("reply", "kind", "status"),
    [
        (refusal(500, "Handshake error: none fits"), UnavailableError, 500),
        (Reply(500, (), b"<html>oops</html>"), UnavailableError, 500),
        (Reply(404, (), b"No records found for x"), NotFoundError, 404),
        (refusal(401, "no"), AccessDeniedError, 401),
        (Reply(200, (), b"not json"), BadContentError, 200),
        (Reply(200, (), b"{}"), BadContentError, 200),
        (Reply(200, (), b"[]"), BadContentError, 200),
        (Reply(200, (), b'{"skylink":5}'), BadContentError, 200),
        (Reply(200, (), b'{"skylink":"svc://nonsense"}'), BadContentError, 200),
        (Reply(200, (), b'{"registry":{"publickey":"x","datakey":"y"}}'), BadContentError, 200),
        (Reply(200, (), b"x" * 100_000), BadContentError, None),
        (endless_body(None, Reply()), BadContentError, None),  # type: ignore[arg-type]
    ],
    ids=range(12),
)
async def test_bad_answers(reply: Reply, kind: type[PortalError], status: int | None):
    """C5: Whatever else a portal answers is an error with status, method and address."""
    async with running(FakePortal()) as fake, PortalClient(fake.url, retries=0) as client:
        fake.fault(lambda *_: reply, "/hnsres/")
        with pytest.raises(kind) as caught:
            await client.resolve_hns("x")
        error = caught.value
        assert type(error) is kind
        assert error.status == status
        assert (error.method, error.url) == ("GET", f"{fake.url}/hnsres/x")


@pytest.mark.parametrize("domain", ["", ".", "a..b", "a/b", "a b", "a?b", "x" * 300, "\ud800"])
async def test_what_is_no_domain(domain: str):
    """C3: What cannot be a domain is refused before any request."""
    async with running(FakePortal()) as fake, PortalClient(fake.url) as client:
        with pytest.raises(MalformedError):
            await client.resolve_hns(domain)
        with pytest.raises(MalformedError):
            client.get_hns_url(domain)
        with pytest.raises(MalformedError):
            client.get_hnsres_url(domain)
        with pytest.raises(WrongTypeError):
            await client.resolve_hns(domain.encode("utf-8", "replace"))  # type: ignore[arg-type]
        assert fake.accepted == 0


def test_urls_with_a_port():
    """In the form with a subdomain the port stays."""
    outside = PortalClient("https://portal.example:8443")
    assert outside.get_hns_url("a", path="x", subdomain=True) == (
        "https://a.hns.portal.example:8443/x"
    )
    assert outside.get_hns_url("a", subdomain=True) == "https://a.hns.portal.example:8443/"
