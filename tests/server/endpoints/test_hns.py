"""Names over HTTP: endpoints 11 and 12 of the contract, as docs/wire.md 8 describe them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from skymount.server.storage import zone_file
from skymount.server.storage.zone_file import ZONE_FILE
from skymount.wire.hns import RegistryRecord, SkylinkRecord, parse_resolution
from skymount.wire.http import requests
from skymount.wire.key_pair import SigningKeyPair
from skymount.wire.registry_entry import Entry, hash_data_key
from skymount.wire.skylink import Skylink
from tests.portal_process import PortalProcess
from tests.server.http_client import Client, message_of

SITE = {"index.html": b"<h1>hi</h1>", "docs/index.html": b"manual", "docs/a b.txt": b"text"}
KEYS = SigningKeyPair.from_seed("names")


@dataclass(frozen=True)
class Domain:
    """A domain of its own for each test, in the zone of the shared portal."""

    name: str
    data: Path

    def leads_to(self, value: str) -> None:
        zone_file.change(self.data, lambda found: found.with_record(self.name, value))

    def has_line(self, value: str) -> None:
        """Give it a line, as an editor would write it."""
        with (self.data / ZONE_FILE).open("a") as file:
            file.write(f"{self.name} {value}\n")


@pytest.fixture
def domain(portal: PortalProcess) -> Domain:
    """A domain without a record."""
    return Domain(f"d{uuid4().hex}.example", portal.data)


@pytest.fixture(scope="module")
def site(client: Client) -> str:
    """The skylink of a directory with pages."""
    return client.upload(SITE)


@pytest.fixture(scope="module")
def file(client: Client) -> str:
    """The skylink of a single file."""
    return client.upload_file("file.txt", b"0123456789", "text/x-own")


def text_of(answer: httpx.Response) -> str:
    """Return the text of an error about names, whose form is checked."""
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    return answer.text


# hnsres


@pytest.mark.parametrize("form", ["{}", "svc://{}", "sia://{}", "svc://{}/docs/index.html"])
def test_the_record_is_told_as_it_stands(
    client: Client, domain: Domain, site: str, form: str
) -> None:
    domain.leads_to(form.format(site))
    answer = client.get(f"/hnsres/{domain.name}")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    assert answer.json() == {"skylink": form.format(site)}
    record = parse_resolution(answer.content)
    assert isinstance(record, SkylinkRecord)
    assert record.skylink == Skylink(site)


def test_a_registry_record_is_told(client: Client, domain: Domain) -> None:
    record = RegistryRecord(KEYS.public_key, hash_data_key("x"))
    domain.leads_to(record.text("skyns"))
    answer = client.get(f"/hnsres/{domain.name}")
    assert answer.json() == {
        "registry": {"publickey": f"ed25519:{KEYS.public_hex}", "datakey": record.tweak.hex()}
    }
    assert parse_resolution(answer.content) == record


def test_head_has_the_headers_of_get(client: Client, domain: Domain, file: str) -> None:
    domain.leads_to(file)
    for path in (f"/hnsres/{domain.name}", f"/hns/{domain.name}"):
        got, head = client.get(path), client.head(path)
        assert head.content == b""
        assert head.status_code == got.status_code == 200
        drop = {"date"}
        assert {k: v for k, v in head.headers.items() if k not in drop} == {
            k: v for k, v in got.headers.items() if k not in drop
        }


def test_the_requests_of_the_sdk(client: Client, domain: Domain, site: str) -> None:
    domain.leads_to(site)
    for request in (
        requests.hns_resolution(domain.name),
        requests.hns_download(domain.name, "docs/a b.txt"),
        requests.hns_download(domain.name, "docs/a b.txt", attachment=True),
    ):
        assert client.request(request.method, request.target).status_code == 200


@pytest.mark.parametrize("endpoint", ["hns", "hnsres"])
def test_no_record(client: Client, domain: Domain, endpoint: str) -> None:
    answer = client.get(f"/{endpoint}/{domain.name}")
    assert answer.status_code == 404
    assert text_of(answer) == f"No records found for {domain.name}"


@pytest.mark.parametrize("endpoint", ["hns", "hnsres"])
def test_a_record_that_fits_nothing(
    client: Client, domain: Domain, site: str, endpoint: str
) -> None:
    """It is an error of that domain; others go on."""
    domain.has_line("something else")
    answer = client.get(f"/{endpoint}/{domain.name}")
    assert answer.status_code == 500
    assert text_of(answer).startswith("Handshake error: ")
    domain.has_line(site)
    assert client.get(f"/{endpoint}/{domain.name}/").status_code == 200


@pytest.mark.parametrize("endpoint", ["hns", "hnsres"])
@pytest.mark.parametrize("bad", ["a..b", "%00", "%ff", "a%2Fb", "-a", "x" * 64, "a%20b"])
def test_what_is_no_domain(client: Client, endpoint: str, bad: str) -> None:
    """The path is sent as it is: no client is to tidy it up."""
    url = httpx.URL(str(client.base_url)).copy_with(raw_path=f"/{endpoint}/{bad}".encode())
    answer = client.get(url)
    assert answer.status_code == 400
    assert text_of(answer).startswith("Handshake error: ")


def test_domains_in_every_spelling(client: Client, portal: PortalProcess, file: str) -> None:
    """Case, a dot at the end, percent-encoding and punycode make no difference."""
    zone_file.change(portal.data, lambda found: found.with_record("xn--bcher-kva.example", file))
    for name in (
        "xn--bcher-kva.example",
        "XN--Bcher-KVA.Example.",
        "b%C3%BCcher.example",
        "B%C3%9CCHER.example",
        "bücher.example",
    ):
        assert client.get(f"/hnsres/{name}").json() == {"skylink": file}
        assert client.get(f"/hns/{name}").content == b"0123456789"


def test_a_changed_record_counts_at_once(
    client: Client, domain: Domain, site: str, file: str
) -> None:
    for value in (site, file, f"svc://{site}"):
        domain.leads_to(value)
        assert client.get(f"/hnsres/{domain.name}").json() == {"skylink": value}
    zone_file.change(domain.data, lambda found: found.without(domain.name))
    assert client.get(f"/hnsres/{domain.name}").status_code == 404


def test_other_methods(client: Client, domain: Domain) -> None:
    for path in (f"/hns/{domain.name}", f"/hnsres/{domain.name}", f"/hns/{domain.name}/a"):
        answer = client.post(path)
        assert answer.status_code == 405
        assert message_of(answer)


# hns


def test_it_answers_as_the_skylink_does(client: Client, domain: Domain, file: str) -> None:
    """No redirect: the same headers and bytes."""
    domain.leads_to(file)
    direct, named = client.get(f"/{file}"), client.get(f"/hns/{domain.name}")
    assert (named.status_code, named.content) == (200, b"0123456789")
    for answer in (direct, named):
        del answer.headers["date"]
    assert direct.headers.pop("cache-control") == "public, max-age=31536000, immutable"
    assert named.headers.pop("cache-control") == "no-cache"  # the name may lead elsewhere
    assert named.headers == direct.headers
    assert named.headers["svc-skylink"] == file


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/", b"<h1>hi</h1>"),
        ("/index.html", b"<h1>hi</h1>"),
        ("/docs/", b"manual"),
        ("/docs/a%20b.txt", b"text"),
        ("/docs/a+b.txt", b"text"),
    ],
)
def test_paths(client: Client, domain: Domain, site: str, path: str, content: bytes) -> None:
    domain.leads_to(site)
    answer = client.get(f"/hns/{domain.name}{path}")
    assert (answer.status_code, answer.content) == (200, content)


def test_a_path_that_is_not_there(client: Client, domain: Domain, site: str) -> None:
    domain.leads_to(site)
    answer = client.get(f"/hns/{domain.name}/absent")
    assert answer.status_code == 404
    assert message_of(answer) == "failed to download contents for path: /absent"


def test_content_that_is_not_here(client: Client, domain: Domain) -> None:
    domain.leads_to("AABsdvY0MzM9fsdHVWdqiw1Rj4Kp9KAZwYNbHO-ksMFHkg")
    answer = client.get(f"/hns/{domain.name}")
    assert answer.status_code == 404
    assert message_of(answer)


@pytest.mark.parametrize("path", ["", "/docs"])
def test_a_page_wants_a_slash(client: Client, domain: Domain, site: str, path: str) -> None:
    """The client is sent to the domain with a slash, not to the skylink."""
    domain.leads_to(site)
    url = f"/hns/{domain.name}{path}"
    answer = client.get(f"{url}?a=b")
    assert answer.status_code == 308
    assert httpx.URL(f"http://x{url}").join(answer.headers["location"]).raw_path == (
        f"{url}/?a=b".encode()
    )
    assert client.get(url, follow_redirects=True).status_code == 200
    assert client.head(f"{url}?a=b").headers["location"] == answer.headers["location"]


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_path_in_the_record(client: Client, domain: Domain, site: str, slash: str) -> None:
    """It counts for the domain itself, and not below (docs/wire.md 8)."""
    domain.leads_to(f"svc://{site}/docs/a%20b.txt")
    assert client.get(f"/hns/{domain.name}{slash}").content == b"text"
    assert client.get(f"/hns/{domain.name}/index.html").content == b"<h1>hi</h1>"
    assert client.get(f"/hns/{domain.name}/a%20b.txt").status_code == 404


def test_a_directory_in_the_record(client: Client, domain: Domain, site: str) -> None:
    domain.leads_to(f"svc://{site}/docs")
    answer = client.get(f"/hns/{domain.name}", follow_redirects=True)
    assert answer.content == b"manual"
    assert answer.url.path == f"/hns/{domain.name}/"


@pytest.mark.parametrize(
    ("query", "headers", "status", "content"),
    [
        ("", {"Range": "bytes=2-4"}, 206, b"234"),
        ("?start=2&end=4", {}, 206, b"234"),
        ("", {"Range": "bytes=90-"}, 416, None),
        ("?attachment=true", {}, 200, b"0123456789"),
        ("?format=concat", {}, 200, b"0123456789"),
        ("?format=rar", {}, 400, None),
    ],
)
def test_options_of_downloads(
    client: Client,
    domain: Domain,
    file: str,
    query: str,
    headers: dict[str, str],
    status: int,
    content: bytes | None,
) -> None:
    domain.leads_to(file)
    answer = client.get(f"/hns/{domain.name}{query}", headers=headers)
    assert answer.status_code == status
    assert content is None or answer.content == content
    is_attachment = answer.headers.get("content-disposition", "").startswith("attachment")
    assert is_attachment == ("attachment" in query)


def test_an_unchanged_download(client: Client, domain: Domain, file: str, site: str) -> None:
    """The tag is that of the content: it changes when the name leads elsewhere."""
    domain.leads_to(file)
    tag = client.get(f"/hns/{domain.name}").headers["etag"]
    again = client.get(f"/hns/{domain.name}", headers={"If-None-Match": tag})
    assert again.status_code == 304
    domain.leads_to(f"svc://{site}/index.html")
    changed = client.get(f"/hns/{domain.name}", headers={"If-None-Match": tag})
    assert changed.status_code == 200


# Registry records


def as_text(skylink: str) -> bytes:
    """Return the data of an entry as most writers have it: 46 characters."""
    return skylink.encode()


def as_bytes(skylink: str) -> bytes:
    """Return the data of an entry as 34 bytes."""
    return bytes(Skylink(skylink))


@pytest.mark.parametrize("written", [as_text, as_bytes])
def test_a_name_that_leads_through_the_registry(
    client: Client, domain: Domain, site: str, file: str, written: Callable[[str], bytes]
) -> None:
    """It follows the entry: nothing about the name has to change."""
    tweak = hash_data_key(domain.name)
    domain.leads_to(RegistryRecord(KEYS.public_key, tweak).text("svcns"))
    assert client.get(f"/hns/{domain.name}/").status_code == 404
    for revision, (skylink, content) in enumerate(((file, b"0123456789"), (site, b"<h1>hi</h1>"))):
        entry = Entry(tweak, written(skylink), revision).sign(KEYS.private_key)
        answer = client.post("/svc/registry", content=entry.encode_update())
        assert answer.status_code == 204, answer.text
        found = client.get(f"/hns/{domain.name}/")
        assert (found.status_code, found.content) == (200, content)
        assert found.headers["skynet-skylink"] == skylink
        assert found.headers["skynet-requested-skylink"] == str(entry.link)
        assert found.headers["skynet-proof"]
    assert client.get(f"/hns/{domain.name}/docs/a%20b.txt").content == b"text"


def test_a_name_of_a_v2_skylink(client: Client, domain: Domain, file: str) -> None:
    entry = Entry(hash_data_key(domain.name), as_bytes(file), 0).sign(KEYS.private_key)
    client.post("/svc/registry", content=entry.encode_update())
    domain.leads_to(f"svc://{entry.link}")
    assert client.get(f"/hnsres/{domain.name}").json() == {"skylink": f"svc://{entry.link}"}
    assert client.get(f"/hns/{domain.name}").content == b"0123456789"


def test_a_zone_that_cannot_be_read(client: Client, domain: Domain, file: str) -> None:
    """Names are an error as long as that lasts; all else works, and then names again.

    The answer does not say where on this machine the file is.
    """
    domain.leads_to(file)
    path = domain.data / ZONE_FILE
    kept = path.read_bytes()
    path.write_bytes(b"#" * (zone_file.SIZE_LIMIT + 1))
    try:
        for endpoint in ("hns", "hnsres"):
            answer = client.get(f"/{endpoint}/{domain.name}")
            assert answer.status_code == 500
            assert text_of(answer).startswith("Handshake error: ")
            assert str(domain.data) not in text_of(answer)
        assert client.get(f"/{file}").status_code == 200
    finally:
        path.write_bytes(kept)
    assert client.get(f"/hns/{domain.name}").status_code == 200
