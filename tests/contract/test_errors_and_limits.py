"""The contract's errors and limits, each seen from outside."""

import socket

import httpx
import pytest

from skymount.errors import (
    AccessDeniedError,
    FrozenEntryError,
    MalformedError,
    NotFoundError,
    PortalError,
    RevisionConflictError,
    SkymountError,
    UnavailableError,
    WrongTypeError,
)
from skymount.portal import (
    EntryResult,
    JSONResult,
    PortalClient,
    RegistryEntry,
    gen_key_pair_from_seed,
    parse_skylink,
)
from tests.contract.conftest import API_KEY, LAST, Ready
from tests.contract.recording import LINK, Reply, recording

KEYS = gen_key_pair_from_seed("errors and limits")
PUBLIC, PRIVATE = KEYS.public_key, KEYS.private_key


# --- errors


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503])
async def test_any_failed_call(status: int, tmp_path) -> None:
    """C5: Every failed call raises, and the error has the status code and the portal's words."""
    reply = Reply(status, (), b'{"message":"the words"}')
    async with recording(reply) as (_, client):
        for call in (
            lambda: client.upload_file(b"", custom_filename="x"),
            lambda: client.upload_directory({"x": b""}, custom_dirname="x"),
            lambda: client.download_file(tmp_path / "x", LINK),
            lambda: client.download_file_hns(tmp_path / "x", "example"),
            lambda: client.get_file_content(LINK),
            lambda: client.resolve_hns("example"),
            lambda: client.registry.set_entry(PRIVATE, RegistryEntry("key", b"", 0)),
            lambda: client.create_skykey("name", "private-id"),
            lambda: client.get_skykey_by_name("name"),
            client.get_skykeys,
        ):
            with pytest.raises(PortalError) as caught:
                await call()
            assert (caught.value.status, caught.value.message) == (status, "the words")
        with pytest.raises(PortalError) as caught:
            await client.get_metadata(LINK)
        assert caught.value.status == status


async def test_failed_without_an_answer() -> None:
    """A portal that cannot be reached raises too."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    async with PortalClient(f"http://127.0.0.1:{port}", retries=0) as client:
        with pytest.raises(UnavailableError) as caught:
            await client.get_file_content(LINK)
    assert caught.value.status is None


async def test_not_found(client: PortalClient, ready: Ready, tmp_path) -> None:
    """What is not found is a 404."""
    assert httpx.get(f"{ready.url}/{LINK}?timeout=1").status_code == 404
    with pytest.raises(NotFoundError) as caught:
        await client.download_file(tmp_path / "x", LINK, timeout_seconds=1)
    assert caught.value.status == 404
    assert not (tmp_path / "x").exists()


async def test_get_entry_404(client: PortalClient) -> None:
    """registry.getEntry gives null values for an entry that is not there, and does not raise."""
    found = await client.registry.get_entry(PUBLIC, "absent")
    assert found == EntryResult()
    assert (found.entry, found.signature) == (None, None)


@pytest.mark.parametrize("status", [400, 401, 403, 408, 410, 429, 500, 503])
async def test_get_entry_other_error(status: int) -> None:
    """registry.getEntry raises every other error."""
    async with recording(Reply(status, (), b'{"message":"no"}')) as (_, client):
        with pytest.raises(PortalError) as caught:
            await client.registry.get_entry(PUBLIC, "key")
    assert caught.value.status == status


async def test_get_json_absent(client: PortalClient) -> None:
    """db.getJSON gives an object of null values for what is not there."""
    found = await client.db.get_json(PUBLIC, "absent")
    assert found == JSONResult()
    assert (found.data, found.revision) == (None, None)


@pytest.mark.parametrize("call", ["get_entry", "get_json"])
async def test_registry_timeout_above_300(call: str) -> None:
    """C10: A registry time-out of more than 300 seconds raises, and nothing is asked."""
    async with recording(Reply(404)) as (requests, client):
        group = client.registry if call == "get_entry" else client.db
        for timeout in (300.5, 301, 10**9):
            with pytest.raises(MalformedError):
                await getattr(group, call)(PUBLIC, "key", timeout=timeout)
        assert requests == []
        await getattr(group, call)(PUBLIC, "key", timeout=300)
    assert [request.query["timeout"] for request in requests] == ["300"]


async def test_wrongly_typed(tmp_path) -> None:
    """C3: Wrongly typed inputs raise a TypeError, and nothing is asked."""
    entry = RegistryEntry("key", b"", 0)
    async with recording() as (requests, client):
        calls = [
            lambda: client.upload_file(5),
            lambda: client.upload_file(b"", custom_filename=5),
            lambda: client.upload_directory(5),
            lambda: client.download_file(tmp_path / "x", 5),
            lambda: client.download_file(5, LINK),
            lambda: client.download_file_hns(tmp_path / "x", 5),
            lambda: client.open_file(5),
            lambda: client.open_file_hns(5),
            lambda: client.get_metadata(5),
            lambda: client.get_file_content(LINK, path=5),
            lambda: client.resolve_hns(5),
            lambda: client.registry.get_entry(5, "key"),
            lambda: client.registry.get_entry(PUBLIC, 5),
            lambda: client.registry.get_entry(PUBLIC, "key", timeout=[]),
            lambda: client.registry.set_entry(5, entry),
            lambda: client.registry.set_entry(PRIVATE, {"data": b""}),
            lambda: client.registry.set_entry(PRIVATE, RegistryEntry("key", b"", "0")),
            lambda: client.db.get_json(PUBLIC, 5),
            lambda: client.db.set_json(PRIVATE, "key", "text"),
            lambda: client.db.set_json(PRIVATE, "key", {}, revision=1.0),
            lambda: client.create_skykey(5, "private-id"),
            lambda: client.create_skykey("name", 5),
            lambda: client.add_skykey(5),
            lambda: client.get_skykey_by_name(5),
            lambda: client.get_skykey_by_id(5),
            lambda: client.get_skykeys(api_key=5),
        ]
        for number, call in enumerate(calls):
            with pytest.raises(TypeError) as caught:
                await call()
            assert isinstance(caught.value, WrongTypeError), number
        for make in (
            lambda: client.get_skylink_url(5),
            lambda: client.get_hns_url(5),
            lambda: client.get_hnsres_url(5),
            lambda: client.registry.get_entry_url(PUBLIC, 5),
            lambda: gen_key_pair_from_seed(5),
        ):
            with pytest.raises(WrongTypeError):
                make()
    assert requests == []


async def test_add_skykey_failure(client: PortalClient) -> None:
    """addSkykey raises when the node refuses, and for what is no skykey."""
    made = await client.create_skykey("taken", "private-id")
    with pytest.raises(PortalError):
        await client.add_skykey(made.text)
    with pytest.raises(SkymountError):
        await client.add_skykey("skykey:nonsense")
    with pytest.raises(AccessDeniedError):
        await client.add_skykey(made.text, api_key="wrong")


# --- limits


async def test_entry_data_limit(client: PortalClient, ready: Ready) -> None:
    """113 bytes are stored; 114 are refused by the client and by the portal."""
    data = bytes(range(113))
    await client.registry.set_entry(PRIVATE, RegistryEntry("data limit", data, 0))
    found = await client.registry.get_entry(PUBLIC, "data limit")
    assert found.entry is not None
    assert found.entry.data == data
    with pytest.raises(MalformedError):
        await client.registry.set_entry(PRIVATE, RegistryEntry("data limit", data + b"x", 1))
    body = {
        "publickey": {"algorithm": "ed25519", "key": list(bytes.fromhex(PUBLIC))},
        "datakey": "00" * 32,
        "revision": 0,
        "data": list(data + b"x"),
        "signature": [0] * 64,
    }
    answer = httpx.post(f"{ready.url}/svc/registry", json=body, auth=("", API_KEY))
    assert answer.status_code == 400
    assert "too big: 114 > 113" in answer.json()["message"]


@pytest.mark.parametrize(
    ("timeout", "status"), [("1", 404), ("30", 404), ("900", 404), ("901", 400)]
)
def test_download_timeout(ready: Ready, timeout: str, status: int) -> None:
    """The portal takes a time-out with a download."""
    assert httpx.get(f"{ready.url}/{LINK}?timeout={timeout}").status_code == status


@pytest.mark.parametrize(
    ("timeout", "status"), [("1", 404), ("300", 404), ("301", 400), ("0", 400), ("x", 400)]
)
def test_registry_timeout(ready: Ready, timeout: str, status: int) -> None:
    """The portal takes a time-out of 1 to 300 seconds with a registry read."""
    query = f"publickey=ed25519%3A{PUBLIC}&datakey={'00' * 32}&timeout={timeout}"
    assert httpx.get(f"{ready.url}/svc/registry?{query}").status_code == status


@pytest.mark.parametrize("text", [LINK[:-1], f"{LINK}A", ""])
async def test_skylink_length(client: PortalClient, ready: Ready, text: str) -> None:
    """A skylink has 46 characters; anything else is none."""
    assert parse_skylink(LINK) == LINK
    assert len(LINK) == 46
    assert parse_skylink(text) is None
    with pytest.raises(MalformedError):
        await client.get_metadata(text)
    assert httpx.get(f"{ready.url}/svc/metadata/{text or 'A'}").status_code in (400, 404)


async def test_revisions(client: PortalClient) -> None:
    """C4: A revision is at least the latest plus 1, 0 for a new entry; the maximum freezes it."""
    name = "revisions"

    async def put(revision: int, data: bytes = b"") -> None:
        await client.registry.set_entry(PRIVATE, RegistryEntry(name, data, revision))

    assert await client.registry.next_revision(PUBLIC, name) == 0
    await put(0)
    assert await client.registry.next_revision(PUBLIC, name) == 1
    await put(2**53 + 1)
    for revision in (0, 2**53, 2**53 + 1):
        with pytest.raises(RevisionConflictError):
            await put(revision)
    await put(LAST)
    for revision in (LAST - 1, LAST):
        with pytest.raises(RevisionConflictError):
            await put(revision)
    for revision in (-1, LAST + 1):
        with pytest.raises(MalformedError):
            await put(revision)
    with pytest.raises(FrozenEntryError):
        await client.db.set_json(PRIVATE, name, {})
