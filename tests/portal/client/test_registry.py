"""The registry through the client: at a real portal, and at one that lies or breaks off."""

import logging
import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from skymount.errors import (
    AccessDeniedError,
    BadContentError,
    FrozenEntryError,
    MalformedError,
    NotFoundError,
    PortalError,
    RequestRefusedError,
    RevisionConflictError,
    RolledBackError,
    StorageError,
    UnavailableError,
    WrongTypeError,
)
from skymount.portal import (
    EntryResult,
    Ledger,
    PortalClient,
    RegistryEntry,
    SyncPortalClient,
    gen_key_pair_from_seed,
)
from skymount.wire.key_pair import SigningKeyPair
from skymount.wire.registry_entry import MAX_REVISION, Entry, SignedEntry, hash_data_key
from tests.fakes.portal import FakePortal, Reply, Request, closes_after, in_thread, running
from tests.fakes.portal import error as refusal
from tests.portal_process import portal_process
from tests.wire.vectors import VECTORS

SEED = "the owner of the registry's tests"
KEYS = gen_key_pair_from_seed(SEED)
PUBLIC, PRIVATE = KEYS.public_key, KEYS.private_key
OWNER = SigningKeyPair.from_private_hex(PRIVATE)
OTHER = SigningKeyPair.from_seed("somebody else")
TWEAK = hash_data_key("key")
QUERY = f"publickey=ed25519%3A{PUBLIC}&datakey={TWEAK.hex()}"
EQUAL = "Unable to update the registry: provided revision number is already registered"


def signed(data: bytes = b"data", revision: int = 0, tweak: bytes = TWEAK) -> SignedEntry:
    return Entry(tweak, data, revision).sign(OWNER.private_key)


def answer(body: bytes) -> Reply:
    return Reply(200, ((b"Content-Type", b"application/json"),), body)


# --- what is stored comes back


@pytest.mark.parametrize("data", [b"", b"text", bytes(range(113)), bytes(34)])
async def test_round_trip(client: PortalClient, data_key: str, data: bytes):
    """C9: An entry comes back with its exact data and revision, and with its owner's signature."""
    made = RegistryEntry(data_key, data, 7)
    assert await client.registry.set_entry(PRIVATE, made) is None  # type: ignore[func-returns-value]
    found = await client.registry.get_entry(PUBLIC, data_key)
    assert found.entry == made
    assert found.signed is not None
    assert found.signature == found.signed.verify().signature.hex()
    expected = Entry(hash_data_key(data_key), data, 7).sign(OWNER.private_key)
    assert found.signed == expected


@pytest.mark.parametrize("revision", [0, 2**53 - 1, 2**53, 2**53 + 1, 2**63, MAX_REVISION])
async def test_revisions(client: PortalClient, data_key: str, revision: int):
    """C4: A revision is exact beyond what a float can hold, up to the last one."""
    await client.registry.set_entry(PRIVATE, RegistryEntry(data_key, b"", revision))
    found = await client.registry.get_entry(PUBLIC, data_key)
    assert found.entry is not None
    assert found.entry.revision == revision
    if revision < MAX_REVISION:
        assert await client.registry.next_revision(PUBLIC, data_key) == revision + 1


async def test_frozen(client: PortalClient, data_key: str):
    """C4: After the last revision there is no next one, and nothing is taken any more."""
    await client.registry.set_entry(PRIVATE, RegistryEntry(data_key, b"end", MAX_REVISION))
    with pytest.raises(FrozenEntryError, match="maximum allowed revision"):
        await client.registry.next_revision(PUBLIC, data_key)
    for revision in (MAX_REVISION, MAX_REVISION - 1, 0):
        with pytest.raises(RevisionConflictError):
            await client.registry.set_entry(PRIVATE, RegistryEntry(data_key, b"more", revision))


async def test_absent(client: PortalClient, data_key: str):
    """C9: An entry that is not there is None twice, and its next revision is 0."""
    assert await client.registry.get_entry(PUBLIC, data_key) == EntryResult(None, None)
    assert await client.registry.next_revision(PUBLIC, data_key) == 0


async def test_conflicts(client: PortalClient, data_key: str):
    """C5: The same or a lower revision is refused with status and words of the portal."""
    await client.registry.set_entry(PRIVATE, RegistryEntry(data_key, b"same", 5))
    for data, revision, words in ((b"same", 5, "already registered"), (b"x", 4, "is invalid")):
        with pytest.raises(RevisionConflictError, match=words) as caught:
            await client.registry.set_entry(PRIVATE, RegistryEntry(data_key, data, revision))
        error = caught.value
        assert (error.status, error.method) == (400, "POST")
        assert error.url == f"{client.options.url}/svc/registry"
        assert isinstance(error, RequestRefusedError)


@pytest.mark.parametrize("kind", [b"text/html; charset=utf-8", b"application/json"])
async def test_a_page_in_place_of_the_registry(kind: bytes):
    """C11: Success is an empty response; a page that somebody else sends is no success."""
    portal = FakePortal()
    portal.fault(lambda _, __: Reply(200, ((b"Content-Type", kind),), b"Welcome to our network"))
    async with running(portal), PortalClient(portal.url) as client:
        with pytest.raises(BadContentError, match=r"not empty|a web page"):
            await client.registry.set_entry(PRIVATE, RegistryEntry("key", b"data", 1))


@pytest.mark.parametrize("status", [200, 204])
async def test_an_empty_answer_is_a_success(status: int):
    """C11: Success is an empty response."""
    portal = FakePortal()
    portal.fault(lambda _, __: Reply(status))
    async with running(portal), PortalClient(portal.url) as client:
        await client.registry.set_entry(PRIVATE, RegistryEntry("key", b"data", 1))


async def test_hashed_data_keys(client: PortalClient, data_key: str):
    """A data key of 64 hex digits can stand on the wire as it is, in every call."""
    hashed = hash_data_key(data_key).hex()
    made = RegistryEntry(hashed.upper(), b"data", 3)
    await client.registry.set_entry(PRIVATE, made, hashed_data_key_hex=True)
    found = await client.registry.get_entry(PUBLIC, data_key)
    assert found.entry == RegistryEntry(data_key, b"data", 3)
    same = await client.registry.get_entry(PUBLIC, hashed, hashed_data_key_hex=True)
    assert same.signed == found.signed
    assert same.entry == RegistryEntry(hashed, b"data", 3)
    assert await client.registry.next_revision(PUBLIC, hashed, hashed_data_key_hex=True) == 4
    assert await client.registry.next_revision(PUBLIC, hashed) == 0
    for address in (client.registry.get_entry_url, client.registry.get_entry_link):
        assert address(PUBLIC, hashed, hashed_data_key_hex=True) == address(PUBLIC, data_key)
        assert address(PUBLIC, hashed) != address(PUBLIC, data_key)


def test_urls_and_links():
    """The URL is the contract's to the letter, the link that of the reference SDKs."""
    registry = PortalClient("https://portal.example/").registry
    url = f"https://portal.example/svc/registry?{QUERY}"
    assert registry.get_entry_url(PUBLIC, "key") == url
    assert registry.get_entry_url(f"ed25519:{PUBLIC.upper()}", "key") == url
    other = f"https://portal.example/skynet/registry?{QUERY}"
    assert registry.get_entry_url(PUBLIC, "key", dialect="skynet") == other
    for case in VECTORS["resolver_skylink"]:
        key, hashed = case["publicKey"], case["dataKeyIsTweak"]
        link = registry.get_entry_link(key, case["dataKey"], hashed_data_key_hex=hashed)
        assert link == f"svc://{case['skylink']}"


async def test_text_as_data(client: PortalClient, data_key: str):
    """A text is stored in UTF-8, and read as one again; other data is not text."""
    await client.registry.set_entry(PRIVATE, RegistryEntry(data_key, "ключ", 0))  # type: ignore[arg-type]
    found = await client.registry.get_entry(PUBLIC, data_key)
    assert found.entry is not None
    assert found.entry.text == "ключ"
    with pytest.raises(MalformedError):
        RegistryEntry("k", b"\xff", 0).text  # noqa: B018


# --- what is asked


async def test_requests():
    """Endpoints 5 and 6 are asked as the contract has it, in its order and forms."""
    async with running(FakePortal()) as fake, PortalClient(fake.url) as client:
        await client.registry.get_entry(PUBLIC, "key", timeout=2.5)
        fake.fault(lambda *_: Reply(204), "POST")
        await client.registry.set_entry(PRIVATE, RegistryEntry("key", b"ab", 2**53 + 1))
    get, post = fake.requests
    assert (get.method, get.target) == ("GET", f"/svc/registry?{QUERY}&timeout=3")
    assert (post.method, post.target) == ("POST", "/svc/registry")
    assert post.headers["content-type"] == "application/json"
    assert b'"data":[97,98]' in post.body
    assert b'"revision":9007199254740993' in post.body
    assert SignedEntry.parse_update(post.body) == signed(b"ab", 2**53 + 1)


@pytest.mark.parametrize("timeout", [1, 300, "300", 299.1])
async def test_time_outs(client: PortalClient, data_key: str, timeout: float):
    """C10: Up to 300 seconds the portal takes what is sent."""
    found = await client.registry.get_entry(PUBLIC, data_key, timeout=timeout)
    assert found.entry is None


async def test_a_slow_registry_is_waited_for():
    """C10: The registry's own time comes on top of what a portal may be silent."""
    async with running(FakePortal()) as fake, PortalClient(fake.url, timeout=0.01) as client:
        fake.fault(lambda _, reply: replace(reply, drip=(1, 0.02)))
        assert await client.registry.get_entry(PUBLIC, "key") == EntryResult()


async def test_wrong_arguments():
    """C3: Types and values are checked before a connection is made."""
    entry = RegistryEntry("key", b"", 0)
    async with running(FakePortal()) as fake, PortalClient(fake.url) as client:
        registry = client.registry
        for call in (
            lambda: registry.get_entry(5, "key"),
            lambda: registry.get_entry(PUBLIC, None),
            lambda: registry.get_entry(PUBLIC, "key", timeout=None),
            lambda: registry.get_entry(PUBLIC, "key", timeout=True),
            lambda: registry.get_entry(PUBLIC, "key", hashed_data_key_hex=1),
            lambda: registry.get_entry(PUBLIC, "key", api_key=5),
            lambda: registry.get_entry(PUBLIC, "key", unknown=5),
            lambda: registry.next_revision(5, "key"),
            lambda: registry.set_entry(5, entry),
            lambda: registry.set_entry(PRIVATE, ("key", b"", 0)),
            lambda: registry.set_entry(PRIVATE, entry, hashed_data_key_hex=None),
            lambda: registry.set_entry(PRIVATE, entry, timeout="5"),
        ):
            with pytest.raises(WrongTypeError):
                await call()
        for call in (
            lambda: registry.get_entry(PUBLIC[:-1], "key"),
            lambda: registry.get_entry(PRIVATE, "key"),
            lambda: registry.get_entry(PUBLIC, "key", timeout=301),
            lambda: registry.get_entry(PUBLIC, "key", timeout=0),
            lambda: registry.get_entry(PUBLIC, "key", hashed_data_key_hex=True),
            lambda: registry.next_revision(PUBLIC, "\ud800"),
            lambda: registry.set_entry(PUBLIC, entry),
            lambda: registry.set_entry(PRIVATE[:-1] + "0", entry),
            lambda: registry.set_entry(PRIVATE, entry, hashed_data_key_hex=True),
        ):
            with pytest.raises(MalformedError) as caught:
                await call()
            assert PRIVATE[:32] not in str(caught.value)
        for address in (registry.get_entry_url, registry.get_entry_link):
            with pytest.raises(WrongTypeError):
                address(PUBLIC, 5)
            with pytest.raises(MalformedError):
                address("x", "key")
        assert fake.accepted == 0


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ((5, b"", 0), WrongTypeError),
        (("key", None, 0), WrongTypeError),
        (("key", [1], 0), WrongTypeError),
        (("key", b"", "0"), WrongTypeError),
        (("key", b"", 0.0), WrongTypeError),
        (("key", b"", True), WrongTypeError),
        (("key", bytes(114), 0), MalformedError),
        (("key", "\ud800", 0), MalformedError),
        (("key", b"", -1), MalformedError),
        (("key", b"", MAX_REVISION + 1), MalformedError),
    ],
)
def test_entries_that_cannot_be(values: tuple[object, ...], kind: type[Exception]):
    """C3: An entry of wrong types or out of range cannot even be made."""
    with pytest.raises(kind):
        RegistryEntry(*values)  # type: ignore[arg-type]


# --- portals that lie


def _forged() -> bytes:
    """The true entry with other data under its signature."""
    true = signed()
    return replace(true, entry=replace(true.entry, data=b"other")).encode_answer()


@pytest.mark.parametrize(
    "body",
    [
        _forged(),
        Entry(TWEAK, b"data", 0).sign(OTHER.private_key).encode_answer(),
        signed(tweak=hash_data_key("another key")).encode_answer(),
    ],
    ids=["data", "owner", "entry"],
)
async def test_bad_signatures(body: bytes):
    """C9: An entry that its owner did not sign so is an error, never a result."""
    async with running(FakePortal()) as fake, PortalClient(fake.url) as client:
        fake.fault(lambda *_: answer(body))
        for call in (client.registry.get_entry, client.registry.next_revision, client.db.get_json):
            with pytest.raises(BadContentError) as caught:
                await call(PUBLIC, "key")
            error = caught.value
            assert (error.status, error.method) == (200, "GET")
            assert error.url == f"{fake.url}/svc/registry"
        with pytest.raises(BadContentError):
            await client.db.delete_json(PRIVATE, "key")
        assert not fake.asked("POST")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>welcome</html>",
        b'{"data":"%s","revision":0,"signature":"%s"}' % (b"00" * 114, b"00" * 64),
        b" " * 17_000,
    ],
    ids=range(4),
)
async def test_answers_of_another_form(body: bytes):
    """C14: What is no entry, or too long to be one, is an error with status and address."""
    async with running(FakePortal()) as fake, PortalClient(fake.url) as client:
        fake.fault(lambda *_: answer(body))
        with pytest.raises(BadContentError) as caught:
            await client.registry.get_entry(PUBLIC, "key")
        assert caught.value.url == f"{fake.url}/svc/registry"
        assert len(str(caught.value)) < 400


async def test_an_answer_without_end():
    """C14: A body that never ends is given up."""
    async with running(FakePortal()) as fake, PortalClient(fake.url) as client:
        fake.fault(lambda *_: replace(answer(b""), endless=b" " * 4096))
        with pytest.raises(BadContentError, match="longer than"):
            await client.registry.get_entry(PUBLIC, "key")


@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        (refusal(400, "bad"), RequestRefusedError, "bad"),
        (refusal(401, "no"), AccessDeniedError, "no"),
        (refusal(408, "slow"), UnavailableError, "slow"),
        (refusal(410, "gone"), NotFoundError, "gone"),
        (refusal(429, "many"), UnavailableError, "many"),
        (refusal(500, "registry entry not found"), UnavailableError, "not found"),
        (Reply(500, (), b"<html><b>oops</b></html>"), UnavailableError, "HTTP status 500"),
        (Reply(503, (), b""), UnavailableError, "HTTP status 503"),
        (Reply(500, (), b"x" * 1_000_000), UnavailableError, "HTTP status 500"),
    ],
    ids=range(9),
)
async def test_other_errors_raise(reply: Reply, kind: type[PortalError], words: str):
    """C9: Only 404 is an absent entry; any other status raises, with status, method and address."""
    async with running(FakePortal()) as fake, PortalClient(fake.url, retries=0) as client:
        fake.fault(lambda *_: reply)
        for call, method in (
            (lambda: client.registry.get_entry(PUBLIC, "key"), "GET"),
            (lambda: client.registry.next_revision(PUBLIC, "key"), "GET"),
            (lambda: client.registry.set_entry(PRIVATE, RegistryEntry("key", b"", 0)), "POST"),
        ):
            with pytest.raises(kind, match=words) as caught:
                await call()
            error = caught.value
            assert (error.status, error.method) == (reply.status, method)
            assert error.url == f"{fake.url}/svc/registry"
            assert "<" not in str(error)


@pytest.mark.parametrize("body", [b"", b'{"message":"registry entry not found"}', b"<html></html>"])
async def test_any_404_is_an_absent_entry(body: bytes):
    """C9: With status 404 there is no such entry, whatever else the answer says. Nobody else is
    asked.
    """
    async with running(FakePortal()) as fake, PortalClient(fake.url) as client:
        fake.fault(lambda *_: Reply(404, (), body))
        assert await client.registry.get_entry(PUBLIC, "key") == EntryResult()
        assert len(fake.requests) == 1


async def test_setting_at_a_portal_without_registry():
    """A 404 to an update is an error: only a read has null values."""
    async with running(FakePortal()) as fake, PortalClient(fake.url) as client:
        with pytest.raises(NotFoundError):
            await client.registry.set_entry(PRIVATE, RegistryEntry("key", b"", 0))


# --- answers that are lost


class Losing:
    """A registry whose answers to updates get lost on their way."""

    def __init__(self, times: int, *, applies: bool = True, status: int = 400) -> None:
        self._left = times
        self._applies = applies
        self._status = status
        self.entry: SignedEntry | None = None
        self.posts: list[bytes] = []

    def __call__(self, request: Request, reply: Reply) -> Reply:
        """Answer as a portal does."""
        if request.method == "GET":
            return answer(self.entry.encode_answer()) if self.entry else refusal(404, "not found")
        self.posts.append(request.body)
        lost, self._left = self._left > 0, self._left - 1
        new = SignedEntry.parse_update(request.body)
        taken = self.entry is None or new.entry.revision > self.entry.entry.revision
        if taken and (self._applies or not lost):
            self.entry = new
        if lost:
            return closes_after(-1)(request, reply)
        return Reply(204) if taken else refusal(self._status, EQUAL)


@pytest.mark.parametrize("applies", [True, False])
@pytest.mark.parametrize("status", [400, 500])
async def test_a_lost_answer(applies: bool, status: int):
    """C11: The very same bytes are sent again, and count as done if the registry holds them."""
    registry = Losing(2, applies=applies, status=status)
    async with running(FakePortal()) as fake, PortalClient(fake.url) as client:
        fake.fault(registry)
        await client.registry.set_entry(PRIVATE, RegistryEntry("key", b"mine", 3))
    assert registry.entry == signed(b"mine", 3)
    assert len(registry.posts) == 3
    assert len(set(registry.posts)) == 1


async def test_a_lost_answer_and_somebody_else():
    """C11: If the registry holds another entry by then, the update was refused."""
    registry = Losing(1, applies=False)
    registry.entry = signed(b"theirs", 3)
    async with running(FakePortal()) as fake, PortalClient(fake.url) as client:
        fake.fault(registry)
        with pytest.raises(RevisionConflictError) as caught:
            await client.registry.set_entry(PRIVATE, RegistryEntry("key", b"mine", 3))
        assert caught.value.status == 400
    assert len(registry.posts) == 2


async def test_the_same_entry_twice():
    """C11: Without a lost answer, an entry that is there already is a conflict."""
    registry = Losing(0)
    registry.entry = signed(b"mine", 3)
    async with running(FakePortal()) as fake, PortalClient(fake.url) as client:
        fake.fault(registry)
        with pytest.raises(RevisionConflictError):
            await client.registry.set_entry(PRIVATE, RegistryEntry("key", b"mine", 3))
    assert len(fake.requests) == 1


async def test_answers_that_are_always_lost():
    """C8: After the last repetition the failure is the call's."""
    async with running(FakePortal()) as fake, PortalClient(fake.url, retries=1) as client:
        fake.fault(Losing(100))
        with pytest.raises(PortalError) as caught:
            await client.registry.set_entry(PRIVATE, RegistryEntry("key", b"mine", 3))
        assert caught.value.attempts == 2
        assert len(fake.requests) == 2


@pytest.mark.parametrize(
    "words",
    [
        "[provided revision number is invalid; all registry updates failed]",
        "entry doesn't have enough pow to replace existing entry",
        EQUAL,
    ],
)
@pytest.mark.parametrize("status", [400, 500])
async def test_conflicts_by_their_words(words: str, status: int):
    """A conflict is known by its words, because later portals answer it with 500."""
    async with running(FakePortal()) as fake, PortalClient(fake.url) as client:
        fake.fault(lambda *_: refusal(status, f"Unable to update the registry: {words}"))
        with pytest.raises(RevisionConflictError) as caught:
            await client.registry.set_entry(PRIVATE, RegistryEntry("key", b"mine", 3))
        assert (caught.value.status, len(fake.requests)) == (status, 1)


# --- secrets


async def test_secrets_stay_secret(caplog: pytest.LogCaptureFixture):
    """C6: Neither errors nor logs nor reprs hold a private key, nor what a query says."""
    caplog.set_level(logging.DEBUG)
    async with running(FakePortal()) as fake, PortalClient(fake.url, api_key="passwd") as client:
        fake.fault(lambda request, _: refusal(400, f"passwd {request.headers['authorization']}"))
        for call in (
            lambda: client.registry.get_entry(PUBLIC, "key"),
            lambda: client.registry.set_entry(PRIVATE, RegistryEntry("key", b"", 0)),
        ):
            with pytest.raises(RequestRefusedError) as caught:
                await call()
            shown = f"{caught.value} {caught.value!r} {client!r} {client.registry!r}"
            for secret in (PRIVATE[:64], "passwd", "OnBhc3N3ZA", TWEAK.hex()):
                assert secret not in shown
    logged = "\n".join(record.getMessage() for record in caplog.records)
    for secret in (PRIVATE[:64], "passwd", "OnBhc3N3ZA", TWEAK.hex()):
        assert secret not in logged


# --- many at once


class _Load:
    """Fifty tasks that write and read their entries in turn, and what they see."""

    TASKS = 50

    def __init__(self, client: PortalClient, watch: Callable[[], None]) -> None:
        self._client = client
        self._watch = watch
        self._done = [-1] * self.TASKS  # the last revision whose update was answered
        self._seen = [-1] * self.TASKS

    async def run(self, first: int, rounds: int) -> None:
        """Write revisions `first` and following to every entry, and read as often."""
        async with trio.open_nursery() as nursery:
            for task in range(self.TASKS):
                nursery.start_soon(self._work, task, first, rounds)

    async def _work(self, task: int, first: int, rounds: int) -> None:
        neighbour = (task + 1) % self.TASKS
        for revision in range(first, first + rounds):
            data = f"{task} {revision}".encode()
            entry = RegistryEntry(f"load {task}", data, revision)
            await self._client.registry.set_entry(PRIVATE, entry)
            self._done[task] = revision
            await self._read(neighbour)
            self._watch()

    async def _read(self, task: int) -> None:
        least = max(self._done[task], self._seen[task])
        found = (await self._client.registry.get_entry(PUBLIC, f"load {task}")).entry
        if found is None:
            assert least == -1
            return
        assert found.revision >= least, "an older revision than was seen before"
        assert found.data == f"{task} {found.revision}".encode()
        self._seen[task] = max(self._seen[task], found.revision)


def _resident() -> int:
    """Return the bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _sockets() -> int:
    """Return how many sockets this process has open."""
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            found += os.readlink(descriptor).startswith("socket:")
        except FileNotFoundError:
            pass
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_many_tasks_over_one_client(tmp_path: Path):
    """C4: 4,000 writes and reads by 50 tasks: no error, nothing leaks, revisions only grow."""
    most = 0

    def watch() -> None:
        nonlocal most
        most = max(most, _sockets())

    with portal_process(tmp_path / "data") as portal:
        tasks, sockets = trio.lowlevel.current_statistics().tasks_living, _sockets()
        async with PortalClient(portal.url, retries=0) as client:
            load = _Load(client, watch)
            await load.run(0, 40)
            memory = _resident()
            await load.run(40, 40)
            assert _resident() - memory < 4 << 20
            assert most - sockets <= client.options.connections
            assert trio.lowlevel.current_statistics().tasks_living == tasks
        assert _sockets() == sockets
        assert trio.lowlevel.current_statistics().tasks_living == tasks


# --- what was seen before


def serving(portal: FakePortal, *entries: SignedEntry | None) -> list[SignedEntry | None]:
    """Have a portal take posts, and answer with one entry after the other, at last with the last.

    Return those that are left.
    """
    left = list(entries)

    def answers(request: Request, honest: Reply) -> Reply:
        if request.method == "POST":
            return Reply(204)
        now = left.pop(0) if len(left) > 1 else left[0]
        return refusal(404, "not here") if now is None else answer(now.encode_answer())

    portal.fault(answers)
    return left


async def test_an_older_entry_is_refused():
    """C9: not older than one that was seen before by this client; absence is no entry."""
    async with running(FakePortal()) as portal, PortalClient(portal.url) as client:
        left = serving(portal, signed(b"new", 5), signed(b"old", 4), None, signed(b"newer", 6))
        assert (await client.registry.get_entry(PUBLIC, "key")).signed == signed(b"new", 5)
        with pytest.raises(RolledBackError, match="revision 4 is behind revision 5"):
            await client.registry.get_entry(PUBLIC, "key")
        assert await client.registry.get_entry(PUBLIC, "key") == EntryResult()
        assert (await client.registry.get_entry(PUBLIC, "key")).signed == signed(b"newer", 6)
        left[:] = [signed(b"old", 4)]
        for read in (client.db.get_json, client.registry.get_entry):
            with pytest.raises(RolledBackError):
                await read(PUBLIC, "key")
        assert await client.registry.next_revision(PUBLIC, "key") == 7
    async with running(FakePortal()) as portal, PortalClient(portal.url) as another:
        serving(portal, signed(b"old", 4))
        assert (await another.registry.get_entry(PUBLIC, "key")).signed == signed(b"old", 4)


async def test_clients_with_a_ledger_share_what_was_seen(tmp_path: Path):
    """C9: or with `ledger=` by all who use that ledger; what is set counts as seen."""
    ledger = Ledger(tmp_path / "ledger.sqlite3")
    async with running(FakePortal()) as portal:
        serving(portal, signed(b"old", 4))
        async with PortalClient(portal.url, ledger=ledger) as client:
            await client.registry.set_entry(PRIVATE, RegistryEntry("key", b"new", 5))
            with pytest.raises(RolledBackError):
                await client.registry.get_entry(PUBLIC, "key")
        with closing(Ledger(ledger.path)) as other:
            async with PortalClient(portal.url, ledger=other) as client:
                with pytest.raises(RolledBackError):
                    await client.registry.get_entry(PUBLIC, "key")
                assert await client.registry.next_revision(PUBLIC, "key") == 6
        ledger.path.write_bytes(b"damaged" * 1000)
        with closing(Ledger(ledger.path)) as damaged:
            async with PortalClient(portal.url, ledger=damaged) as client:
                with pytest.raises(StorageError):
                    await client.registry.get_entry(PUBLIC, "key")
    ledger.close()


async def test_a_ledger_is_a_ledger():
    """C3: An argument of a wrong type raises before any request is made."""
    with pytest.raises(WrongTypeError, match="ledger"):
        PortalClient(ledger="ledger.sqlite3")  # type: ignore[arg-type]


def test_ledger_of_the_synchronous_client(tmp_path: Path):
    """The same with the synchronous client."""
    with closing(Ledger(tmp_path / "ledger.sqlite3")) as ledger, in_thread(FakePortal()) as portal:
        serving(portal, signed(b"new", 5), signed(b"old", 4))
        with SyncPortalClient(portal.url, ledger=ledger) as client:
            assert client.registry.get_entry(PUBLIC, "key").signed == signed(b"new", 5)
            with pytest.raises(RolledBackError):
                client.registry.get_entry(PUBLIC, "key")
