"""SkyDB through the client: documents at a real portal, and at one that does not behave."""

from typing import Any

import pytest
import trio

from skymount.errors import (
    BadContentError,
    FrozenEntryError,
    MalformedError,
    NoDocumentError,
    NotFoundError,
    PortalError,
    RevisionConflictError,
    UnavailableError,
    WrongTypeError,
)
from skymount.portal import JSONResult, PortalClient, RegistryEntry, gen_key_pair_from_seed
from skymount.wire.key_pair import SigningKeyPair
from skymount.wire.registry_entry import DELETED, MAX_REVISION, Entry, hash_data_key
from skymount.wire.skydb_document import (
    DOCUMENT_LIMIT,
)
from skymount.wire.skylink import Skylink
from tests.fakes.portal import FakePortal, Reply, running, stalls_after
from tests.fakes.portal import error as refusal
from tests.portal_process import PortalProcess
from tests.wire.vectors import VECTORS

KEYS = gen_key_pair_from_seed("the owner of documents")
PUBLIC, PRIVATE = KEYS.public_key, KEYS.private_key
OWNER = SigningKeyPair.from_private_hex(PRIVATE)
LINK = "AAA9s0sR9i8NGy19EadRGcpUt0HdvDMHJilKGmW545-k1g"


async def point(client: PortalClient, data_key: str, data: bytes, revision: int = 0) -> None:
    """Set the owner's entry."""
    await client.registry.set_entry(PRIVATE, RegistryEntry(data_key, data, revision))


async def uploaded(client: PortalClient, body: bytes) -> Skylink:
    """Upload a file that is to be a document."""
    return (await client.upload_file(body, custom_filename="x")).skylink


def entry_reply(data: bytes, revision: int = 0, data_key: str = "key") -> Reply:
    """Answer with an entry of the owner."""
    entry = Entry(hash_data_key(data_key), data, revision).sign(OWNER.private_key)
    return Reply(200, (), entry.encode_answer())


# --- what is stored comes back

DOCUMENTS: list[Any] = [
    {},
    [],
    {"message": "hi there!"},
    {"n": 2**64 + 1, "pi": 3.5, "deep": [[{"ключ": None}]], "": True},
    [1, "two", {"_data": 1, "_v": 2}],
    {"_data": {"a": 1}, "_v": 2},
    {"half": "\ud800", "\udfff": "a whole one: 😀"},
    {"long": "x" * 100_000},
]


@pytest.mark.parametrize("document", DOCUMENTS, ids=range(len(DOCUMENTS)))
async def test_round_trip(client: PortalClient, data_key: str, document: Any):
    """A document comes back as it was, with its revision and the link of its upload."""
    stored = await client.db.set_json(PRIVATE, data_key, document)
    assert (stored.data, stored.revision) == (document, 0)
    assert await client.db.get_json(PUBLIC, data_key) == stored
    assert stored.data_link is not None
    content = await client.get_file_content(stored.data_link)
    assert content.content_type == "application/json"
    assert content.data == {"_data": document, "_v": 2}


async def test_the_reference_sdk_s_upload(client: PortalClient):
    """The upload of a document is the reference SDK's to the byte: it has the same skylink."""
    await client.db.set_json(PRIVATE, "dataKey3", {"message": "hi there!"}, revision=0)
    found = await client.db.get_json(PUBLIC, "dataKey3")
    assert found.data_link == "svc://AAAVyJktMuK-7WRCNUvYcYq7izvhCbgDLXlT4YgechblJw"
    content = await client.get_metadata(found.data_link)
    assert content.metadata["filename"] == VECTORS["skydb_v2_file_name"][0]["filename"]


async def test_revisions_follow(client: PortalClient, data_key: str):
    """C4: Each document gets the next revision, exact beyond what a float can hold."""
    await point(client, data_key, b"x", 2**53)
    for following in (2**53 + 1, 2**53 + 2):
        stored = await client.db.set_json(PRIVATE, data_key, {"n": following})
        assert stored.revision == following
        assert (await client.db.get_json(PUBLIC, data_key)).revision == following


async def test_given_revision(client: PortalClient, data_key: str):
    """A revision that is given is the one that is set, up to the last, or refused."""
    assert (await client.db.set_json(PRIVATE, data_key, {}, revision=9)).revision == 9
    with pytest.raises(RevisionConflictError):
        await client.db.set_json(PRIVATE, data_key, {"other": 1}, revision=8)
    last = await client.db.set_json(PRIVATE, data_key, {"last": 1}, revision=MAX_REVISION)
    assert await client.db.get_json(PUBLIC, data_key) == last


async def test_absent(client: PortalClient, data_key: str):
    """C9: Where there is no document, every member is None."""
    assert await client.db.get_json(PUBLIC, data_key) == JSONResult(None, None, None)


async def test_delete(client: PortalClient, data_key: str):
    """A deleted document is None, its entry 34 zero bytes; a new one can follow."""
    await client.db.set_json(PRIVATE, data_key, {"a": 1})
    await client.db.delete_json(PRIVATE, data_key)
    assert await client.db.get_json(PUBLIC, data_key) == JSONResult(None, 1, None)
    entry = (await client.registry.get_entry(PUBLIC, data_key)).entry
    assert entry == RegistryEntry(data_key, DELETED, 1)
    assert (await client.db.set_json(PRIVATE, data_key, {"b": 2})).revision == 2


async def test_hashed_data_keys(client: PortalClient, data_key: str):
    """A hashed data key stands for the same entry; the file is named by it."""
    hashed = hash_data_key(data_key).hex()
    stored = await client.db.set_json(PRIVATE, hashed, {"a": 1}, hashed_data_key_hex=True)
    assert await client.db.get_json(PUBLIC, data_key) == stored
    assert await client.db.get_json(PUBLIC, hashed, hashed_data_key_hex=True) == stored
    assert stored.data_link is not None
    assert (await client.get_metadata(stored.data_link)).metadata["filename"] == f"dk:{hashed}"
    await client.db.delete_json(PRIVATE, hashed, hashed_data_key_hex=True)
    assert (await client.db.get_json(PUBLIC, data_key)).data is None


async def test_frozen(client: PortalClient, data_key: str):
    """C4: After the last revision a document is neither replaced nor deleted."""
    await point(client, data_key, b"end", MAX_REVISION)
    for call in (
        lambda: client.db.set_json(PRIVATE, data_key, {}),
        lambda: client.db.delete_json(PRIVATE, data_key),
    ):
        with pytest.raises(FrozenEntryError, match="already has maximum allowed revision"):
            await call()


async def test_frozen_is_not_posted():
    """C4: A frozen entry is not even tried; the upload that runs meanwhile is given up."""
    async with running(FakePortal()) as fake, PortalClient(fake.url) as client:
        fake.fault(lambda *_: entry_reply(b"", MAX_REVISION), "GET")
        fake.fault(stalls_after(-1), "POST /svc/skyfile")
        with trio.fail_after(20), pytest.raises(FrozenEntryError):
            await client.db.set_json(PRIVATE, "key", {})
        assert not fake.asked("POST /svc/registry")


# --- what else may lie there


@pytest.mark.parametrize("scheme", ["", "svc://"])
async def test_older_entries(client: PortalClient, data_key: str, scheme: str):
    """An entry's data may be the 46 characters of the skylink; with a scheme it is no link."""
    skylink = await uploaded(client, b'{"_data":{"a":1},"_v":2}')
    await point(client, data_key, f"{scheme}{skylink}".encode())
    if scheme:
        with pytest.raises(BadContentError, match="length 34 bytes"):
            await client.db.get_json(PUBLIC, data_key)
    else:
        assert (await client.db.get_json(PUBLIC, data_key)).data == {"a": 1}


async def test_an_entry_that_leads_to_an_entry(client: PortalClient, data_key: str):
    """An entry may hold the link of another entry, which the portal follows."""
    stored = await client.db.set_json(PRIVATE, data_key, {"a": 1})
    link = client.registry.get_entry_link(PUBLIC, data_key)
    await point(client, f"{data_key} 2", bytes(Skylink(link.removeprefix("svc://"))))
    found = await client.db.get_json(PUBLIC, f"{data_key} 2")
    assert (found.data, found.data_link) == (stored.data, link)


@pytest.mark.parametrize("data", [b"", b"text", bytes(33), bytes(46), b"x" * 46, b"\xff" * 34])
async def test_entries_that_lead_nowhere(client: PortalClient, data_key: str, data: bytes):
    """C5: An entry whose data is no skylink is an error with status, method and address."""
    await point(client, data_key, data)
    with pytest.raises(NoDocumentError, match="skylink of length 34 bytes") as caught:
        await client.db.get_json(PUBLIC, data_key)
    error = caught.value
    assert (error.status, error.method) == (200, "GET")
    assert error.url == f"{client.options.url}/svc/registry"


async def test_content_that_is_gone(client: PortalClient, data_key: str):
    """C9: An entry whose content is not there raises; that is no absent entry."""
    await point(client, data_key, bytes(Skylink(LINK)))
    with pytest.raises(NotFoundError) as caught:
        await client.db.get_json(PUBLIC, data_key)
    assert caught.value.url == f"{client.options.url}/{LINK}"


@pytest.mark.parametrize(
    "body",
    [b"", b"text", b"<html></html>", b"5", b'"text"', b"null", b'{"a":NaN}', b"\xff", b"[" * 9999],
    ids=range(9),
)
async def test_content_that_is_no_document(client: PortalClient, data_key: str, body: bytes):
    """C5: Content that is no JSON object or list is an error that names the data key."""
    skylink = await uploaded(client, body)
    await point(client, data_key, bytes(skylink))
    with pytest.raises(NoDocumentError, match=f"data key '{data_key}' is not JSON") as caught:
        await client.db.get_json(PUBLIC, data_key)
    error = caught.value
    assert (error.status, error.method) == (200, "GET")
    assert error.url == f"{client.options.url}/{skylink}"


async def test_content_that_is_too_long():
    """C14: A document without end is given up."""
    async with running(FakePortal()) as fake, PortalClient(fake.url) as client:
        fake.fault(lambda *_: entry_reply(bytes(Skylink(LINK))), "/svc/registry")
        fake.fault(lambda *_: Reply(200, (), endless=b"x" * (1 << 20)), LINK)
        with pytest.raises(BadContentError, match="longer than"):
            await client.db.get_json(PUBLIC, "key")


# --- arguments


async def test_wrong_arguments():
    """C3: Types and values are checked before a connection is made."""
    ring: list[Any] = []
    ring.append(ring)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    async with running(FakePortal()) as fake, PortalClient(fake.url) as client:
        db = client.db
        for call in (
            lambda: db.get_json(5, "key"),
            lambda: db.get_json(PUBLIC, None),
            lambda: db.get_json(PUBLIC, "key", timeout=[]),
            lambda: db.get_json(PUBLIC, "key", hashed_data_key_hex="yes"),
            lambda: db.set_json(5, "key", {}),
            lambda: db.set_json(PRIVATE, b"key", {}),
            lambda: db.set_json(PRIVATE, "key", "text"),
            lambda: db.set_json(PRIVATE, "key", None),
            lambda: db.set_json(PRIVATE, "key", (1, 2)),
            lambda: db.set_json(PRIVATE, "key", {"a": {1}}),
            lambda: db.set_json(PRIVATE, "key", {"a": b"bytes"}),
            lambda: db.set_json(PRIVATE, "key", {("a",): 1}),
            lambda: db.set_json(PRIVATE, "key", {}, revision=1.0),
            lambda: db.set_json(PRIVATE, "key", {}, revision=False),
            lambda: db.set_json(PRIVATE, "key", {}, hashed_data_key_hex=1),
            lambda: db.delete_json(None, "key"),
            lambda: db.delete_json(PRIVATE, 5),
        ):
            with pytest.raises(WrongTypeError):
                await call()
        for call in (
            lambda: db.get_json(PRIVATE, "key"),
            lambda: db.get_json(PUBLIC, "key", timeout=301),
            lambda: db.get_json(PUBLIC, "key", hashed_data_key_hex=True),
            lambda: db.set_json(PUBLIC, "key", {}),
            lambda: db.set_json(PRIVATE, "\ud800", {}),
            lambda: db.set_json(PRIVATE, "key", {"a": float("nan")}),
            lambda: db.set_json(PRIVATE, "key", {"a": float("inf")}),
            lambda: db.set_json(PRIVATE, "key", ring),
            lambda: db.set_json(PRIVATE, "key", deep),
            lambda: db.set_json(PRIVATE, "key", ["x" * DOCUMENT_LIMIT]),
            lambda: db.set_json(PRIVATE, "key", {}, revision=-1),
            lambda: db.set_json(PRIVATE, "key", {}, revision=MAX_REVISION + 1),
            lambda: db.delete_json(PRIVATE, "key", hashed_data_key_hex=True),
        ):
            with pytest.raises(MalformedError) as caught:
                await call()
            assert PRIVATE[:32] not in str(caught.value)
        assert fake.accepted == 0


# --- failures in the middle, and others at work


@pytest.mark.parametrize("pattern", ["GET /svc/registry", "POST /svc/skyfile"])
async def test_what_fails_is_raised_as_it_is(pattern: str):
    """C5: Of the two things done at once, the failure of one ends the other and is the call's."""
    async with running(FakePortal()) as fake, PortalClient(fake.url, retries=0) as client:
        fake.fault(lambda *_: refusal(500, "no luck"), pattern)
        fake.fault(stalls_after(-1))
        with trio.fail_after(20), pytest.raises(UnavailableError, match="no luck"):
            await client.db.set_json(PRIVATE, "key", {})
        assert not fake.asked("POST /svc/registry")


async def test_a_failing_callback():
    """What a progress callback raises leaves the call as it is."""

    def progress(*_: object) -> None:
        raise ZeroDivisionError

    async with running(FakePortal()) as fake, PortalClient(fake.url) as client:
        with pytest.raises(ZeroDivisionError):
            await client.db.set_json(PRIVATE, "key", {}, on_upload_progress=progress)


async def test_an_upload_that_is_refused_sets_nothing():
    """With a given revision too, the entry is set after the upload and not without it."""
    async with running(FakePortal()) as fake, PortalClient(fake.url) as client:
        fake.fault(lambda *_: refusal(413, "too big"), "POST /svc/skyfile")
        with pytest.raises(PortalError, match="too big"):
            await client.db.set_json(PRIVATE, "key", {}, revision=1)
        assert [request.method for request in fake.requests] == ["POST"]


async def test_the_document_is_the_one_of_the_call(client: PortalClient, data_key: str):
    """What happens to a document while it is stored does not reach the portal."""
    document = {"a": 1}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.db.set_json, PRIVATE, data_key, document)
        for _ in range(2):  # it has begun after that
            await trio.lowlevel.checkpoint()
        document["a"] = 2
    assert (await client.db.get_json(PUBLIC, data_key)).data == {"a": 1}


async def test_several_at_once_in_one_client(client: PortalClient, data_key: str):
    """C4: Calls of one client for one entry are done one after another, each with its revision."""
    revisions: list[int | None] = []

    async def store(number: int) -> None:
        if number == 4:
            await client.db.delete_json(PRIVATE, data_key)
            return
        revisions.append((await client.db.set_json(PRIVATE, data_key, {"n": number})).revision)

    async with trio.open_nursery() as nursery:
        for number in range(9):
            nursery.start_soon(store, number)
    assert len(set(revisions)) == 8
    found = await client.db.get_json(PUBLIC, data_key)
    assert found.revision == 8


async def test_a_cancelled_call_gives_up_its_turn(data_key: str):
    """C13: The next call for an entry does not wait for one that was cancelled."""
    async with running(FakePortal()) as fake, PortalClient(fake.url) as client:
        fake.fault(stalls_after(-1), "POST", times=1)
        fake.fault(lambda *_: Reply(200, (), b'{"skylink":"%s"}' % LINK.encode()), "skyfile")
        fake.fault(lambda *_: Reply(204), "POST /svc/registry")
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.db.set_json, PRIVATE, data_key, {})
                while not fake.asked("POST"):
                    await trio.sleep(0.001)
                nursery.cancel_scope.cancel()
            stored = await client.db.set_json(PRIVATE, data_key, {})
        assert stored.data_link == f"svc://{LINK}"


async def test_two_clients_at_once(portal: PortalProcess, data_key: str):
    """Of two clients that store at once, each is told its revision or a conflict."""
    results: list[object] = []

    async def store(client: PortalClient, number: int) -> None:
        try:
            results.append((await client.db.set_json(PRIVATE, data_key, {"n": number})).revision)
        except RevisionConflictError as error:
            results.append(type(error))

    async with PortalClient(portal.url) as one, PortalClient(portal.url) as two:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store, one, 1)
            nursery.start_soon(store, two, 2)
        found = await one.db.get_json(PUBLIC, data_key)
    assert set(results) <= {0, 1, RevisionConflictError}
    assert results != [RevisionConflictError] * 2
    assert found.data in ({"n": 1}, {"n": 2})
