"""The endpoints of skykeys."""

from collections.abc import Iterator

import pytest

from skymount.wire.skykey import Kind, Skykey, parse_list
from tests.server.http_client import Client, message_of, portal_client

MADE = Skykey(Kind.PRIVATE, bytes(range(32)), bytes(range(24)), "made elsewhere")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of the portal of this module."""
    with (
        portal_client(tmp_path_factory.mktemp("skykeys") / "data") as connected,
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


def test_new_keys(client: Client) -> None:
    """Each differs from the others, and is listed in its order."""
    assert client.get("/svc/skykeys").json() == {"skykeys": []}
    first, second = created(client, "a"), created(client, "b", "public-id")
    assert (first.name, first.kind) == ("a", Kind.PRIVATE)
    assert (second.name, second.kind) == ("b", Kind.PUBLIC)
    assert first.key != second.key
    assert first.nonce != second.nonce
    assert listed(client) == (first, second)


def test_a_key_is_found_by_name_and_by_id(client: Client) -> None:
    key = created(client, "a/b c&d=é")
    for query in ({"name": key.name}, {"id": key.id}, {"id": key.id.rstrip("=")}):
        answer = client.get("/svc/skykey", params=query)
        assert answer.status_code == 200, answer.text
        assert answer.headers["cache-control"] == "no-store"
        assert answer.content == key.encode_record()
    assert client.head("/svc/skykey", params={"id": key.id}).status_code == 200


def test_keys_that_were_made_elsewhere(client: Client) -> None:
    """The answer to adding one is empty. Many may be without a name, and are found by their ids."""
    unnamed = [Skykey(Kind.PUBLIC, bytes([number]) * 32, bytes(24)) for number in (1, 2)]
    for key in (MADE, *unnamed):
        answer = client.post("/svc/addskykey", data={"skykey": key.text})
        assert (answer.status_code, answer.content) == (204, b"")
        assert "content-length" not in answer.headers
        found = client.get("/svc/skykey", params={"id": key.id})
        assert Skykey.parse_record(found.content) == key
    assert len(listed(client)) == 3


def test_a_key_is_forgotten(client: Client) -> None:
    by_name, by_id, kept = (created(client, name) for name in "abc")
    for query in ({"name": by_name.name}, {"id": by_id.id}):
        answer = client.post("/svc/deleteskykey", data=query)
        assert (answer.status_code, answer.content) == (204, b"")
    assert listed(client) == (kept,)
    assert client.get("/svc/skykey", params={"name": by_name.name}).status_code == 400


def test_parameters_in_the_query_and_in_the_body(client: Client) -> None:
    """They are form values: either place will do, for GET too; the body wins (docs/wire.md 7)."""
    mixed = client.post("/svc/createskykey?name=a&type=public-id", data={"name": "b"})
    key = Skykey.parse_record(mixed.content)
    assert key.name == "b"
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    in_body = client.request("GET", "/svc/skykey", content=b"name=b", headers=form)
    assert Skykey.parse_record(in_body.content) == key


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


_PART = b"--x\r\nContent-Disposition: %s\r\n\r\n"
_FIELD = _PART % b'form-data; name="a"'


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"--x", "multipart: unexpected EOF"),
        (_PART % b"attachment" + b"a\r\n--x--", "multipart: a part is not"),
        (_FIELD + b"\xff\r\n--x--", "multipart: a field is not valid UTF-8"),
        ((_FIELD + b"a\r\n") * 101, "multipart: more than 100 fields"),
        (_FIELD + bytes(5000), "multipart: a field is too long"),
    ],
    ids=range(5),
)
def test_a_bad_multipart_form(client: Client, body: bytes, message: str) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    answer = client.post("/svc/createskykey", content=body, headers=headers)
    assert answer.status_code == 400
    assert message_of(answer).startswith(message)


_NEITHER = "you must specify the name or ID of the skykey"
_BOTH = "you must specify either the name or ID of the skykey, not both"
_USED = "Skykey name already used by another key"


@pytest.mark.parametrize(
    ("call", "form", "message"),
    [
        ("createskykey", {"type": "public-id"}, "you must specify the name of the skykey"),
        ("createskykey", {"name": "new"}, "you must specify the type of the skykey"),
        ("createskykey", {"name": "new", "type": "x"}, "failed to decode skykey type: Invalid"),
        (
            "createskykey",
            {"name": "there", "type": "public-id"},
            f"failed to create skykey: {_USED}",
        ),
        ("addskykey", {}, "you must specify the skykey"),
        ("addskykey", {"skykey": "skykey:AAAA"}, "failed to add skykey: "),
        ("addskykey", {"skykey": MADE.text}, f"failed to add skykey: {_USED}"),
        (
            "addskykey",
            {"skykey": MADE.named("another").text},
            "failed to add skykey: Skykey ID already exists",
        ),
        ("deleteskykey", {}, _NEITHER),
        ("deleteskykey", {"name": "there", "id": MADE.id}, _BOTH),
        ("deleteskykey", {"id": "!"}, "failed to decode skykey ID: "),
        ("deleteskykey", {"name": "absent"}, "failed to delete skykey: No Skykey with that name"),
        ("skykey", {"name": "", "id": ""}, _NEITHER),
        ("skykey", {"name": "a", "id": "b"}, _BOTH),
        ("skykey", {"name": "absent"}, "failed to retrieve skykey: No Skykey with that name"),
        ("skykey", {"id": "abc"}, "failed to retrieve skykey: failed to decode skykey ID: "),
    ],
)
def test_refusals(client: Client, call: str, form: dict[str, str], message: str) -> None:
    """Each has its message, and changes nothing."""
    created(client, "there")
    client.post("/svc/addskykey", data={"skykey": MADE.text})
    before = listed(client)
    answer = client.request("GET" if call == "skykey" else "POST", f"/svc/{call}", data=form)
    assert answer.status_code == 400
    assert message_of(answer).startswith(message)
    assert listed(client) == before


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
