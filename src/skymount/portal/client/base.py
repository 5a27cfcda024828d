"""Owns what a mount asks of one portal: descriptions of content, and its bytes by range.

``portal.http`` connects, follows redirects, repeats and reports failures. ``content`` checks the
bytes.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from types import TracebackType
from typing import Self, Unpack

import trio

from skymount.concurrency import off_loop
from skymount.errors import HeadTooLongError, MalformedError, PortalError, UnavailableError
from skymount.portal.http.client import Destination, HttpClient
from skymount.portal.http.response import StreamingResponse
from skymount.portal.options import ClientOptions, CommonOptions, PortalOptions
from skymount.wire import merkle, requests, responses
from skymount.wire.byte_range import ByteRange
from skymount.wire.dialect import Dialect
from skymount.wire.metadata import METADATA_LIMIT
from skymount.wire.skylink import SECTOR_SIZE, Skylink

_PARTIAL_CONTENT = 206
_FAILED = 500  # and above: the portal itself
_CLOSING = 2.0  # seconds that closing all connections may take
_ADDRESSES = 64  # of content that is asked for range by range
_FIRST_CONNECTIONS = 2  # one for the base sector, one for the headers: they are asked for at once


@dataclass(frozen=True, slots=True)
class ContentHead:
    """What a HEAD request on a skylink tells; None or empty where the portal says nothing."""

    skylink: Skylink | None
    metadata: bytes | None
    size: int | None
    content_type: str
    proof: bytes | None = None
    """Of where a v2 skylink leads (wire notes 1.4); not looked at yet."""
    failure: PortalError | None = None
    """Why the portal could not send headers; then nothing else is told of a v1 skylink."""


class PortalReader:
    """Asks one portal for content. Safe for many tasks at once; an async context manager.

    Options of a call override those given here (contract, client conventions). Every method raises
    WrongTypeError or MalformedError for arguments that cannot be sent, before any request, and a
    `PortalError` and nothing else for what happens on the wire.
    """

    options: PortalOptions
    transport: HttpClient

    def __init__(self, portal_url: str = "", **options: Unpack[ClientOptions]) -> None:
        """Select a portal; an empty address is the default one. No network traffic."""
        self._select(PortalOptions.parse(portal_url, **options))

    @classmethod
    def of(cls, options: PortalOptions) -> Self:
        """Make a client from options that are parsed already."""
        client = cls.__new__(cls)
        client._select(options)
        return client

    def _select(self, options: PortalOptions) -> None:
        self.options = options
        self.transport = HttpClient(options.url, options)
        self._node: HttpClient | None = None

    @property
    def url(self) -> str:
        """The portal's address, without credentials."""
        return self.options.url

    @property
    def dialect(self) -> Dialect:
        """The names that the portal uses."""
        return self.options.dialect

    @property
    def node(self) -> HttpClient:
        """The connections to the node that keeps the skykeys; without one of its own, the portal's.

        It gets the same credentials and headers.
        """
        url = self.options.node_url
        if not url or url == self.url:
            return self.transport
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
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _CLOSING):
            await self.aclose()

    async def aclose(self) -> None:
        """Close every connection."""
        try:
            await self.transport.aclose()
        finally:
            if self._node is not None:
                await self._node.aclose()

    @property
    def round_trip(self) -> float | None:
        """Seconds from a request to the first of its answer, of late at best; None before any."""
        return self.transport.round_trip

    async def connect(self, count: int = _FIRST_CONNECTIONS) -> None:
        """Have connections stand, as many as the first description of a skylink needs or more."""
        await self.transport.connect(count)

    async def head(self, skylink: Skylink, **options: Unpack[CommonOptions]) -> ContentHead:
        """Ask for the headers of a whole skylink, as `head`."""
        return await head(self.transport, skylink, self.options.overridden(**options))

    async def raw_metadata(self, skylink: Skylink, **options: Unpack[CommonOptions]) -> bytes:
        """Fetch the stored metadata JSON from its endpoint (wire notes 4.7)."""
        call = self.options.overridden(**options)
        request = requests.metadata(call.dialect, skylink)
        return (await self.transport.fetch(request, METADATA_LIMIT, call)).body

    async def metadata_into(
        self, skylink: Skylink, into: Destination, **options: Unpack[CommonOptions]
    ) -> None:
        """The same, straight to where so much is kept."""
        call = self.options.overridden(**options)
        request = requests.metadata(call.dialect, skylink)
        await self.transport.fetch_into(request, METADATA_LIMIT, into, call)

    async def base_sector(self, skylink: Skylink, **options: Unpack[CommonOptions]) -> bytes:
        """Fetch the used bytes of a base sector (wire notes 4.7)."""
        call = self.options.overridden(**options)
        request = requests.base_sector(call.dialect, skylink)
        return (await self.transport.fetch(request, SECTOR_SIZE, call)).body

    async def sector(self, root: bytes, length: int, **options: Unpack[CommonOptions]) -> bytes:
        """Fetch the first `length` bytes of a sector, as `fetch_sector`."""
        call = self.options.overridden(**options)
        return await fetch_sector(self.transport, root, length, call)

    @asynccontextmanager
    async def open_range(
        self,
        skylink: Skylink,
        path: str,
        byte_range: ByteRange,
        size: int,
        *,
        speculative: bool = False,
        **options: Unpack[CommonOptions],
    ) -> AsyncIterator[StreamingResponse]:
        """Open a byte range of content of `size` bytes, once the answer is known to be one of it.

        An empty path selects the whole payload, all files one after another. A `speculative`
        request waits for a connection until no other request does.
        """
        call = self.options.overridden(**options)
        request = content_request(skylink, path)
        opened = self.transport.open(request, call, byte_range=byte_range, speculative=speculative)
        async with opened as answer:
            check_range(answer, byte_range, size, named=bool(path))
            yield answer


async def fetch_sector(
    transport: HttpClient, root: bytes, length: int, call: PortalOptions
) -> bytes:
    """Fetch the first `length` bytes of the sector with that Merkle root (wire notes 4.7).

    BadContentError unless they have that root; the rest of the sector counts as zeros.
    """
    request = requests.sector(call.dialect, root, 0, length)
    answer = await transport.fetch(request, length, call)
    data = answer.body
    if len(data) != length or root != await off_loop(partial(merkle.sector_root, data)):
        text = f"sector {root.hex()} is not the content"
        raise transport.bad(request, call, text, answer.status)
    return data


async def head(transport: HttpClient, skylink: Skylink, call: PortalOptions) -> ContentHead:
    """Ask a portal for the headers of a whole skylink (endpoint 4).

    ``format=concat`` keeps a portal from redirecting to, or failing over, a default path.
    Where they cannot be sent, a v2 skylink is resolved by its endpoint, and of others the head is
    empty.
    """
    request = requests.download(skylink, method="HEAD", archive="concat")
    try:
        answer = await transport.fetch(request, 0, call)
    except PortalError as error:
        if not is_without_headers(error):
            raise
        return await _without_headers(transport, skylink, call, error)
    headers = answer.headers
    try:
        told = headers.get(call.dialect.skylink_header, "")
        found = Skylink.parse(told) if told else None
    except MalformedError as error:
        raise transport.bad(request, call, str(error), answer.status) from None
    return ContentHead(
        found,
        headers.raw(call.dialect.metadata_header),
        headers.length,
        headers.get("content-type", ""),
        headers.raw(call.dialect.proof_header),
    )


def is_without_headers(error: PortalError) -> bool:
    """Whether a portal failed to send headers, so that other endpoints are to be asked.

    Metadata may make them longer than what is taken here, or by a proxy on the way, which then
    answers 502.
    """
    has_failed = isinstance(error, UnavailableError) and (error.status or 0) >= _FAILED
    return has_failed or isinstance(error, HeadTooLongError)


async def _without_headers(
    transport: HttpClient, skylink: Skylink, call: PortalOptions, failure: PortalError
) -> ContentHead:
    """Return what is known without headers: where a v2 skylink leads, of others nothing."""
    if skylink.version == 1:
        return ContentHead(None, None, None, "", failure=failure)
    request = requests.resolve(call.dialect, skylink)
    answer = await transport.fetch(request, responses.RESPONSE_LIMIT, call)
    try:
        found = responses.parse_resolved(answer.body)
    except MalformedError as error:
        raise transport.bad(request, call, str(error), answer.status) from None
    return ContentHead(found, None, None, "", answer.headers.raw(call.dialect.proof_header))


@lru_cache(_ADDRESSES)
def content_request(skylink: Skylink, path: str) -> requests.Request:
    """Return the request for a file, or for the whole payload."""
    archive = "" if path else "concat"
    return requests.download(skylink, path, archive=archive, with_metadata=False)


def check_range(answer: StreamingResponse, asked: ByteRange, size: int, *, named: bool) -> None:
    """BadContentError unless the answer holds exactly the range, of content of `size` bytes.

    A file that was `named` may keep its size to itself. The whole payload may not: only by its
    size is it known from the start page that a portal sends if it does not know ``format``.
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
