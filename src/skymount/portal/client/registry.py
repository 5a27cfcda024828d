"""Owns the registry as a client uses it: ask for an entry, verify it, sign and set one.

The bytes, hashes and signatures of entries are `wire.registry_entry`'s.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Unpack

from skymount.errors import (
    FrozenEntryError,
    MalformedError,
    NotFoundError,
    PortalError,
    RevisionConflictError,
    RolledBackError,
    WrongTypeError,
)
from skymount.portal import validation
from skymount.portal.client import arguments
from skymount.portal.http.client import HttpClient
from skymount.portal.options import CallOptions, CommonOptions, PortalOptions
from skymount.portal.registry.revision_marks import EntryId, RevisionMarks, VerifiedEntry
from skymount.wire import requests, responses
from skymount.wire.registry_entry import MAX_REVISION, UPDATE_LIMIT, Entry, SignedEntry, entry_link

GET_TIMEOUT = 5
"""Seconds that the registry may look for an entry, unless told otherwise: the SDKs' choice."""

_CONFLICTS = ("provided revision number", "enough pow")  # in a refusal (wire notes 6.2, 6.3)


@dataclass(frozen=True, slots=True)
class RegistryEntry:
    """What an owner says in one revision of an entry; a value out of range makes no entry."""

    data_key: str
    """As the caller writes it, hashed or not."""
    data: bytes
    """At most 113 bytes. May be given as a text, which stands for its UTF-8."""
    revision: int
    """0 to 2**64 - 1; must be higher than the one that is there."""

    def __post_init__(self) -> None:
        validation.text(self.data_key, "data_key")
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
    """The same with everything that was signed."""


class Registry:
    """The registry of one portal."""

    def __init__(self, transport: HttpClient, marks: RevisionMarks | None = None) -> None:
        """Without `marks` nothing was seen before."""
        self._transport = transport
        self.marks = marks or RevisionMarks()
        """What was seen before, of entries that come in another way too."""

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

        `timeout` is seconds, at most 300, that the portal may look. With `hashed_data_key_hex` the
        data key is 64 hex digits that stand on the wire as they are. An absent entry gives None
        twice, and every other failure raises: BadContentError when the signature does not fit,
        RolledBackError when a later entry was seen before.
        """
        ref = _ref(arguments.public_key(public_key), data_key, hashed_data_key_hex)
        call = self._transport.options.overridden(**options)
        seen = await self.read(ref, call, timeout=timeout)
        if seen is None:
            return EntryResult()
        signed = seen.signed
        found = RegistryEntry(data_key, signed.entry.data, signed.entry.revision)
        return EntryResult(found, signed.signature.hex(), signed)

    async def read(
        self, ref: EntryId, call: PortalOptions, *, timeout: float = GET_TIMEOUT, named: bool = True
    ) -> VerifiedEntry | None:
        """Ask for an entry: verified, and not rolled back; None when absent."""
        fetch = partial(self.fetch, ref.public_key, ref.tweak, call, timeout=timeout)
        return await self.marks.read(ref, fetch, self._transport.url, named=named)

    async def fetch(
        self,
        public_key: bytes,
        tweak: bytes,
        call: PortalOptions,
        *,
        timeout: float = GET_TIMEOUT,
    ) -> SignedEntry | None:
        """Ask for what a portal has: verified, None when absent, however old."""
        limit = arguments.seconds(timeout, arguments.REGISTRY_TIMEOUT_LIMIT, "timeout")
        call = call.with_extra_time(limit)
        request = requests.registry_get(call.dialect, public_key, tweak, limit)
        try:
            answer = await self._transport.fetch(request, UPDATE_LIMIT, call)
        except NotFoundError as error:
            if error.status != HTTPStatus.NOT_FOUND:  # the contract has null values for 404 alone
                raise
            return None
        try:
            return SignedEntry.parse_answer(answer.body, public_key, tweak).verify()
        except MalformedError as error:
            raise self._transport.bad(request, call, str(error), answer.status) from None

    async def next_revision(
        self,
        public_key: str,
        data_key: str,
        *,
        hashed_data_key_hex: bool = False,
        **options: Unpack[CommonOptions],
    ) -> int:
        """Ask for the revision that a new entry must have: 0 when there is none yet.

        It is above all that was seen, whatever the portal has now. FrozenEntryError when there is
        no such revision.
        """
        ref = _ref(arguments.public_key(public_key), data_key, hashed_data_key_hex)
        return await self.following(ref, self._transport.options.overridden(**options))

    async def following(self, ref: EntryId, call: PortalOptions) -> int:
        """As `next_revision`."""
        with suppress(RolledBackError):  # the owner sets it right
            await self.read(ref, call)
        mark = await self.marks.find(ref)
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
        ref = _ref(pair.public_key, entry.data_key, hashed_data_key_hex)
        made = Entry(ref.tweak, entry.data, entry.revision)
        call = self._transport.options.overridden(**options)
        await self.set(ref, made.sign(pair.private_key), call)

    async def set(self, ref: EntryId, signed: SignedEntry, call: PortalOptions) -> None:
        """As `set_entry`, of an entry that is signed already."""
        await self.post(signed, call)
        await self.marks.record(ref, signed)

    async def post(self, signed: SignedEntry, call: PortalOptions | None = None) -> None:
        """Post an entry that is signed already.

        Sent again when no answer came. A refusal because of its revision then counts as done if
        the registry holds this very entry: the answer that was lost had said so. A refusal is
        known by its words, because later portals give it a status of 500 (wire notes 6.2).
        """
        call = call or self._transport.options
        request = requests.registry_post(call.dialect)
        try:
            await self._transport.fetch(
                request, responses.RESPONSE_LIMIT, call, content=signed.encode_update()
            )
        except PortalError as error:
            if not any(words in error.message for words in _CONFLICTS):
                raise
            if error.attempts > 1 and await self._holds(signed, call):
                return
            raise RevisionConflictError(
                error.message, status=error.status, method=error.method, url=error.url
            ) from None

    async def _holds(self, signed: SignedEntry, call: PortalOptions) -> bool:
        return await self.fetch(signed.public_key, signed.entry.tweak, call) == signed

    def get_entry_url(
        self,
        public_key: str,
        data_key: str,
        *,
        hashed_data_key_hex: bool = False,
        **options: Unpack[CommonOptions],
    ) -> str:
        """Return the URL that answers with the entry."""
        key = arguments.public_key(public_key)
        tweak = arguments.tweak(data_key, hashed_data_key_hex)
        call = self._transport.options.overridden(**options)
        request = requests.registry_get(call.dialect, key, tweak)
        return self._transport.url + request.target

    def get_entry_link(
        self,
        public_key: str,
        data_key: str,
        *,
        hashed_data_key_hex: bool = False,
        **options: Unpack[CommonOptions],
    ) -> str:
        """Return ``<scheme>://<v2 skylink>``, which leads to whatever the entry points to."""
        key = arguments.public_key(public_key)
        tweak = arguments.tweak(data_key, hashed_data_key_hex)
        call = self._transport.options.overridden(**options)
        return call.dialect.link(entry_link(key, tweak))


def _ref(public_key: bytes, data_key: str, hashed: bool) -> EntryId:
    return EntryId(public_key, arguments.tweak(data_key, hashed), None if hashed else data_key)
