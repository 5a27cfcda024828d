"""The registry calls of the client: get and verify an entry, sign and set one."""

from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Unpack

from skymount import values
from skymount.errors import (
    FrozenEntryError,
    MalformedError,
    NotFoundError,
    PortalError,
    RevisionConflictError,
    RolledBackError,
    WrongTypeError,
)
from skymount.portal.client import arguments
from skymount.portal.http.client import HttpClient
from skymount.portal.ledger.entries import EntryId
from skymount.portal.ledger.revision_marks import RevisionMarks, VerifiedEntry
from skymount.settings import CallOptions, CommonOptions, PortalOptions
from skymount.wire.http import requests, responses
from skymount.wire.registry_entry import MAX_REVISION, UPDATE_LIMIT, Entry, SignedEntry, entry_link

GET_TIMEOUT = 5
"""Seconds that the registry may look for an entry, by default; the SDKs use the same."""

_CONFLICT_WORDS = ("provided revision number", "enough pow")  # docs/wire.md 6.2, 6.3


@dataclass(frozen=True, slots=True)
class RegistryEntry:
    """One revision of an entry; MalformedError for a value out of range."""

    data_key: str
    """As the caller writes it, hashed or not."""
    data: bytes
    """At most 113 bytes. A text may be given too; it is encoded as UTF-8."""
    revision: int
    """0 to 2**64 - 1; must be higher than the current one."""

    def __post_init__(self) -> None:
        values.text(self.data_key, "data_key")
        object.__setattr__(self, "data", arguments.entry_data(self.data))
        arguments.revision(self.revision)

    @property
    def text(self) -> str:
        """The data as UTF-8 text; MalformedError when it is not."""
        try:
            return self.data.decode()
        except UnicodeDecodeError:
            raise MalformedError("the entry's data is not text") from None


@dataclass(frozen=True, slots=True)
class EntryResult:
    """What the registry has; both None when there is no such entry."""

    entry: RegistryEntry | None = None
    signature: str | None = None
    """128 hex digits, verified."""
    signed: SignedEntry | None = field(default=None, repr=False)
    """The same with everything that is signed."""


class Registry:
    """The registry of one portal."""

    def __init__(
        self, http: HttpClient, marks: RevisionMarks | None = None, *, doubts: bool = False
    ) -> None:
        """With `doubts` a 404 of a server that is no portal is an error, not an absent entry."""
        self._http = http
        self._believed = None if doubts else HTTPStatus.NOT_FOUND
        self.marks = marks or RevisionMarks()

    async def get_entry(
        self,
        public_key: str,
        data_key: str,
        *,
        timeout: float = GET_TIMEOUT,
        hashed_data_key_hex: bool = False,
        **options: Unpack[CallOptions],
    ) -> EntryResult:
        """Ask for an entry (endpoint 5) and verify its signature.

        `timeout` is how many seconds, at most 300, the portal may look. With `hashed_data_key_hex`
        the data key is a hash, in 64 hex digits. BadContentError for a wrong signature,
        RolledBackError when a later revision was seen before.
        """
        entry_id = entry_id_of(arguments.public_key(public_key), data_key, hashed_data_key_hex)
        call = self._http.options.overridden(**options)
        seen = await self.read(entry_id, call, timeout=timeout)
        if seen is None:
            return EntryResult()
        signed = seen.signed
        found = RegistryEntry(data_key, signed.entry.data, signed.entry.revision)
        return EntryResult(found, signed.signature.hex(), signed)

    async def read(
        self,
        entry_id: EntryId,
        call: PortalOptions,
        *,
        timeout: float = GET_TIMEOUT,
        named: bool = True,
    ) -> VerifiedEntry | None:
        """Ask for an entry, verified and not rolled back; None when there is none."""
        fetch = partial(self.fetch, entry_id.public_key, entry_id.tweak, call, timeout=timeout)
        return await self.marks.read(entry_id, fetch, self._http.url, named=named)

    async def fetch(
        self,
        public_key: bytes,
        tweak: bytes,
        call: PortalOptions,
        *,
        timeout: float = GET_TIMEOUT,
    ) -> SignedEntry | None:
        """Ask for an entry, verified, of any revision; None when there is none."""
        limit = arguments.seconds(timeout, arguments.REGISTRY_TIMEOUT_LIMIT, "timeout")
        call = call.with_extra_time(limit)
        request = requests.registry_get(call.dialect, public_key, tweak, limit)
        try:
            answer = await self._http.fetch(request, UPDATE_LIMIT, call, believed=self._believed)
        except NotFoundError as error:
            if error.status != HTTPStatus.NOT_FOUND:  # only 404 means none in the contract
                raise
            return None
        with self._http.parsing(request, call, answer.status):
            return SignedEntry.parse_answer(answer.body, public_key, tweak).verify()

    async def next_revision(
        self,
        public_key: str,
        data_key: str,
        *,
        hashed_data_key_hex: bool = False,
        **options: Unpack[CommonOptions],
    ) -> int:
        """Return a revision above all that were seen; 0 if there is no entry yet.

        FrozenEntryError when the current revision is the last one possible.
        """
        entry_id = entry_id_of(arguments.public_key(public_key), data_key, hashed_data_key_hex)
        return await self.revision_after(entry_id, self._http.options.overridden(**options))

    async def revision_after(self, entry_id: EntryId, call: PortalOptions) -> int:
        with suppress(RolledBackError):  # the owner's new revision corrects it
            await self.read(entry_id, call)
        mark = await self.marks.find(entry_id)
        if mark is None:
            return 0
        if mark.revision == MAX_REVISION:
            raise FrozenEntryError(
                "Current entry already has maximum allowed revision, could not update the entry"
            )
        return mark.revision + 1

    async def set_entry(
        self,
        private_key: str,
        entry: RegistryEntry,
        *,
        hashed_data_key_hex: bool = False,
        **options: Unpack[CommonOptions],
    ) -> None:
        """Sign an entry and set it (endpoint 6).

        RevisionConflictError when the registry has the same or a higher revision.
        """
        pair = arguments.key_pair(private_key)
        if not isinstance(entry, RegistryEntry):
            raise WrongTypeError(f"entry must be a RegistryEntry, not {type(entry).__name__}")
        entry_id = entry_id_of(pair.public_key, entry.data_key, hashed_data_key_hex)
        signed = Entry(entry_id.tweak, entry.data, entry.revision).sign(pair.private_key)
        await self.set(entry_id, signed, self._http.options.overridden(**options))

    async def set(self, entry_id: EntryId, signed: SignedEntry, call: PortalOptions) -> None:
        await self.post(signed, call)
        await self.marks.record(entry_id, signed)

    async def post(self, signed: SignedEntry, call: PortalOptions | None = None) -> None:
        """Post a signed entry; it is sent again when no response came.

        If that is refused for its revision, the first attempt may have stored the entry, so the
        registry is asked for it. Such a refusal is recognized by its words, because later portals
        send a status of 500 (docs/wire.md 6.2).
        """
        call = call or self._http.options
        request = requests.registry_post(call.dialect)
        try:
            answer = await self._http.fetch(
                request, responses.RESPONSE_LIMIT, call, content=signed.encode_update()
            )
            with self._http.parsing(request, call, answer.status):
                if answer.body:  # of somebody else, who has not stored it
                    raise MalformedError("the answer to a registry update is not empty")
        except PortalError as error:
            if not any(words in error.message for words in _CONFLICT_WORDS):
                raise
            if error.attempts > 1:
                stored = await self.fetch(signed.public_key, signed.entry.tweak, call)
                if stored == signed:
                    return
            raise RevisionConflictError(
                error.message, status=error.status, method=error.method, url=error.url
            ) from None

    def get_entry_url(
        self,
        public_key: str,
        data_key: str,
        *,
        hashed_data_key_hex: bool = False,
        **options: Unpack[CommonOptions],
    ) -> str:
        """Return the URL that answers with the entry."""
        entry_id = entry_id_of(arguments.public_key(public_key), data_key, hashed_data_key_hex)
        call = self._http.options.overridden(**options)
        request = requests.registry_get(call.dialect, entry_id.public_key, entry_id.tweak)
        return self._http.url + request.target

    def get_entry_link(
        self,
        public_key: str,
        data_key: str,
        *,
        hashed_data_key_hex: bool = False,
        **options: Unpack[CommonOptions],
    ) -> str:
        """Return ``<scheme>://<v2 skylink>``, which resolves to what the entry points to."""
        entry_id = entry_id_of(arguments.public_key(public_key), data_key, hashed_data_key_hex)
        call = self._http.options.overridden(**options)
        return call.dialect.link(entry_link(entry_id.public_key, entry_id.tweak))


def entry_id_of(public_key: bytes, data_key: str, hashed: bool) -> EntryId:
    """Return the id of an entry from the arguments of a call."""
    return EntryId(public_key, arguments.tweak(data_key, hashed), None if hashed else data_key)
