"""SkyDB: JSON documents in uploads, whose skylinks are in registry entries (docs/wire.md 10)."""

from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Unpack
from weakref import WeakValueDictionary

import trio

from skymount.concurrency import run_all
from skymount.errors import MalformedError, NoDocumentError, PortalError
from skymount.policies import Verified
from skymount.portal.client import arguments
from skymount.portal.client.registry import GET_TIMEOUT, Registry, entry_id_of
from skymount.portal.client.upload import UploadBody, send
from skymount.portal.client.verification import ContentProofs
from skymount.portal.http.client import HttpClient
from skymount.portal.http.request import Call
from skymount.portal.ledger.entries import EntryId
from skymount.settings import CallOptions, CommonOptions, PortalOptions
from skymount.wire.http import requests
from skymount.wire.registry_entry import DELETED, Entry, linked_skylink
from skymount.wire.skydb_document import (
    DOCUMENT_LIMIT,
    decode_document,
    document_name,
    encode_document,
)
from skymount.wire.skylink import Skylink


@dataclass(frozen=True, slots=True)
class JSONResult:
    """A document; everything is None when there is none, or it was deleted."""

    data: Any = None
    revision: int | None = None
    """Of the registry entry; known for deleted documents too."""
    data_link: str | None = None
    """``<scheme>://<skylink>`` of the upload that holds it."""
    verified: Verified | None = field(default=None, compare=False)
    """Whether a document that was read was compared with `data_link`: ``yes`` or ``no``."""


class SkyDB:
    """The JSON documents at one portal."""

    def __init__(self, http: HttpClient, registry: Registry, proofs: ContentProofs) -> None:
        self._http = http
        self._proofs = proofs
        self._registry = registry
        self._locks: WeakValueDictionary[EntryId, trio.Lock] = WeakValueDictionary()

    async def get_json(
        self,
        public_key: str,
        data_key: str,
        *,
        timeout: float = GET_TIMEOUT,
        hashed_data_key_hex: bool = False,
        **options: Unpack[CallOptions],
    ) -> JSONResult:
        """Read a document; `timeout` is how many seconds, at most 300, the registry may look.

        NoDocumentError when the entry leads to something else.
        """
        entry_id = entry_id_of(arguments.public_key(public_key), data_key, hashed_data_key_hex)
        call = self._http.options.overridden(**options)
        seen = await self._registry.read(entry_id, call, timeout=timeout)
        if seen is None:
            return JSONResult()
        entry = seen.signed.entry
        if entry.is_deleted:
            return JSONResult(revision=entry.revision)
        skylink = linked_skylink(entry.data)
        if skylink is None:
            raise self._bad_answer(
                "Expected returned entry data to be a skylink of length 34 bytes "
                f"(or its 46 characters), got {len(entry.data)} bytes",
                requests.registry_get(call.dialect, entry_id.public_key, entry_id.tweak),
                call,
            )
        document, verified = await self._download(skylink, data_key, call)
        return JSONResult(document, entry.revision, call.dialect.link(skylink), verified)

    async def _download(
        self, skylink: Skylink, data_key: str, call: PortalOptions
    ) -> tuple[Any, Verified]:
        target, check, _ = await self._proofs.begin(skylink, "", call)
        request = requests.download(target, with_metadata=False)
        answer = await self._http.fetch(request, DOCUMENT_LIMIT, call)
        with self._http.parsing(request, call, answer.status):
            await trio.to_thread.run_sync(check.update, answer.body)
            await check.finish()
        try:
            return decode_document(answer.body), check.verified
        except MalformedError:
            text = f"File data for the entry at data key '{data_key}' is not JSON."
            raise self._bad_answer(text, request, call) from None

    def _bad_answer(self, text: str, request: requests.Request, call: PortalOptions) -> PortalError:
        return Call(request, call, self._http.url).error(NoDocumentError, text, HTTPStatus.OK)

    async def set_json(
        self,
        private_key: str,
        data_key: str,
        document: object,
        *,
        revision: int | None = None,
        hashed_data_key_hex: bool = False,
        **options: Unpack[CommonOptions],
    ) -> JSONResult:
        """Store a document: upload it, then point the entry at it.

        Without `revision` the entry gets the next one, which is asked for during the upload.
        Returns what was stored. FrozenEntryError when the entry has the last revision possible.

        The document is encoded when the call begins. Calls of one client for one entry run in the
        order in which they began. When two clients write at once, one may get a
        RevisionConflictError, or the other's document may replace its own at the same revision.
        """
        pair = arguments.key_pair(private_key)
        entry_id = entry_id_of(pair.public_key, data_key, hashed_data_key_hex)
        wanted = None if revision is None else arguments.revision(revision)
        call = self._http.options.overridden(**options)
        name = document_name(data_key, hashed_data_key_hex)
        body = UploadBody.of_document(encode_document(document), name)
        skylink: Skylink | None = None

        async def upload() -> None:
            nonlocal skylink
            skylink = (await send(self._http, body, call)).skylink

        async def find_revision() -> None:
            nonlocal wanted
            if wanted is None:
                wanted = await self._registry.revision_after(entry_id, call)

        async with self._lock(entry_id):
            await run_all(upload, find_revision)
            assert skylink is not None and wanted is not None
            signed = Entry(entry_id.tweak, bytes(skylink), wanted).sign(pair.private_key)
            await self._registry.set(entry_id, signed, call)
        return JSONResult(document, wanted, call.dialect.link(skylink))

    async def delete_json(
        self,
        private_key: str,
        data_key: str,
        *,
        hashed_data_key_hex: bool = False,
        **options: Unpack[CommonOptions],
    ) -> None:
        """Delete a document: its entry gets 34 zero bytes (docs/wire.md 6.6)."""
        pair = arguments.key_pair(private_key)
        entry_id = entry_id_of(pair.public_key, data_key, hashed_data_key_hex)
        call = self._http.options.overridden(**options)
        async with self._lock(entry_id):
            revision = await self._registry.revision_after(entry_id, call)
            signed = Entry(entry_id.tweak, DELETED, revision).sign(pair.private_key)
            await self._registry.set(entry_id, signed, call)

    def _lock(self, entry_id: EntryId) -> trio.Lock:
        """Return the lock for finding an entry's next revision and setting it.

        It exists as long as somebody holds it or waits for it.
        """
        return self._locks.setdefault(entry_id, trio.Lock())
