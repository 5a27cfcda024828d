"""SkyDB's documents as text: read, checked and written, at a real portal."""

import json
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio
import trio.testing

from skymount.content.cache.memory_cache import MemoryCache
from skymount.content.fetch.skyfile_loader import SkyfileLoader
from skymount.content.model.skyfile import LoadedSkyfile, Verified, VerifyPolicy
from skymount.content.replication.replicator import Replicator
from skymount.content.skydb.document_text import TEXT_LIMIT, as_text, as_upload
from skymount.content.skydb.documents import Documents
from skymount.errors import (
    BadContentError,
    InvalidDocumentError,
    NoDocumentError,
    ReadOnlyPortalError,
    StaleEntryError,
    UnavailableError,
)
from skymount.policies import WritePolicy
from skymount.portal.client.base import PortalReader
from skymount.portal.client.client import PortalClient
from skymount.portal.client.upload import UploadBody, send
from skymount.portal.failover.portals import Portals
from skymount.portal.ledger.entries import EntryId
from skymount.portal.ledger.ledger import Ledger
from skymount.portal.registry.sender import Sender
from skymount.portal.registry.verified_registry import VerifiedRegistry
from skymount.wire.key_pair import SigningKeyPair
from skymount.wire.metadata import Metadata, encode_metadata
from skymount.wire.registry_entry import hash_data_key
from skymount.wire.skydb_document import document_name
from skymount.wire.skylink import Skylink
from tests.fakes.content_stack import open_reader
from tests.fakes.portal import FakePortal, body_is, running, status
from tests.fakes.skyfiles import of_files, unverifiable
from tests.portal.ledger.entries import owed, unsent
from tests.portal_process import running_portal

PAIR = SigningKeyPair.from_seed("the owner of documents in tests")


def ref(name: str) -> EntryId:
    """Return the entry of a data key."""
    return EntryId(PAIR.public_key, hash_data_key(name), name)


@dataclass
class Kit:
    """Documents, and the entries below them."""

    documents: Documents
    entries: VerifiedRegistry
    loads: list[Skylink]
    """Skylinks whose descriptions were asked for."""
    ledger: Ledger
    replicator: Replicator

    def sender(self) -> Sender:
        return Sender(self.entries, self.ledger, send_content=self.replicator.replicate)

    async def upload_to_first(self, document: bytes) -> Skylink:
        """Upload a document to the first portal only."""
        http = self.entries.portals.clients[0].http
        return (await send(http, UploadBody.of_document(document, "dk:x"))).skylink


class CountingLoader(SkyfileLoader):
    """Notes what is loaded."""

    loads: list[Skylink]

    async def load(self, skylink: Skylink) -> LoadedSkyfile:
        self.loads.append(skylink)
        return await super().load(skylink)


@asynccontextmanager
async def open_kit(
    *urls: str,
    path: Path,
    policy: VerifyPolicy = VerifyPolicy.AVAILABLE,
    cache: int = 64 << 20,
    read_only: Collection[str] = (),
    writes: WritePolicy = WritePolicy.ANY,
) -> AsyncIterator[Kit]:
    """Open the documents of portals, with a ledger of their own."""
    async with AsyncExitStack() as stack:
        clients = [PortalReader(url, read_only=url in read_only) for url in urls]
        portals = Portals([await stack.enter_async_context(client) for client in clients])
        loader = CountingLoader(portals, policy)
        loader.loads = []
        reader = await stack.enter_async_context(
            open_reader(portals, loader, MemoryCache(64 << 20))
        )
        ledger = Ledger.open(path / "ledger.sqlite3")
        stack.callback(ledger.close)
        entries = VerifiedRegistry(portals, ledger, policy=writes)
        documents = Documents(entries, reader, portals, policy, cache=cache, writes=writes)
        replicator = Replicator(portals, reader)
        yield Kit(documents, entries, loader.loads, ledger, replicator)


async def test_written_and_read(portal: str, tmp_path: Path):
    """D1: is the JSON document behind the entry, as stored, over several lines.

    Another machine reads the same; the client library reads what was written, and is read.
    """
    async with open_kit(portal, path=tmp_path) as kit:
        assert (await kit.documents.read(ref("doc"))).data is None
        written = await kit.documents.write(ref("doc"), PAIR, b'{"a": [1, "\xc3\xa9"]}', None)
        assert written.data == '{\n  "a": [\n    1,\n    "é"\n  ]\n}\n'.encode()
        assert written.revision == 0
        recalled = kit.documents.recall(ref("doc"))
        assert recalled is not None
        assert recalled.data == written.data
        assert recalled.verified is Verified.NO  # A4: `no` for one that was not read back yet
        assert (await kit.documents.read(ref("doc"))).verified is Verified.YES
        recalled = kit.documents.recall(ref("doc"))
        assert recalled is not None
        assert recalled.verified is Verified.YES
    (tmp_path / "other").mkdir()
    async with (
        open_kit(portal, path=tmp_path / "other") as kit,
        PortalClient(portal) as client,
    ):
        assert (await kit.documents.read(ref("doc"))).data == written.data
        result = await client.db.get_json(PAIR.public_hex, "doc")
        assert result.data == {"a": [1, "é"]}
        await client.db.set_json(PAIR.private_hex, "doc", {"b": 2})
        assert (await kit.documents.read(ref("doc"))).data == b'{\n  "b": 2\n}\n'


async def test_a_portal_that_is_read_only_gets_no_document(portal: str, tmp_path: Path):
    """W2: documents and entries go to another one; without any nothing is sent."""
    async with running(FakePortal()) as mirror:
        async with open_kit(mirror.url, portal, path=tmp_path, read_only=[mirror.url]) as kit:
            await kit.documents.write(ref("skips"), PAIR, b"{}", None)
        async with open_kit(mirror.url, path=tmp_path, read_only=[mirror.url]) as kit:
            with pytest.raises(ReadOnlyPortalError):
                await kit.documents.write(ref("skips"), PAIR, b"{}", None)
        assert mirror.asked("^POST") == []


async def test_documents_go_to_all_portals(portal: str, tmp_path: Path):
    """W4: with their entries; one portal's end takes nothing with it."""
    with running_portal(tmp_path / "second") as second:
        async with open_kit(portal, second, path=tmp_path) as kit:
            await kit.documents.write(ref("both"), PAIR, b'{"a": 1}', None)
            assert owed(kit.ledger) == []
        for url in (portal, second):
            async with PortalClient(url) as client:
                assert (await client.db.get_json(PAIR.public_hex, "both")).data == {"a": 1}


@pytest.mark.parametrize("policy", [WritePolicy.ANY, WritePolicy.ALL])
async def test_a_portal_that_does_not_take_a_document(
    portal: str, tmp_path: Path, policy: WritePolicy
):
    """W4: it is owed content and entry; if all portals must have a document, that is an error."""
    async with running(FakePortal()) as fake:
        fake.fault(status(503, "full"))
        async with open_kit(fake.url, portal, path=tmp_path, writes=policy) as kit:
            if policy is WritePolicy.ALL:
                with pytest.raises(
                    UnavailableError, match="1 of 2 portals took it, 2 have to: full"
                ):
                    await kit.documents.write(ref("one"), PAIR, b"{}", None)
                assert unsent(kit.ledger) == []  # D2: it is not kept
                return
            await kit.documents.write(ref("one"), PAIR, b"{}", None)
            debts = owed(kit.ledger)
            assert [(each.portals[0], bool(each.lacking)) for each in debts] == [(fake.url, True)]
        assert fake.asked("^POST /svc/registry") == []


@pytest.mark.parametrize("policy", [WritePolicy.ANY, WritePolicy.ALL])
async def test_the_portal_that_has_the_document_fails_then(
    portal: str, tmp_path: Path, policy: WritePolicy
):
    """W4: the one that lacks it, since it failed a moment ago, gets content and entry."""
    async with running(FakePortal()) as fake:
        text = b'{"a": 3}'
        upload = UploadBody.of_document(as_upload(text), document_name("then", hashed=False))
        async with PortalReader(portal) as client:
            taken = await send(client.http, upload)
        fake.add(of_files({"any": b""}))
        fake.fault(body_is(taken.encode()), "POST /svc/skyfile")
        fake.fault(status(503, "full"), "POST /svc/registry")
        async with open_kit(fake.url, portal, path=tmp_path, writes=policy) as kit:
            failed = kit.entries.portals.clients[1]
            error = UnavailableError("down", url=failed.url)
            kit.entries.portals.health(failed).failed(error, trio.current_time())
            if policy is WritePolicy.ALL:
                with pytest.raises(UnavailableError):
                    await kit.documents.write(ref("then"), PAIR, text, None)
                return
            await kit.documents.write(ref("then"), PAIR, text, None)
            debts = owed(kit.ledger)
            assert [(each.portals[0], bool(each.lacking)) for each in debts] == [(fake.url, False)]
            assert unsent(kit.ledger) == []
    async with PortalClient(portal) as client:
        assert (await client.db.get_json(PAIR.public_hex, "then")).data == {"a": 3}


@pytest.mark.parametrize("fault", ["lies", "takes it slowly"])
async def test_a_portal_that_harms_a_document(portal: str, tmp_path: Path, fault: str):
    """W4: the entry leads to what was written, and the write does not last."""
    document = {"a": "x" * 4_100_000}  # more than sockets hold
    async with running(FakePortal()) as fake:
        if fault == "lies":
            fake.add(of_files({"other.json": b"[]"}))
        else:
            fake.breaks_upload = 1, "sip"
        async with open_kit(fake.url, portal, path=tmp_path) as kit:
            text = json.dumps(document).encode()
            with trio.fail_after(60):
                await kit.documents.write(ref("one"), PAIR, text, None)
            debts = owed(kit.ledger)
            assert [(each.portals[0], bool(each.lacking)) for each in debts] == [(fake.url, True)]
        assert fake.asked("^POST /svc/registry") == []
    async with PortalClient(portal) as client:
        found = await client.db.get_json(PAIR.public_hex, "one")
        assert found.data == document


async def test_what_a_portal_lacks_is_brought_to_it(portal: str, tmp_path: Path):
    """W5: first the content, then the entry."""
    with running_portal(tmp_path / "second") as second:
        async with open_kit(portal, second, path=tmp_path) as kit, trio.open_nursery() as nursery:
            skylink = await kit.upload_to_first(b'{"a": 2}')
            await kit.entries.write(ref("owed"), PAIR, bytes(skylink), None, lacking=[second])
            nursery.start_soon(kit.sender().run)
            with trio.fail_after(30):
                while owed(kit.ledger):
                    await trio.sleep(0.05)
            nursery.cancel_scope.cancel()
        async with PortalClient(second) as client:
            assert (await client.db.get_json(PAIR.public_hex, "owed")).data == {"a": 2}


async def test_both_stored_forms(portal: str, tmp_path: Path):
    """D1: Both stored forms are read: the document itself, and the one with `_data` and `_v`."""
    (tmp_path / "plain.json").write_text('{"a": 1}')
    (tmp_path / "wrapped.json").write_text('{"_data": {"a": 1}, "_v": 2}')
    async with open_kit(portal, path=tmp_path) as kit, PortalClient(portal) as client:
        for name in ("plain", "wrapped"):
            skylink = await client.upload_file(tmp_path / f"{name}.json")
            await kit.entries.write(ref(name), PAIR, bytes(_link(skylink)), None)
            assert json.loads((await kit.documents.read(ref(name))).data or b"") == {"a": 1}


def _link(found: object) -> Skylink:
    return Skylink(str(getattr(found, "skylink", found)))


async def test_no_document(portal: str, tmp_path: Path):
    """An entry that holds no skylink is no document, and not listed; one that leads to no document
    is an error.
    """
    (tmp_path / "text").write_text("no JSON")
    async with open_kit(portal, path=tmp_path) as kit, PortalClient(portal) as client:
        skylink = await client.upload_file(tmp_path / "text")
        await kit.entries.write(ref("data"), PAIR, b"just data", None)
        await kit.entries.write(ref("text"), PAIR, bytes(_link(skylink)), None)
        assert (await kit.documents.read(ref("data"))).data is None
        for _ in range(2):  # D1: stat asks for it, and does not read it again
            with pytest.raises(NoDocumentError, match=f"leads to skylinks/{_link(skylink)}, which"):
                await kit.documents.read(ref("text"))
        assert len(kit.loads) == 1
        entry = kit.documents.recall_entry(ref("text"))
        assert entry is not None
        assert entry.data == bytes(_link(skylink))
        names = await kit.documents.names(PAIR.public_key)
        assert [name.data_key for name in names] == ["text"]
        known = kit.documents.recall(ref("data"))
        assert known is not None
        assert known.data is None


async def test_document_without_content(portal: str, tmp_path: Path):
    """D1: its name is there, so «not found» of its content is an error of another kind."""
    skylink = of_files({"f": b"{}"}).skylink
    async with open_kit(portal, path=tmp_path) as kit:
        await kit.entries.write(ref("lost"), PAIR, bytes(skylink), None)
        with pytest.raises(BadContentError, match="is at no portal"):
            await kit.documents.read(ref("lost"))


async def test_document_that_is_too_long(portal: str, tmp_path: Path):
    """D1: one of more than 4 MiB is an error before any of it is downloaded."""
    raw = encode_metadata(Metadata("f", TEXT_LIMIT + 1))
    long = unverifiable(raw, bytes(TEXT_LIMIT + 1))
    async with running(FakePortal()) as fake, open_kit(portal, fake.url, path=tmp_path) as kit:
        fake.add(long)
        await kit.entries.write(ref("long"), PAIR, bytes(long.skylink), None)
        with pytest.raises(BadContentError, match="longer than"):
            await kit.documents.read(ref("long"))
        assert fake.asked(f"^HEAD /{long.name}")
        assert not fake.asked(f"^GET /{long.name}")


async def test_listing_asks_for_what_is_not_known(portal: str, tmp_path: Path):
    """After a restart too, entries that are no documents are not listed."""
    async with open_kit(portal, path=tmp_path) as kit:
        await kit.entries.write(ref("data"), PAIR, b"just data", None)
        await kit.documents.write(ref("document"), PAIR, b"{}", None)
    async with open_kit(portal, path=tmp_path) as kit:
        names = await kit.documents.names(PAIR.public_key)
        assert [name.data_key for name in names] == ["document"]


async def test_fetched_ahead(portal: str, tmp_path: Path):
    """G6: in `skydb` with documents of up to 128 KiB.

    Who reads one meanwhile waits for it and asks for nothing; what is large is left to its reader.
    """
    large = json.dumps(["x" * (200 << 10)]).encode()
    async with open_kit(portal, path=tmp_path) as kit:
        for name, text in (("small", b"[1]"), ("large", large)):
            await kit.documents.write(ref(name), PAIR, text, None)
        await kit.entries.write(ref("data"), PAIR, b"just data", None)
    async with open_kit(portal, path=tmp_path) as kit, trio.open_nursery() as nursery:
        nursery.start_soon(kit.documents.fetch_ahead, ref("small"), 2.0)
        nursery.start_soon(kit.documents.fetch_ahead, ref("small"), 2.0)
        await trio.testing.wait_all_tasks_blocked()
        assert (await kit.documents.read(ref("small"), 2.0)).data == b"[\n  1\n]\n"
        assert len(kit.loads) == 1
        await kit.documents.fetch_ahead(ref("data"), 2.0)
        with pytest.raises(BadContentError, match="longer than"):
            await kit.documents.fetch_ahead(ref("large"), 2.0)
        assert kit.documents.recall(ref("large")) is None
        assert (await kit.documents.read(ref("large"), 2.0)).data is not None


@pytest.mark.parametrize(
    "text", [b"", b"{", b"text", b"1", b'"x"', b"null", b"[NaN]", b"\xff", b"[" * 100_000]
)
async def test_what_is_no_document(portal: str, tmp_path: Path, text: bytes):
    """D2: Writing checks that it is JSON (EINVAL at close), and then nothing is sent."""
    async with open_kit(portal, path=tmp_path) as kit:
        with pytest.raises(InvalidDocumentError):
            await kit.documents.write(ref("bad"), PAIR, text, None)
        assert (await kit.documents.read(ref("bad"))).data is None


async def test_changed_by_somebody_else(portal: str, tmp_path: Path):
    """A change is made from a document; when there is another one by then it is refused."""
    async with open_kit(portal, path=tmp_path) as kit:
        base = await kit.documents.write(ref("shared"), PAIR, b"[1]", None)
        await kit.documents.write(ref("shared"), PAIR, b"[2]", base)
        with pytest.raises(StaleEntryError):
            await kit.documents.write(ref("shared"), PAIR, b"[3]", base)
        assert (await kit.documents.read(ref("shared"))).data == b"[\n  2\n]\n"


async def test_deleted(portal: str, tmp_path: Path):
    """D3: rm deletes the document's entry."""
    async with open_kit(portal, path=tmp_path) as kit:
        await kit.documents.write(ref("gone"), PAIR, b"[1]", None)
        await kit.documents.delete(ref("gone"), PAIR)
        found = await kit.documents.read(ref("gone"))
        assert (found.data, found.revision) == (None, 1)
        recalled = kit.documents.recall(ref("gone"))
        assert recalled is not None
        assert recalled.data is None


async def test_large_document(portal: str, tmp_path: Path):
    """D1: One as large as it may be is one base sector, and is proved to be what was stored."""
    large = json.dumps(["é" * ((TEXT_LIMIT - 64) // 2)], ensure_ascii=False).encode()
    odd = EntryId(PAIR.public_key, hash_data_key("\0\n é" * 40), "\0\n é" * 40)
    async with open_kit(portal, path=tmp_path) as kit:
        for each in (ref("large"), odd):
            await kit.documents.write(each, PAIR, bytearray(large), None)
    async with open_kit(portal, path=tmp_path) as kit:
        for each in (ref("large"), odd):
            found = await kit.documents.read(each)
            assert found.data == as_text(large)
            assert found.verified is Verified.YES


async def test_change_of_what_is_not_verified(portal: str, tmp_path: Path):
    """D2: A partial edit of a text that was not checked is EIO at close and changes nothing; a
    whole rewrite is not concerned, nor is a text that was written by the same open file.
    """
    doubtful = unverifiable(encode_metadata(Metadata("f", 7)), b'{"a":1}')
    async with running(FakePortal()) as fake, open_kit(portal, fake.url, path=tmp_path) as kit:
        fake.add(doubtful)
        entry = await kit.entries.write(ref("doubtful"), PAIR, bytes(doubtful.skylink), None)
        base = await kit.documents.read(ref("doubtful"))
        assert base.verified is Verified.NO
        with pytest.raises(BadContentError, match="could not be checked"):
            await kit.documents.write(ref("doubtful"), PAIR, b'{"a": 2}', base)
        assert (await kit.entries.read(ref("doubtful"))).revision == entry.revision
        own = await kit.documents.write(ref("doubtful"), PAIR, b'{"a": 3}', None)
        await kit.documents.write(ref("doubtful"), PAIR, b'{"a": 4}', own)
        read = await kit.documents.read(ref("doubtful"))
        assert read.verified is Verified.YES
        await kit.documents.write(ref("doubtful"), PAIR, b'{"a": 5}', read)


async def test_change_where_nothing_is_checked(portal: str, tmp_path: Path):
    """D2: not concerned is a mount with `verify = "off"`."""
    async with open_kit(portal, path=tmp_path, policy=VerifyPolicy.OFF) as kit:
        await kit.documents.write(ref("any"), PAIR, b"[1]", None)
        base = await kit.documents.read(ref("any"))
        assert base.verified is Verified.NO
        await kit.documents.write(ref("any"), PAIR, b"[2]", base)
        assert (await kit.documents.read(ref("any"))).data == b"[\n  2\n]\n"


async def test_short_texts_count_what_they_take(portal: str, tmp_path: Path):
    """D4: Each kept text counts 512 bytes more than its length."""
    async with open_kit(portal, path=tmp_path, cache=8 << 10) as kit:
        refs = [ref(f"short-{number}") for number in range(40)]
        for number, each in enumerate(refs):
            await kit.documents.write(each, PAIR, b"[%d]" % number, None)
        kept = [each for each in refs if kit.documents.recall(each) is not None]
        assert kept == refs[-len(kept) :]
        assert 10 <= len(kept) <= 16
