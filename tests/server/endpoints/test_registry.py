"""Registry entries and names over HTTP."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from skymount.server.storage import zone_file
from skymount.server.storage.zone_file import ZONE_FILE
from skymount.wire.hns import RegistryRecord
from skymount.wire.registry_entry import MAX_REVISION, UPDATE_LIMIT, SignedEntry, hash_data_key
from tests.portal_process import PortalProcess, portal_process
from tests.server.http_client import Client, assert_same_headers, message_of
from tests.server.registry_entries import OWNER, get, link_of, post, put, question, signed


@pytest.mark.parametrize(("prefix", "kind"), [("svc", 1), ("skynet", 2)])
def test_an_entry_is_stored_and_read(client: Client, prefix: str, kind: int) -> None:
    """204 and nothing; then the members of later portals, in their order."""
    entry = signed(prefix, b"\0\xff" * 10, MAX_REVISION, kind)
    answer = client.post(f"/{prefix}/registry", content=entry.encode_update())
    assert (answer.status_code, answer.content) == (204, b"")
    assert "content-length" not in answer.headers
    answer = client.get(f"/{prefix}/registry", params=question(prefix))
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    assert answer.content == entry.encode_answer()
    assert list(answer.json())[:3] == ["data", "revision", "signature"]
    assert_same_headers(client.head(f"/{prefix}/registry", params=question(prefix)), answer)


def test_what_does_not_replace(client: Client) -> None:
    """400 with the text that clients look for; of one revision the lower hash stays."""
    low, high = sorted(
        (signed("work", data, 4) for data in (b"x", b"y")), key=lambda entry: entry.entry.work
    )
    put(client, high)
    put(client, low)
    for new, message in (
        (signed("work", b"z", 3), "provided revision number is invalid"),
        (low, "provided revision number is already registered"),
        (high, "provided revision number is already registered: "),
    ):
        answer = post(client, new)
        assert answer.status_code == 400
        assert message_of(answer).startswith(f"Unable to update the registry: {message}")
    assert get(client, "work") == low


_STORED = signed("bad", b"stored", 5)
_BAD_FORM = "Failed to decode request: "
_BAD_SIGNATURE = "Unable to update the registry: invalid signature"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (None, _BAD_FORM),
        ({"revision": -1}, _BAD_FORM),
        ({"data": [0] * 114, "signature": [0] * 64}, "Registry data is too big: 114 > 113"),
        ({"signature": [0] * 64}, _BAD_SIGNATURE),
        ({"revision": 6}, _BAD_SIGNATURE),
        ({"type": 2, "data": [0] * 20}, _BAD_SIGNATURE),
        ({"type": 2}, "Unable to update the registry: registry entry data is malformed"),
    ],
)
def test_bad_updates(client: Client, changes: dict[str, Any] | None, message: str) -> None:
    """400 names the first of: form, size, signature. Who cannot sign learns of no revision."""
    if get(client, "bad") is None:
        put(client, _STORED)
    update = json.loads(signed("bad").encode_update()) | changes if changes else []
    answer = client.post("/svc/registry", json=update)
    assert answer.status_code == 400
    assert message_of(answer).startswith(message)
    assert get(client, "bad") == _STORED


def test_a_body_over_the_limit(client: Client) -> None:
    """413, with its length announced or not."""
    body = b" " * (UPDATE_LIMIT + 1)
    for content in (body, iter([body])):
        answer = client.post("/svc/registry", content=content)
        assert answer.status_code == 413
        assert "over the limit of 16 KiB" in message_of(answer)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"publickey": "", "datakey": "", "timeout": "0"}, "Unable to parse publickey param: "),
        ({"datakey": ""}, "Unable to decode dataKey param: "),
        ({"timeout": "0"}, "Invalid 'timeout' parameter, needs to be between 1s and 300s"),
        ({"timeout": "301"}, "Invalid 'timeout' parameter, needs to be between 1s and 300s"),
        ({"timeout": "soon"}, "unable to parse 'timeout' parameter: "),
    ],
)
def test_bad_questions(client: Client, changes: dict[str, str], message: str) -> None:
    """400 names the parameter."""
    answer = client.get("/svc/registry", params={**question("any"), **changes})
    assert answer.status_code == 400
    assert message_of(answer).startswith(message)


@pytest.mark.parametrize("timeout", ["", "1", "300"])
def test_an_absent_entry(client: Client, timeout: str) -> None:
    """404 at once, however long the client would wait."""
    answer = client.get("/svc/registry", params=question("absent", timeout=timeout))
    assert answer.status_code == 404
    assert message_of(answer) == "registry entry not found"


def test_parameters_in_other_places(client: Client) -> None:
    """A key without its algorithm, and a form in the body."""
    put(client, signed("places"))
    params = question("places") | {"publickey": OWNER.public_hex}
    assert client.get("/svc/registry", params=params).status_code == 200
    answer = client.request("GET", "/svc/registry", data=question("places"))
    assert answer.json()["data"] == b"data".hex()


def test_what_was_answered_survives_kill_9(tmp_path: Path) -> None:
    """Killed while clients write: every answered update is there, or the one after it."""
    answered: dict[str, SignedEntry] = {}

    def write(portal: PortalProcess, client: Client, number: int) -> None:
        for revision in range(1000):
            key = f"{number} {revision // 2}"
            entry = signed(key, b"%d" % revision, revision)
            try:
                put(client, entry)
            except httpx.TransportError:
                return
            answered[key] = entry
            if len(answered) >= 60:
                portal.kill()

    with (
        portal_process(tmp_path) as portal,
        Client(base_url=portal.url, timeout=60) as client,
        ThreadPoolExecutor(8) as threads,
    ):
        list(threads.map(partial(write, portal, client), range(8)))
    assert len(answered) >= 60
    with portal_process(tmp_path) as portal, Client(base_url=portal.url) as client:
        for key, entry in answered.items():
            found = get(client, key)
            assert found is not None
            assert found.entry.revision in (entry.entry.revision, entry.entry.revision + 1)


# --- names

SITE = {"index.html": b"<h1>hi</h1>", "docs/index.html": b"manual", "docs/a b.txt": b"text"}
PAGE = SITE["index.html"]


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


def test_the_record_is_told_as_it_stands(
    client: Client, domain: Domain, site: str, file: str
) -> None:
    """A change counts at once."""
    record = RegistryRecord(OWNER.public_key, hash_data_key("x"))
    entry = {"publickey": f"ed25519:{OWNER.public_hex}", "datakey": record.tweak.hex()}
    values = [site, f"svc://{file}", f"sia://{site}/docs/index.html", f"svc://{link_of('x')}"]
    told = [(value, {"skylink": value}) for value in values]
    for value, expected in [*told, (record.text("skyns"), {"registry": entry})]:
        domain.leads_to(value)
        answer = client.get(f"/hnsres/{domain.name}")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json; charset=utf-8"
        assert answer.json() == expected
    assert_same_headers(client.head(f"/hnsres/{domain.name}"), answer)
    zone_file.change(domain.data, lambda found: found.without(domain.name))
    assert client.get(f"/hnsres/{domain.name}").status_code == 404


@pytest.mark.parametrize("endpoint", ["hns", "hnsres"])
def test_no_record_and_one_that_fits_nothing(
    client: Client, domain: Domain, site: str, endpoint: str
) -> None:
    """It is an error of that domain; others go on."""
    answer = client.get(f"/{endpoint}/{domain.name}")
    assert answer.status_code == 404
    assert text_of(answer) == f"No records found for {domain.name}"
    domain.has_line("something else")
    answer = client.get(f"/{endpoint}/{domain.name}")
    assert answer.status_code == 500
    assert text_of(answer).startswith("Handshake error: ")
    domain.has_line(site)
    assert client.get(f"/{endpoint}/{domain.name}/").status_code == 200


@pytest.mark.parametrize("endpoint", ["hns", "hnsres"])
@pytest.mark.parametrize("bad", ["a..b", "%00", "%ff", "a%2Fb"])
def test_what_is_no_domain(client: Client, endpoint: str, bad: str) -> None:
    """The path is sent as it is: no client is to tidy it up."""
    url = httpx.URL(str(client.base_url)).copy_with(raw_path=f"/{endpoint}/{bad}".encode())
    answer = client.get(url)
    assert answer.status_code == 400
    assert text_of(answer).startswith("Handshake error: ")


def test_domains_in_every_spelling(client: Client, portal: PortalProcess, file: str) -> None:
    """Case, a dot at the end, percent-encoding and punycode make no difference."""
    zone_file.change(portal.data, lambda found: found.with_record("xn--bcher-kva.example", file))
    for name in ("XN--Bcher-KVA.Example.", "B%C3%9CCHER.example"):
        assert client.get(f"/hnsres/{name}").json() == {"skylink": file}
        assert client.get(f"/hns/{name}").content == b"0123456789"


def test_it_answers_as_the_skylink_does(client: Client, domain: Domain, file: str) -> None:
    """No redirect: the same headers and bytes, and the same options of downloads."""
    domain.leads_to(file)
    url = f"/hns/{domain.name}"
    direct, named = client.get(f"/{file}"), client.get(url)
    assert_same_headers(client.head(url), named)
    assert (named.status_code, named.content) == (200, b"0123456789")
    for answer in (direct, named):
        del answer.headers["date"]
    assert direct.headers.pop("cache-control") == "public, max-age=31536000, immutable"
    assert named.headers.pop("cache-control") == "no-cache"  # the name may lead elsewhere
    assert named.headers == direct.headers
    assert named.headers["svc-skylink"] == file
    tag = {"If-None-Match": named.headers["etag"]}
    assert client.get(url, headers=tag).status_code == 304
    assert client.get(url, headers={"Range": "bytes=2-4"}).content == b"234"
    attached = client.get(f"{url}?attachment=true")
    assert attached.headers["content-disposition"].startswith("attachment")


@pytest.mark.parametrize(
    ("record", "path", "content"),
    [
        ("", "/", PAGE),
        ("", "/docs/", b"manual"),
        ("", "/docs/a%20b.txt", b"text"),
        ("", "/docs/a+b.txt", b"text"),
        ("/docs/a%20b.txt", "", b"text"),
        ("/docs/a%20b.txt", "/", b"text"),
        ("/docs/a%20b.txt", "/index.html", PAGE),
        ("/docs/a%20b.txt", "/a%20b.txt", None),
        ("", "/absent", None),
    ],
)
def test_paths(
    client: Client, domain: Domain, site: str, record: str, path: str, content: bytes | None
) -> None:
    """That of the record counts for the domain itself, and not below (docs/wire.md 8)."""
    domain.leads_to(f"svc://{site}{record}")
    answer = client.get(f"/hns/{domain.name}{path}")
    if content is None:
        assert answer.status_code == 404
        assert message_of(answer) == f"failed to download contents for path: {path}".replace(
            "%20", " "
        )
    else:
        assert (answer.status_code, answer.content) == (200, content)


@pytest.mark.parametrize(
    ("record", "path", "content"),
    [("", "", PAGE), ("", "/docs", b"manual"), ("/docs", "", b"manual")],
)
def test_a_page_wants_a_slash(
    client: Client, domain: Domain, site: str, record: str, path: str, content: bytes
) -> None:
    """The client is sent to the domain with a slash, not to the skylink."""
    domain.leads_to(f"svc://{site}{record}")
    url = f"/hns/{domain.name}{path}"
    answer = client.get(f"{url}?a=b")
    assert answer.status_code == 308
    found = client.get(f"{url}?a=b", follow_redirects=True)
    assert (found.content, found.url.raw_path) == (content, f"{url}/?a=b".encode())
    assert_same_headers(client.head(f"{url}?a=b"), answer)


def test_a_name_that_leads_through_the_registry(
    client: Client, domain: Domain, site: str, file: str
) -> None:
    """It follows the entry, by its key or its skylink: nothing about the name has to change."""
    key, url = domain.name, f"/hns/{domain.name}/"
    domain.leads_to(RegistryRecord(OWNER.public_key, hash_data_key(key)).text("svcns"))
    assert client.get(url).status_code == 404
    for revision, (skylink, content) in enumerate(((file, b"0123456789"), (site, PAGE))):
        put(client, signed(key, skylink.encode(), revision))
        found = client.get(url)
        assert (found.status_code, found.content) == (200, content)
        assert found.headers["skynet-skylink"] == skylink
        assert found.headers["skynet-requested-skylink"] == str(link_of(key))
        assert found.headers["skynet-proof"]
    domain.leads_to(f"svc://{link_of(key)}")
    assert client.get(f"{url}docs/a%20b.txt").content == b"text"


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
