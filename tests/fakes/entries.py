"""Registries in memory that misbehave as told, behind the client library's real code for
entries: no sockets.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import cast
from urllib.parse import parse_qs, urlsplit

import trio
import trio.testing

from skymount.errors import (
    AccessDeniedError,
    MalformedError,
    NotFoundError,
    PortalTimeoutError,
    RequestRefusedError,
    RevisionError,
    UnavailableError,
)
from skymount.portal.client.base import PortalReader
from skymount.portal.failover.portals import Portals
from skymount.portal.http.client import HttpClient
from skymount.portal.http.response import Headers, Response
from skymount.settings import PortalOptions
from skymount.wire.http.requests import Request
from skymount.wire.registry_entry import (
    MAX_REVISION,
    Entry,
    SignedEntry,
    check_update,
    parse_public_key,
    parse_tweak,
)

Key = tuple[bytes, bytes]


class FakeRegistry(HttpClient):
    """One portal's registry. `faults` are taken from the front, one for each request:

    "" none; "down" fails; "deaf" fails if it is a post; "lost" is done, and then fails; "twice" is
    done twice, and the second answer is given; "stale" answers with the entry before; "forged"
    changes the data; "missing", "denied" and "slow" refuse; "hang" never answers, "slowly" when all
    else waits; a number is seconds of delay.
    """

    def __init__(self, number: int = 0, *, read_only: bool = False) -> None:
        url = f"http://p{number}.invalid"
        super().__init__(url, PortalOptions.parse(url, retries=0, read_only=read_only))
        self.stored: dict[Key, list[SignedEntry]] = {}
        self.ever: list[SignedEntry] = []
        """All that was ever stored."""
        self.faults: list[str | float] = []
        self.always: str = ""
        """The fault of every request for which there is no other."""
        self.before: Callable[[], None] = lambda: None
        """Called before each request is handled."""
        self.gets = self.requests = 0
        self.posts: list[SignedEntry] = []
        """All that came, whatever became of it."""
        self.running = self.most = 0

    def set(self, signed: SignedEntry) -> None:
        """Take an entry, as from somebody else; RevisionError when it is refused."""
        key = (signed.public_key, signed.entry.tweak)
        history = self.stored.setdefault(key, [])
        check_update(history[-1].entry if history else None, signed.verify().entry)
        history.append(signed)
        self.ever.append(signed)

    def forget(self, public_key: bytes, tweak: bytes) -> None:
        self.stored.pop((public_key, tweak), None)

    def latest(self, public_key: bytes, tweak: bytes) -> SignedEntry | None:
        history = self.stored.get((public_key, tweak))
        return history[-1] if history else None

    async def fetch(
        self,
        request: Request,
        limit: int,
        options: PortalOptions | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
        believed: int | None = None,
    ) -> Response:
        """Handle a request, as `HttpClient.fetch`."""
        fault = self.faults.pop(0) if self.faults else self.always
        self.requests += 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await trio.lowlevel.checkpoint()
            self.before()
            await trio.lowlevel.checkpoint()
            if fault == "slowly":
                await trio.testing.wait_all_tasks_blocked()
            if isinstance(fault, float):
                await trio.sleep(fault)
            return await self._handle(request, content, fault)
        finally:
            self.running -= 1

    async def _handle(
        self, request: Request, content: bytes | None, fault: str | float
    ) -> Response:
        if fault == "down" or (fault == "deaf" and content is not None):
            raise UnavailableError("down", url=self.url)
        if fault == "slow":
            raise PortalTimeoutError("no answer in time", url=self.url)
        if fault == "denied":
            raise AccessDeniedError("denied", status=403, url=self.url)
        if fault == "hang":
            await trio.sleep_forever()
        if content is not None:
            return self._post(SignedEntry.parse_update(content), fault)
        return self._get(request, fault)

    def _get(self, request: Request, fault: str | float) -> Response:
        self.gets += 1
        query = parse_qs(urlsplit(request.target).query)
        key = (parse_public_key(query["publickey"][0]), parse_tweak(query["datakey"][0]))
        history = self.stored.get(key, [])
        if fault == "lost":
            raise UnavailableError("the answer is lost", url=self.url)
        if fault == "missing" or not history or (fault == "stale" and len(history) == 1):
            raise NotFoundError("registry entry not found", status=404, url=self.url)
        found = history[-2 if fault == "stale" else -1]
        if fault == "forged":
            found = replace(found, entry=forged(found.entry))
        return Response(200, Headers(), found.encode_answer())

    def _post(self, signed: SignedEntry, fault: str | float) -> Response:
        self.posts.append(signed)
        for _ in range(2 if fault == "twice" else 1):
            try:
                self.set(signed)
            except (RevisionError, MalformedError) as error:
                raise RequestRefusedError(
                    f"Unable to update the registry: {error}", status=400, url=self.url
                ) from None
        if fault == "lost":
            raise UnavailableError("the answer is lost", url=self.url)
        return Response(204, Headers(), b"")


def forged(entry: Entry) -> Entry:
    """Return an entry of another content and a higher revision."""
    higher = min(entry.revision + 7, MAX_REVISION)
    return replace(entry, data=b"forged " + entry.data[:50], revision=higher)


class _Reader:
    """What `Entries` uses of a `PortalReader`."""

    def __init__(self, registry: FakeRegistry) -> None:
        self.http = registry
        self.url = registry.url


def portals_of(registries: Sequence[FakeRegistry]) -> Portals:
    """Return portals with these registries, in this order of preference."""
    return Portals([cast(PortalReader, _Reader(each)) for each in registries])
