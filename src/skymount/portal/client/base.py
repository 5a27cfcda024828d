"""What a mount asks of one portal: descriptions of content, and its bytes by range. ``content``
verifies them.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from types import TracebackType
from typing import Self, Unpack

import trio

from skymount.concurrency import off_loop
from skymount.errors import (
    DisprovedError,
    HeadTooLongError,
    MalformedError,
    PortalError,
    UnavailableError,
)
from skymount.portal.http.client import Destination, HttpClient
from skymount.portal.http.response import StreamingResponse
from skymount.settings import ClientOptions, CommonOptions, PortalOptions
from skymount.wire import merkle
from skymount.wire.base_sector import Layout
from skymount.wire.dialect import Dialect
from skymount.wire.http import requests, responses
from skymount.wire.http.byte_range import ByteRange
from skymount.wire.metadata import METADATA_LIMIT
from skymount.wire.skylink import SECTOR_SIZE, Skylink

_PARTIAL_CONTENT = 206
_SAMPLE = 64 << 10  # bytes
_SERVER_ERROR = 500
_CLOSE_TIMEOUT = 2.0
_CACHED_REQUESTS = 64
_FIRST_CONNECTIONS = 2  # the base sector and the headers are requested at once


@dataclass(frozen=True, slots=True)
class ContentHead:
    """The headers of a skylink; None where the portal does not send one."""

    skylink: Skylink | None
    metadata: bytes | None
    size: int | None
    proof: bytes | None = None
    """Of where a v2 skylink leads (docs/wire.md 1.4); not verified."""
    failure: PortalError | None = None
    """Why the portal could not send headers."""


class PortalReader:
    """A client of one portal for reading content; an async context manager, safe for many tasks.

    Every method raises only `PortalError` for what happens on the wire.
    """

    options: PortalOptions
    http: HttpClient

    def __init__(self, portal_url: str = "", **options: Unpack[ClientOptions]) -> None:
        """Select a portal; an empty address is the default one. No network traffic."""
        self._select(PortalOptions.parse(portal_url, **options))

    @classmethod
    def of(cls, options: PortalOptions) -> Self:
        """Make a client from parsed options."""
        client = cls.__new__(cls)
        client._select(options)
        return client

    def _select(self, options: PortalOptions) -> None:
        self.options = options
        self.http = HttpClient(options.url, options)
        self._node: HttpClient | None = None

    def set_credentials(self, given: PortalOptions) -> None:
        """Use the api_key and headers of these options from the next request on."""
        self.options = replace(self.options, api_key=given.api_key, headers=given.headers)
        self.http.options = self.options
        if self._node is not None:
            self._node.options = self.options

    @property
    def url(self) -> str:
        """The portal's address, without credentials."""
        return self.options.url

    @property
    def dialect(self) -> Dialect:
        return self.options.dialect

    @property
    def node(self) -> HttpClient:
        """The connections to `node_url`, which keeps the skykeys; by default the portal's."""
        url = self.options.node_url
        if not url or url == self.url:
            return self.http
        if self._node is None:
            self._node = HttpClient(url, self.options)
        return self._node

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    async def __aenter__(self) -> Self:
        if not trio.lowlevel.in_trio_run():
            raise RuntimeError(
                "this client runs in trio; with asyncio use skymount.portal.SyncPortalClient"
            )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _CLOSE_TIMEOUT):
            await self.aclose()

    async def aclose(self) -> None:
        try:
            await self.http.aclose()
        finally:
            if self._node is not None:
                await self._node.aclose()

    @property
    def round_trip(self) -> float | None:
        """The lowest recent time from a request to its response, in seconds."""
        return self.http.round_trip

    async def connect(self, count: int = _FIRST_CONNECTIONS) -> None:
        """Open connections before they are needed."""
        await self.http.connect(count)

    async def head(self, skylink: Skylink) -> ContentHead:
        """Ask for the headers of a whole skylink, as the function `head`."""
        return await head(self.http, skylink, self.options)

    async def resolve(self, skylink: Skylink) -> ContentHead:
        """Ask where a v2 skylink leads, and for the proof (docs/wire.md 4.7)."""
        return await _resolve(self.http, skylink, self.options)

    async def raw_metadata(self, skylink: Skylink, **options: Unpack[CommonOptions]) -> bytes:
        """Fetch the stored metadata JSON from its endpoint (docs/wire.md 4.7)."""
        call = self.options.overridden(**options)
        request = requests.metadata(call.dialect, skylink)
        return (await self.http.fetch(request, METADATA_LIMIT, call)).body

    async def metadata_into(self, skylink: Skylink, into: Destination) -> None:
        """The same, but not into memory."""
        request = requests.metadata(self.dialect, skylink)
        await self.http.fetch_into(request, METADATA_LIMIT, into)

    async def base_sector(self, skylink: Skylink) -> bytes:
        """Fetch the used bytes of a base sector (docs/wire.md 4.7)."""
        request = requests.base_sector(self.dialect, skylink)
        answer = await self.http.fetch(request, SECTOR_SIZE)
        with self.http.parsing(request, self.options, answer.status):
            Layout.parse(answer.body)  # a server that is no portal may send anything
        return answer.body

    async def sample(self, skylink: Skylink) -> None:
        """Receive the beginning of some content and drop it."""
        part = ByteRange(0, _SAMPLE)
        async with self.http.open(content_request(skylink, ""), byte_range=part) as answer:
            left = _SAMPLE
            while left > 0 and (piece := await answer.receive()):
                left -= len(piece)

    async def sector(self, root: bytes, length: int) -> bytes:
        """Fetch the first `length` bytes of a sector, as `fetch_sector`."""
        return await fetch_sector(self.http, root, length, self.options)

    @asynccontextmanager
    async def open_range(
        self,
        skylink: Skylink,
        path: str,
        byte_range: ByteRange,
        size: int,
        *,
        speculative: Callable[[], bool] | None = None,
        **options: Unpack[CommonOptions],
    ) -> AsyncIterator[StreamingResponse]:
        """Open a byte range of a file of `size` bytes, or of the whole payload if `path` is empty.

        While `speculative` returns True other requests get a connection first.
        """
        call = self.options.overridden(**options)
        request = content_request(skylink, path)
        opened = self.http.open(request, call, byte_range=byte_range, speculative=speculative)
        async with opened as answer:
            check_range(answer, byte_range, size, named=bool(path))
            yield answer


async def fetch_sector(http: HttpClient, root: bytes, length: int, call: PortalOptions) -> bytes:
    """Fetch the first `length` bytes of the sector with that Merkle root (docs/wire.md 4.7).

    DisprovedError unless they have that root; the rest of the sector counts as zeros.
    """
    request = requests.sector(call.dialect, root, 0, length)
    answer = await http.fetch(request, length, call)
    data = answer.body
    if len(data) != length or root != await off_loop(partial(merkle.sector_root, data)):
        text = f"sector {root.hex()} is not the content"
        raise http.bad(request, call, text, answer.status, DisprovedError)
    return data


async def head(http: HttpClient, skylink: Skylink, call: PortalOptions) -> ContentHead:
    """Ask a portal for the headers of a whole skylink (endpoint 4).

    ``format=concat`` keeps a portal from redirecting to a default path, or failing without one. If
    the portal cannot send headers, a v2 skylink is resolved by its endpoint.
    """
    request = requests.download(skylink, method="HEAD", archive="concat")
    try:
        answer = await http.fetch(request, 0, call)
    except PortalError as error:
        if not is_without_headers(error):
            raise
        return await _without_headers(http, skylink, call, error)
    headers = answer.headers
    with http.parsing(request, call, answer.status):
        told = headers.get(call.dialect.skylink_header, "")
        found = Skylink(told) if told else None
    return ContentHead(
        found,
        headers.raw(call.dialect.metadata_header),
        headers.length,
        headers.raw(call.dialect.proof_header),
    )


def is_without_headers(error: PortalError) -> bool:
    """Whether a portal failed to send headers, so that other endpoints must be asked.

    Metadata may make headers too long for this client, or for a proxy, which then sends 502.
    """
    has_failed = isinstance(error, UnavailableError) and (error.status or 0) >= _SERVER_ERROR
    return has_failed or isinstance(error, HeadTooLongError)


async def _without_headers(
    http: HttpClient, skylink: Skylink, call: PortalOptions, failure: PortalError
) -> ContentHead:
    if skylink.version == 1:
        return ContentHead(None, None, None, failure=failure)
    return await _resolve(http, skylink, call)


async def _resolve(http: HttpClient, skylink: Skylink, call: PortalOptions) -> ContentHead:
    request = requests.resolve(call.dialect, skylink)
    answer = await http.fetch(request, responses.RESPONSE_LIMIT, call)
    with http.parsing(request, call, answer.status):
        found = responses.parse_resolved(answer.body)
    return ContentHead(found, None, None, answer.headers.raw(call.dialect.proof_header))


@lru_cache(_CACHED_REQUESTS)
def content_request(skylink: Skylink, path: str) -> requests.Request:
    """Return the request for a file, or for the whole payload."""
    archive = "" if path else "concat"
    return requests.download(skylink, path, archive=archive, with_metadata=False)


def check_range(answer: StreamingResponse, asked: ByteRange, size: int, *, named: bool) -> None:
    """BadContentError unless the answer holds exactly the range, of content of `size` bytes.

    The total size may be missing for a file that was `named`. For the whole payload it may not:
    it shows that this is not the start page, which a portal sends that does not know ``format``.
    """
    length = answer.headers.length
    if answer.status == _PARTIAL_CONTENT:
        text = answer.headers.get("content-range", "")
        try:
            given, total = ByteRange.parse_content_range(text)
        except MalformedError as error:
            raise answer.bad(str(error)) from None
        sizes = (None, size) if named else (size,)
        if given != asked or total not in sizes or length not in (None, len(asked)):
            raise answer.bad(f"asked for {asked.content_range(size)}, got {text[:80]}")
    elif asked != ByteRange(0, size) or length not in (None, size):
        raise answer.bad("the portal ignores byte ranges")
