"""Owns SkyDB, JSON documents of any size behind registry entries (wire notes 10).

An entry's data is the skylink of an upload that holds the document.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Unpack
from weakref import WeakValueDictionary

import trio

from skymount.concurrency import run_all
from skymount.errors import MalformedError, NoDocumentError, PortalError
from skymount.portal.client import arguments
from skymount.portal.client.registry import GET_TIMEOUT, Registry
from skymount.portal.client.upload import FILE_FIELD, UploadBody, send
from skymount.portal.client.upload_source import UploadSource
from skymount.portal.client.verification import ContentProofs
from skymount.portal.http.client import HttpClient
from skymount.portal.http.request import Call
from skymount.portal.options import CallOptions, CommonOptions, PortalOptions
from skymount.portal.registry.revision_marks import EntryId
from skymount.portal.verify_policy import Verified
from skymount.wire import requests
from skymount.wire.registry_entry import DELETED, Entry, linked_skylink
from skymount.wire.skydb_document import (
    DOCUMENT_LIMIT,
    decode_document,
    document_name,
    encode_document,
)
from skymount.wire.skylink import Skylink

_Writer = tuple[bytes, bytes]  # public key and tweak of an entry


@dataclass(frozen=True, slots=True)
class JSONResult:
    """A document; everything is None when there is none, or it was deleted."""

    data: Any = None
    revision: int | None = None
    """Of the registry entry; known for deleted documents too."""
    data_link: str | None = None
    """``<scheme>://<skylink>`` of the upload that holds it."""
    verified: Verified | None = field(default=None, compare=False)
    """How far a document that was read was compared with that: ``yes`` or ``no``."""


class SkyDB:
    """The JSON documents that one portal's registry leads to."""

    def __init__(self, transport: HttpClient, registry: Registry, proofs: ContentProofs) -> None:
        self._transport = transport
        self._proofs = proofs
        self._registry = registry
        self._turns: WeakValueDictionary[_Writer, trio.Lock] = WeakValueDictionary()

    async def get_json(
        self,
        public_key: str,
        data_key: str,
        *,
        timeout: float = GET_TIMEOUT,
        hashed_data_key_hex: bool = False,
        **options: Unpack[CallOptions],
    ) -> JSONResult:
        """Read a document; `timeout` is seconds for the registry, at most 300.

        NoDocumentError when the entry leads to something else.
        """
        key = arguments.public_key(public_key)
        tweak = arguments.tweak(data_key, hashed_data_key_hex)
        call = self._transport.options.overridden(**options)
        ref = _ref(key, tweak, data_key, hashed_data_key_hex)
        seen = await self._registry.read(ref, call, timeout=timeout)
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
                requests.registry_get(call.dialect, key, tweak),
                call,
            )
        document, verified = await self._download(skylink, data_key, call)
        return JSONResult(document, entry.revision, call.dialect.link(skylink), verified)

    async def _download(
        self, skylink: Skylink, data_key: str, call: PortalOptions
    ) -> tuple[Any, Verified]:
        target, check, _ = await self._proofs.begin(skylink, "", call)
        request = requests.download(target, with_metadata=False)
        answer = await self._transport.fetch(request, DOCUMENT_LIMIT, call)
        try:
            await trio.to_thread.run_sync(check.update, answer.body)
            await check.finish()
        except MalformedError as error:
            raise self._transport.bad(request, call, str(error), answer.status) from None
        try:
            return decode_document(answer.body), check.verified
        except MalformedError:
            text = f"File data for the entry at data key '{data_key}' is not JSON."
            raise self._bad_answer(text, request, call) from None

    def _bad_answer(self, text: str, request: requests.Request, call: PortalOptions) -> PortalError:
        return Call(request, call, self._transport.url).error(NoDocumentError, text, HTTPStatus.OK)

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

        Without `revision` the entry gets the next one, asked for while the upload runs. Returns
        what was stored. FrozenEntryError when the entry has the last revision there is.

        The document is as it was when the call began. Calls of one client for one entry are done
        one after another, in the order in which they began. Of two clients at once one may get a
        RevisionConflictError, or see its document replaced by the other's under one revision.
        """
        pair = arguments.key_pair(private_key)
        tweak = arguments.tweak(data_key, hashed_data_key_hex)
        wanted = None if revision is None else arguments.revision(revision)
        call = self._transport.options.overridden(**options)
        body = encode_document(document)
        name = document_name(data_key, hashed_data_key_hex)
        ref = _ref(pair.public_key, tweak, data_key, hashed_data_key_hex)
        skylink: Skylink | None = None

        async def upload() -> None:
            nonlocal skylink
            skylink = await self._upload(body, name, call)

        async def ask() -> None:
            nonlocal wanted
            wanted = await self._registry.following(ref, call)

        async with self._turn(pair.public_key, tweak):
            if wanted is None:
                await run_all(upload, ask)
            else:
                await upload()
            assert skylink is not None and wanted is not None
            signed = Entry(tweak, bytes(skylink), wanted).sign(pair.private_key)
            await self._registry.set(ref, signed, call)
        return JSONResult(document, wanted, call.dialect.link(skylink))

    async def delete_json(
        self,
        private_key: str,
        data_key: str,
        *,
        hashed_data_key_hex: bool = False,
        **options: Unpack[CommonOptions],
    ) -> None:
        """Delete a document: its entry gets 34 zero bytes (wire notes 6.6)."""
        pair = arguments.key_pair(private_key)
        tweak = arguments.tweak(data_key, hashed_data_key_hex)
        call = self._transport.options.overridden(**options)
        async with self._turn(pair.public_key, tweak):
            ref = _ref(pair.public_key, tweak, data_key, hashed_data_key_hex)
            revision = await self._registry.following(ref, call)
            signed = Entry(tweak, DELETED, revision).sign(pair.private_key)
            await self._registry.set(ref, signed, call)

    @asynccontextmanager
    async def _turn(self, public_key: bytes, tweak: bytes) -> AsyncIterator[None]:
        """Wait until nobody else in this client asks for an entry's next revision to set it.

        A lock lives as long as somebody holds or awaits it.
        """
        turn = self._turns.setdefault((public_key, tweak), trio.Lock())
        async with turn:
            yield

    async def _upload(self, document: bytes, name: str, call: PortalOptions) -> Skylink:
        source = UploadSource.of_bytes(document, name, contenttype="application/json")
        return (await send(self._transport, UploadBody([source], field=FILE_FIELD), call)).skylink


def _ref(public_key: bytes, tweak: bytes, data_key: str, hashed: bool) -> EntryId:
    return EntryId(public_key, tweak, None if hashed else data_key)
