"""The page of names and registry entries: what each leads to."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import trio

from skymount.errors import MalformedError, StorageError
from skymount.server.http.forms import Params, parse_query
from skymount.server.http.messages import Request, Response
from skymount.server.http_error import HttpError, refuse_malformed
from skymount.server.pages.home import HomePage
from skymount.server.pages.listing import page_number
from skymount.server.pages.rendering import render_page
from skymount.server.storage.interfaces import Entries, Names
from skymount.server.storage.zone_file import Zone
from skymount.wire.hns import RegistryRecord, SkylinkRecord
from skymount.wire.registry_entry import (
    ALGORITHM,
    SignedEntry,
    linked_skylink,
    parse_public_key,
    parse_tweak,
)

ROWS = 50

PATH = "/-/registry"


@dataclass(frozen=True, slots=True)
class ShownEntry:
    """A registry entry, or the place of one."""

    link: str  # its v2 skylink
    tweak: str = ""
    revision: int | None = None
    target: str = ""  # the skylink that it leads to
    text: str = ""  # its data, if that is no skylink
    is_deleted: bool = False

    @classmethod
    def of(cls, signed: SignedEntry) -> "ShownEntry":
        entry = signed.entry
        target = None if entry.is_deleted else linked_skylink(entry.data)
        text = ""
        if target is None and not entry.is_deleted:
            text = entry.data.decode(errors="backslashreplace")
        return cls(
            str(signed.link),
            entry.tweak.hex(),
            entry.revision,
            str(target or ""),
            text,
            entry.is_deleted,
        )


@dataclass(frozen=True, slots=True)
class ShownName:
    """A name, and what it leads to."""

    domain: str
    value: str
    target: str = ""  # of a skylink
    path: str = ""
    entry: ShownEntry | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class RegistryPage:
    """The page of one portal."""

    home: HomePage
    entries: Entries
    zone: Names

    async def get(self, request: Request) -> Response:
        if not request.asker.takes_page:
            raise HttpError(404, "Not Found")
        session = await self.home.sessions.find(request)
        if session is None:
            return await self.home.ask_password(request)
        query = parse_query(request.query)
        shown = {"token": self.home.sessions.token(session), "signed_in": bool(session)}
        if key := query.get("key", "").strip():
            return await self._key(request, query, key, shown)
        return await self._names(request, query, shown)

    async def _key(
        self, request: Request, query: Params, key: str, shown: dict[str, Any]
    ) -> Response:
        with refuse_malformed(400):
            public_key = parse_public_key(key)
            after = parse_tweak(query["after"]) if query.get("after") else b""
        found = await self.entries.entries_of(public_key, after, ROWS + 1)
        more = ""
        if len(found) > ROWS:
            last = found[ROWS - 1].entry.tweak.hex()
            more = f"{PATH}?{urlencode({'key': public_key.hex(), 'after': last})}"
        return await render_page(
            request,
            "key.html",
            key=f"{ALGORITHM}:{public_key.hex()}",
            entries=[ShownEntry.of(signed) for signed in found[:ROWS]],
            more=more,
            **shown,
        )

    async def _names(self, request: Request, query: Params, shown: dict[str, Any]) -> Response:
        search = query.get("q", "")[:200].strip()
        number = page_number(query.get("page", ""))
        problem, domains, names = "", list[str](), list[ShownName]()
        try:
            zone = await trio.to_thread.run_sync(self.zone.current)
            domains = [each for each in zone.domains if search.casefold() in each]
            start = (number - 1) * ROWS
            names = [await self._name(zone, each) for each in domains[start : start + ROWS]]
        except StorageError as error:
            problem = str(error)
        with refuse_malformed(400):
            after = parse_public_key(query["after"]) if query.get("after") else b""
        keys = await self.entries.keys(after, ROWS + 2)
        more = ""
        if len(keys) > ROWS:
            more = f"{PATH}?{urlencode({'q': search, 'after': keys[ROWS - 1].hex()})}#keys"
        return await render_page(
            request,
            "registry.html",
            names=names,
            total=len(domains),
            number=number,
            pages=max(1, -(-len(domains) // ROWS)),
            search=search,
            problem=problem,
            keys=[f"{ALGORITHM}:{key.hex()}" for key in keys[:ROWS]],
            more=more,
            **shown,
        )

    async def _name(self, zone: Zone, domain: str) -> ShownName:
        value = zone.value(domain)
        try:
            record = zone.find(domain)
        except MalformedError as error:
            return ShownName(domain, value, problem=str(error))
        if isinstance(record, SkylinkRecord):
            return ShownName(domain, value, str(record.skylink), record.path)
        assert isinstance(record, RegistryRecord)
        found = await self.entries.find(record.skylink.root)
        link = str(record.skylink)
        entry = ShownEntry(link) if found is None else ShownEntry.of(found)
        return ShownName(domain, value, entry=entry)
