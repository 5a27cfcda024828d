"""The endpoints of skykeys."""

from collections.abc import Iterator

import pytest

from skymount.wire.dialect import PRESETS, SVC
from skymount.wire.http import requests
from skymount.wire.skykey import Kind, Skykey, parse_list
from tests.portal_process import portal_process
from tests.server.http_client import Client, message_of

MADE = Skykey(Kind.PRIVATE, bytes(range(32)), bytes(range(24)), "made elsewhere")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of the portal of this module."""
    with (
        portal_process(tmp_path_factory.mktemp("skykeys") / "data") as portal,
        Client(base_url=portal.url, timeout=60) as connected,
    ):
        yield connected


@pytest.fixture
def client(running: Client) -> Client:
    """A client of a portal without any skykeys."""
    for key in listed(running):
        assert running.post("/svc/deleteskykey", data={"id": key.id}).status_code == 204
    return running


def created(client: Client, name: str, kind: str = "private-id") -> Skykey:
    answer = client.post("/svc/createskykey", data={"name": name, "type": kind})
    assert answer.status_code == 200, answer.text
    return Skykey.parse_record(answer.content)


def listed(client: Client) -> tuple[Skykey, ...]:
    """Return all skykeys."""
    return parse_list(client.get("/svc/skykeys").content)


@pytest.mark.parametrize("kind", ["public-id", "private-id"])
def test_a_new_key(client: Client, kind: str) -> None:
    """The record has the four members of the contract, and they fit each other."""
    answer = client.post("/svc/createskykey", data={"name": "my key", "type": kind})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    record = answer.json()
    assert list(record) == ["skykey", "name", "id", "type"]
    key = Skykey.parse(record["skykey"])
    assert (record["name"], record["id"], record["type"]) == ("my key", key.id, kind)
    assert key.name == "my key"
    assert listed(client) == (key,)


def test_two_new_keys_differ(client: Client) -> None:
    first, second = created(client, "a"), created(client, "b")
    assert first.key != second.key
    assert first.nonce != second.nonce
    assert listed(client) == (first, second)


def test_no_keys_are_an_empty_list(client: Client) -> None:
    assert client.get("/svc/skykeys").json() == {"skykeys": []}


def test_a_key_is_found_by_name_and_by_id(client: Client) -> None:
    key = created(client, "a/b c&d=é")
    for query in ({"name": key.name}, {"id": key.id}, {"id": key.id.rstrip("=")}):
        answer = client.get("/svc/skykey", params=query)
        assert answer.status_code == 200, answer.text
        assert answer.content == key.encode_record()
    assert client.head("/svc/skykey", params={"id": key.id}).status_code == 200


def test_a_key_that_was_made_elsewhere(client: Client) -> None:
    """The answer to adding it is empty; after that it is as any other."""
    answer = client.post("/svc/addskykey", data={"skykey": MADE.text})
    assert (answer.status_code, answer.content) == (204, b"")
    assert "content-length" not in answer.headers
    assert Skykey.parse_record(client.get("/svc/skykey?id=" + MADE.id).content) == MADE


def test_keys_without_a_name(client: Client) -> None:
    """They may be many, and are found by their ids alone."""
    for number in (1, 2):
        key = Skykey(Kind.PUBLIC, bytes([number]) * 32, bytes(24))
        assert client.post("/svc/addskykey", data={"skykey": key.text}).status_code == 204
        found = client.get("/svc/skykey", params={"id": key.id})
        assert Skykey.parse_record(found.content) == key
    assert len(listed(client)) == 2


def test_a_key_is_forgotten(client: Client) -> None:
    by_name, by_id, kept = (created(client, name) for name in "abc")
    for query in ({"name": by_name.name}, {"id": by_id.id}):
        answer = client.post("/svc/deleteskykey", data=query)
        assert (answer.status_code, answer.content) == (204, b"")
    assert listed(client) == (kept,)
    assert client.get("/svc/skykey", params={"name": by_name.name}).status_code == 400


def test_parameters_in_the_query_and_in_the_body(client: Client) -> None:
    """They are form values: either place will do, for GET too; the body wins (docs/wire.md 7)."""
    in_query = client.post("/svc/createskykey?name=a&type=public-id")
    key = Skykey.parse_record(in_query.content)
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    in_body = client.request("GET", "/svc/skykey", content=b"name=a", headers=form)
    assert Skykey.parse_record(in_body.content) == key
    mixed = client.post("/svc/createskykey?name=a&type=public-id", data={"name": "b"})
    assert Skykey.parse_record(mixed.content).name == "b"


def test_a_multipart_form(client: Client) -> None:
    """As `curl -F` sends it; both kinds of form count, and the first value of a field."""
    made = client.post(
        "/svc/createskykey", files={"name": (None, "a"), "type": (None, "private-id")}
    )
    assert made.status_code == 200, made.text
    key = Skykey.parse_record(made.content)
    assert key.name == "a"
    deleted = client.post("/svc/deleteskykey?id=x", files=[("id", (None, key.id)), ("id", b"y")])
    assert deleted.status_code == 204
    added = client.post("/svc/addskykey", files={"skykey": ("key.txt", MADE.text.encode())})
    assert added.status_code == 204
    assert listed(client) == (MADE,)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"--x", "multipart: unexpected EOF"),
        (b"", "multipart: unexpected EOF"),
        (b"--x\r\nContent-Disposition: attachment\r\n\r\na\r\n--x--", "multipart: a part is not"),
        (
            b'--x\r\nContent-Disposition: form-data; name="name"\r\n\r\n\xff\r\n--x--',
            "multipart: a field is not valid UTF-8",
        ),
        (
            b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\na\r\n' * 101,
            "multipart: more than 100 fields",
        ),
        (
            b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n' + bytes(5000),
            "multipart: a field is too long",
        ),
    ],
    ids=range(6),
)
def test_a_bad_multipart_form(client: Client, body: bytes, message: str) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    answer = client.post("/svc/createskykey", content=body, headers=headers)
    assert answer.status_code == 400
    assert message_of(answer).startswith(message)


def test_every_dialect(client: Client) -> None:
    """The requests that the SDK makes are understood."""
    for number, dialect in enumerate(PRESETS.values()):
        key = Skykey(Kind.PRIVATE, bytes([number]) * 32, bytes(24), f"of {dialect.name}")
        steps = [
            (requests.add_skykey(dialect), {"skykey": key.text}, 204),
            (requests.get_skykey(dialect, name=key.name), None, 200),
            (requests.get_skykey(dialect, key_id=key.id), None, 200),
            (requests.list_skykeys(dialect), None, 200),
            (requests.delete_skykey(dialect), {"id": key.id}, 204),
            (requests.create_skykey(dialect), {"name": key.name, "type": "public-id"}, 200),
        ]
        for request, form, status in steps:
            answer = client.request(
                request.method, request.target, data=form, headers=dict(request.headers)
            )
            assert answer.status_code == status, (request, answer.text)


def test_keys_are_not_for_caches(client: Client) -> None:
    created(client, "a")
    for path in ("/svc/skykeys", "/svc/skykey?name=a"):
        assert client.get(path).headers["cache-control"] == "no-store"


CASES = [
    ("createskykey", {}, 400, "you must specify the name of the skykey"),
    ("createskykey", {"type": "public-id"}, 400, "you must specify the name of the skykey"),
    ("createskykey", {"name": "new"}, 400, "you must specify the type of the skykey"),
    (
        "createskykey",
        {"name": "new", "type": "invalid"},
        400,
        "failed to decode skykey type: Invalid skykey type",
    ),
    (
        "createskykey",
        {"name": "there", "type": "public-id"},
        400,
        "failed to create skykey: Skykey name already used by another key",
    ),
    (
        "createskykey",
        {"name": "x" * 129, "type": "public-id"},
        400,
        "failed to create skykey: skykey name exceeds max length of 128 bytes",
    ),
    ("addskykey", {}, 400, "you must specify the skykey"),
    ("addskykey", {"skykey": "skykey:AAAA"}, 400, "failed to add skykey: "),
    ("addskykey", {"skykey": "other:AAAA"}, 400, "failed to add skykey: "),
    (
        "addskykey",
        {"skykey": MADE.text},
        400,
        "failed to add skykey: Skykey name already used by another key",
    ),
    (
        "addskykey",
        {"skykey": MADE.named("another").text},
        400,
        "failed to add skykey: Skykey ID already exists",
    ),
    ("deleteskykey", {}, 400, "you must specify the name or ID of the skykey"),
    (
        "deleteskykey",
        {"name": "there", "id": MADE.id},
        400,
        "you must specify either the name or ID of the skykey, not both",
    ),
    ("deleteskykey", {"id": "!"}, 400, "failed to decode skykey ID: "),
    ("deleteskykey", {"name": "absent"}, 400, "failed to delete skykey: No Skykey with that name"),
]


def test_refused_changes(client: Client) -> None:
    """Each has its status and message, and changes nothing."""
    created(client, "there")
    client.post("/svc/addskykey", data={"skykey": MADE.text})
    before = listed(client)
    for call, form, status, message in CASES:
        answer = client.post(f"/svc/{call}", data=form)
        assert answer.status_code == status, (call, form)
        assert message_of(answer).startswith(message), (call, form)
    assert listed(client) == before


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("", "you must specify the name or ID of the skykey"),
        ("?name=&id=", "you must specify the name or ID of the skykey"),
        ("?name=a&id=b", "you must specify either the name or ID of the skykey, not both"),
        ("?name=absent", "failed to retrieve skykey: No Skykey with that name"),
        (f"?id={MADE.id}", "failed to retrieve skykey: No Skykey is associated with that ID"),
        ("?id=abc", "failed to retrieve skykey: failed to decode skykey ID: "),
    ],
)
def test_refused_reads(client: Client, query: str, message: str) -> None:
    answer = client.get("/svc/skykey" + query)
    assert answer.status_code == 400
    assert message_of(answer).startswith(message)


def test_wrong_methods(client: Client) -> None:
    for call in ("createskykey", "addskykey", "deleteskykey"):
        assert client.get(f"/svc/{call}").status_code == 405
    for call in ("skykey", "skykeys"):
        assert client.post(f"/svc/{call}").status_code == 405


def test_a_body_over_the_limit(client: Client) -> None:
    answer = client.post("/svc/addskykey", data={"skykey": "x" * (1 << 20)})
    assert answer.status_code == 413


def test_no_key_is_in_a_message(client: Client) -> None:
    """An error about a key does not repeat it."""
    secret = MADE.text.removeprefix("skykey:")[:60]
    client.post("/svc/addskykey", data={"skykey": MADE.text})
    for text in (MADE.text, secret, f"other:{secret}", MADE.text.partition("?")[0] + "?bad"):
        answer = client.post("/svc/addskykey", data={"skykey": text})
        assert answer.status_code == 400
        assert secret[:20] not in answer.text


def test_the_prefix_is_the_contracts() -> None:
    assert requests.list_skykeys(SVC).target == "/svc/skykeys"
