"""Registry entries and names over HTTP."""

import base64
import json
import resource
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skymount.server.endpoints import parse_entry_key
from skymount.server.http_error import HttpError
from skymount.server.storage import zone_file
from skymount.server.storage.entry_store import ENTRIES_FILE
from skymount.server.storage.zone_file import ZONE_FILE
from skymount.wire.hns import RegistryRecord, SkylinkRecord, parse_resolution
from skymount.wire.http import requests
from skymount.wire.key_pair import SigningKeyPair
from skymount.wire.registry_entry import (
    MAX_REVISION,
    UPDATE_LIMIT,
    Entry,
    SignedEntry,
    hash_data_key,
)
from skymount.wire.skylink import Skylink
from tests.portal_process import PortalProcess, portal_process
from tests.server.http_client import Client, message_of
from tests.server.registry_entries import OWNER, get, post, put, question, signed

_CLIENTS = 50


def _update(key: str, **changes: object) -> dict[str, Any]:
    """Return the contract's JSON for an entry, with members changed."""
    entry = signed(key)
    return {
        "publickey": {"algorithm": "ed25519", "key": list(OWNER.public_key)},
        "datakey": entry.entry.tweak.hex(),
        "revision": 0,
        "data": list(entry.entry.data),
        "signature": list(entry.signature),
        **changes,
    }


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.parametrize("prefix", ["svc", "skynet"])
def test_an_entry_is_stored_and_read(client: Client, prefix: str) -> None:
    """204 and nothing; then the members of later portals, in their order."""
    entry = signed(prefix, b"\0\xff", MAX_REVISION)
    answer = client.post(f"/{prefix}/registry", content=entry.encode_update())
    assert (answer.status_code, answer.content) == (204, b"")
    assert "content-length" not in answer.headers
    answer = client.get(f"/{prefix}/registry", params=question(prefix))
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    assert answer.json() == {
        "data": "00ff",
        "revision": 18446744073709551615,
        "signature": entry.signature.hex(),
        "datakey": hash_data_key(prefix).hex(),
        "publickey": {"algorithm": "ed25519", "key": _base64(OWNER.public_key)},
        "type": 1,
    }
    assert list(answer.json())[:3] == ["data", "revision", "signature"]
    head = client.head(f"/{prefix}/registry", params=question(prefix))
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == answer.headers["content-length"]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("arrays", {}),
        ("texts", {"publickey": f"ed25519:{OWNER.public_hex}", "data": _base64(b"data")}),
        ("key", {"publickey": {"algorithm": "ed25519", "key": _base64(OWNER.public_key)}}),
        ("signature", {"signature": _base64(signed("signature").signature)}),
        ("type", {"type": 1}),
        ("unknown", {"unknown": [{}], "data": _base64(b"data")}),
    ],
)
def test_every_form_of_an_update(client: Client, name: str, changes: dict[str, object]) -> None:
    """Arrays of numbers and base64, a key as text, members nobody knows."""
    answer = client.post("/svc/registry", json=_update(name, **changes))
    assert (answer.status_code, answer.content) == (204, b"")
    assert get(client, name) == signed(name)


@pytest.mark.parametrize("data", ["absent", None, "", []])
def test_missing_data_is_empty(client: Client, data: object) -> None:
    """Absent, null or empty in either form."""
    key = f"empty {data}"
    update = _update(key, data=data, signature=list(signed(key, b"").signature))
    if data == "absent":
        del update["data"]
    assert client.post("/svc/registry", json=update).status_code == 204
    assert client.get("/svc/registry", params=question(key)).json()["data"] == ""


def test_an_entry_of_the_second_type(client: Client) -> None:
    """It is signed differently, and the answer names its type."""
    entry = signed("second", b"h" * 20 + b"data", 3, kind=2)
    put(client, entry)
    assert get(client, "second") == entry
    assert client.get("/svc/registry", params=question("second")).json()["type"] == 2


def test_a_deleted_entry_is_still_answered(client: Client) -> None:
    """What its data means is the client's matter."""
    put(client, signed("deleted", b"x", 0))
    put(client, signed("deleted", bytes(34), 1))
    found = get(client, "deleted")
    assert found is not None
    assert found.entry.is_deleted


@pytest.mark.parametrize(
    ("name", "new", "message"),
    [
        ("lower", signed("lower", b"a", 6), "provided revision number is invalid"),
        ("same", signed("same", b"a", 7), "provided revision number is already registered"),
    ],
)
def test_what_does_not_replace(client: Client, name: str, new: SignedEntry, message: str) -> None:
    """400 with the text that clients look for; the stored entry stays."""
    put(client, signed(name, b"a", 7))
    answer = post(client, new)
    assert answer.status_code == 400
    assert message_of(answer) == f"Unable to update the registry: {message}"
    assert get(client, name) == signed(name, b"a", 7)


def test_the_same_revision_with_other_data(client: Client) -> None:
    """The one with the lower hash wins, in either order."""
    both = [signed("work", b"x", 4), signed("work", b"y", 4)]
    low, high = sorted(both, key=lambda entry: entry.entry.work)
    put(client, high)
    put(client, low)
    answer = post(client, high)
    assert answer.status_code == 400
    assert "provided revision number is already registered" in message_of(answer)
    assert get(client, "work") == low


_BAD_SIGNATURE = "Unable to update the registry: invalid signature"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "Failed to decode request: "),
        (b"{}", "Failed to decode request: "),
        (b"[]", "Failed to decode request: "),
        (b"{" * 9000, "Failed to decode request: "),
        (_update("bad", revision=-1), "Failed to decode request: "),
        (_update("bad", revision=1 << 64), "Failed to decode request: "),
        (_update("bad", revision="1"), "Failed to decode request: "),
        (_update("bad", revision=1.5), "Failed to decode request: "),
        (_update("bad", datakey="zz"), "Failed to decode request: "),
        (_update("bad", datakey="00" * 31), "Failed to decode request: "),
        (_update("bad", data=[256]), "Failed to decode request: "),
        (_update("bad", data="?"), "Failed to decode request: "),
        (_update("bad", type=3), "Failed to decode request: "),
        (_update("bad", publickey="rsa:" + "00" * 32), "Failed to decode request: "),
        (
            _update("bad", publickey={"algorithm": "ed25519", "key": [1]}),
            "Failed to decode request: ",
        ),
        (_update("bad", signature=[1]), "Failed to decode request: "),
        (_update("bad", data=[0] * 114), "Registry data is too big: 114 > 113"),
        (
            _update("bad", data=[0] * 114, signature=[0] * 64, revision=5),
            "Registry data is too big: 114 > 113",
        ),
        (_update("bad", signature=[0] * 64), _BAD_SIGNATURE),
        (_update("bad", revision=1), _BAD_SIGNATURE),
        (_update("bad", data=list(b"other")), _BAD_SIGNATURE),
        (_update("bad", datakey="00" * 32), _BAD_SIGNATURE),
        (_update("bad", type=2), "Unable to update the registry: registry entry data is malformed"),
        (_update("bad", type=2, data=[0] * 20), _BAD_SIGNATURE),
        (_update("bad", publickey={"algorithm": "ed25519", "key": [0] * 32}), _BAD_SIGNATURE),
    ],
)
def test_bad_updates(client: Client, body: bytes | dict[str, object], message: str) -> None:
    """400 names the first of: form, size, signature. Nothing is stored."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = client.post("/svc/registry", content=content)
    assert answer.status_code == 400
    assert message_of(answer).startswith(message)
    assert get(client, "bad") is None


def test_a_bad_signature_is_told_before_the_revision(client: Client) -> None:
    """Whoever cannot sign learns nothing of what is stored."""
    put(client, signed("order", b"x", 5))
    answer = client.post("/svc/registry", json=_update("order", signature=[0] * 64))
    assert message_of(answer) == _BAD_SIGNATURE


def test_the_largest_data(client: Client) -> None:
    """113 bytes, in the longest form."""
    entry = signed("largest", b"\xff" * 113, MAX_REVISION)
    put(client, entry)
    assert get(client, "largest") == entry


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
        ({"publickey": ""}, "Unable to parse publickey param: "),
        ({"publickey": "ed25519:zz"}, "Unable to parse publickey param: "),
        ({"publickey": "rsa:" + "00" * 32}, "Unable to parse publickey param: "),
        ({"publickey": "", "datakey": "", "timeout": "0"}, "Unable to parse publickey param: "),
        ({"datakey": ""}, "Unable to decode dataKey param: "),
        ({"datakey": "00" * 33}, "Unable to decode dataKey param: "),
        ({"datakey": "ü" * 64}, "Unable to decode dataKey param: "),
        ({"timeout": "0"}, "Invalid 'timeout' parameter, needs to be between 1s and 300s"),
        ({"timeout": "301"}, "Invalid 'timeout' parameter, needs to be between 1s and 300s"),
        ({"timeout": "-1"}, "unable to parse 'timeout' parameter: "),
        ({"timeout": "soon"}, "unable to parse 'timeout' parameter: "),
    ],
)
def test_bad_questions(client: Client, changes: dict[str, str], message: str) -> None:
    """400 names the parameter."""
    answer = client.get("/svc/registry", params={**question("any"), **changes})
    assert answer.status_code == 400
    assert message_of(answer).startswith(message)


@given(st.dictionaries(st.sampled_from(["publickey", "datakey", "timeout"]), st.text()))
def test_any_question_is_understood_or_refused(params: dict[str, str]) -> None:
    """Every text gives a key or a 400."""
    try:
        found: tuple[bytes, bytes] | int = parse_entry_key(params)
    except HttpError as error:
        found = error.status
    assert found == 400 or isinstance(found, tuple)


@pytest.mark.parametrize("timeout", ["", "1", "5", "300"])
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


def test_other_methods(client: Client) -> None:
    """405 names those that work; the paths below are no registry."""
    answer = client.put("/svc/registry")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, POST, HEAD"
    assert client.get("/svc/registry/").status_code == 404


def test_concurrent_writers_of_one_entry_have_one_order(client: Client) -> None:
    """Every answer fits one order of the updates, and the highest revision stays."""

    def write(revision: int) -> int:
        return post(client, signed("race", b"%d" % revision, revision)).status_code

    with ThreadPoolExecutor(16) as threads:
        statuses = list(threads.map(write, range(100)))
    assert set(statuses) <= {204, 400}
    assert statuses[-1] == 204
    assert get(client, "race") == signed("race", b"99", 99)


def test_entries_survive_a_restart(tmp_path: Path) -> None:
    """Stopped and started again."""
    with portal_process(tmp_path) as portal, Client(base_url=portal.url) as client:
        put(client, signed("kept"))
    with portal_process(tmp_path) as portal, Client(base_url=portal.url) as client:
        assert get(client, "kept") == signed("kept")
        assert post(client, signed("kept")).status_code == 400


def _write_until_it_dies(portal: PortalProcess, kill_after: int) -> dict[str, SignedEntry]:
    """Update entries from many clients, kill the portal after some answers; return the answered."""
    answered: dict[str, SignedEntry] = {}

    def write(client: Client, number: int) -> None:
        for revision in range(1000):
            key = f"{number} {revision // 2}"
            entry = signed(key, b"%d" % revision, revision)
            try:
                put(client, entry)
            except httpx.TransportError:
                return
            answered[key] = entry
            if len(answered) >= kill_after:
                portal.kill()

    with Client(base_url=portal.url, timeout=60) as client, ThreadPoolExecutor(8) as threads:
        list(threads.map(partial(write, client), range(8)))
    return answered


def test_what_was_answered_survives_kill_9(tmp_path: Path) -> None:
    """Killed while clients write, twice: every answered update is there, or the one after it."""
    for kill_after in (20, 60):
        with portal_process(tmp_path) as portal:
            answered = _write_until_it_dies(portal, kill_after)
        assert len(answered) >= kill_after
        with portal_process(tmp_path) as portal, Client(base_url=portal.url) as client:
            for key, entry in answered.items():
                found = get(client, key)
                assert found is not None
                assert found.entry.revision in (entry.entry.revision, entry.entry.revision + 1)
        (tmp_path / ENTRIES_FILE).unlink()


def _limit_files(portal: PortalProcess, size: int) -> None:
    """Let the portal write no file beyond that size, as if the disk were full."""
    hard = resource.prlimit(portal.process.pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(portal.process.pid, resource.RLIMIT_FSIZE, (size, hard))


def test_a_full_disk_is_told_and_passes(tmp_path: Path) -> None:
    """500 while nothing can be written; reading goes on, and writing once there is room."""
    with portal_process(tmp_path) as portal, Client(base_url=portal.url) as client:
        put(client, signed("a", b"before", 1))
        _limit_files(portal, (tmp_path / f"{ENTRIES_FILE}-wal").stat().st_size)
        for _ in range(3):
            answer = post(client, signed("a", b"after", 2))
            assert answer.status_code == 500
            assert "cannot write to the registry: " in message_of(answer)
        assert get(client, "a") == signed("a", b"before", 1)
        _limit_files(portal, resource.RLIM_INFINITY)
        put(client, signed("a", b"after", 2))
        assert get(client, "a") == signed("a", b"after", 2)
    with portal_process(tmp_path) as portal, Client(base_url=portal.url) as client:
        assert get(client, "a") == signed("a", b"after", 2)


def test_a_portal_does_not_start_on_a_damaged_registry(tmp_path: Path) -> None:
    """One line says what is wrong."""
    (tmp_path / ENTRIES_FILE).write_bytes(b"no database" * 1000)
    with pytest.raises(AssertionError, match="the portal did not start"), portal_process(tmp_path):
        pass


class _Connection:
    """A client that asks again and again on one connection, without a library's cost."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("http://").rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._answers = self._socket.makefile("rb")

    def ask(self, request: bytes) -> bytes:
        """Send a request; return status line and body."""
        self._socket.sendall(request)
        status, length = self._answers.readline(), 0
        while (line := self._answers.readline()) != b"\r\n":
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        return status + self._answers.read(length)

    def close(self) -> None:
        self._answers.close()
        self._socket.close()


def _from_many_clients(url: str, requests: list[bytes], check: Callable[[bytes], bool]) -> None:
    """Send the requests from `_CLIENTS` clients at once; every answer must pass."""

    def run(part: list[bytes]) -> None:
        connection = _Connection(url)
        try:
            for request in part:
                answer = connection.ask(request)
                assert check(answer), answer
        finally:
            connection.close()

    with ThreadPoolExecutor(_CLIENTS) as threads:
        list(threads.map(run, [requests[at::_CLIENTS] for at in range(_CLIENTS)]))


def _post_request(entry: SignedEntry) -> bytes:
    body = entry.encode_update()
    head = f"POST /svc/registry HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _get_request(entry: SignedEntry) -> bytes:
    query = f"publickey={OWNER.public_hex}&datakey={entry.entry.tweak.hex()}"
    return f"GET /svc/registry?{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_thousands_of_writes_and_reads_in_flat_memory(tmp_path: Path) -> None:
    """Fifty clients at once: all are answered, and the second half takes no more memory."""
    entries = [signed(str(number), b"x" * 113) for number in range(4000)]
    with portal_process(tmp_path) as portal:
        for half in (entries[:2000], entries[2000:]):
            before = portal.rss()
            _from_many_clients(
                portal.url, [_post_request(one) for one in half], lambda found: b" 204 " in found
            )
            _from_many_clients(
                portal.url, [_get_request(one) for one in half], lambda found: b" 200 " in found
            )
        assert portal.rss() - before < 4 << 20
        with Client(base_url=portal.url) as client:
            assert client.get("/svc/stats").json()["numentries"] == 4000
            assert get(client, "3999") == entries[-1]


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


def test_other_methods_hns(client: Client, domain: Domain) -> None:
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
