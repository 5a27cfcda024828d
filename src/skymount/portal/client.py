"""Owns the conversation with one portal; the only importer of httpx.

Requests come from ``wire.messages``; what returns is checked for form (status, lengths, limits)
and handed on as bytes. httpx's exceptions become `PortalError`s here and nowhere else. Whether
the bytes are the right ones is for ``content`` to find out.
"""

import math
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from types import TracebackType
from typing import NoReturn, Self
from uuid import uuid4

import httpcore
import httpx
import trio

from skymount import __version__
from skymount.errors import (
    AccessDeniedError,
    BadContentError,
    MalformedError,
    NotFoundError,
    PortalError,
    PortalTimeoutError,
    RequestRefusedError,
    UnavailableError,
)
from skymount.portal.options import HEADER_LIMIT, PortalOptions
from skymount.portal.upload import UploadBody
from skymount.wire import messages
from skymount.wire.metadata import METADATA_LIMIT
from skymount.wire.ranges import ByteRange
from skymount.wire.skylink import SECTOR_SIZE, Skylink

# httpcore has no option for either (its class attributes are the documented way round): it refuses
# headers over 100 KB, and receives in 64 KiB pieces, which costs two thirds of the throughput.
httpcore.AsyncHTTP11Connection.MAX_INCOMPLETE_EVENT_SIZE = HEADER_LIMIT
httpcore.AsyncHTTP11Connection.READ_NUM_BYTES = 1 << 20

_STATUS_ERRORS: Mapping[int, type[PortalError]] = {
    401: AccessDeniedError,
    402: AccessDeniedError,
    403: AccessDeniedError,
    404: NotFoundError,
    410: NotFoundError,
    408: UnavailableError,
    429: UnavailableError,
    451: AccessDeniedError,
}

_TOTAL = re.compile(r"\d{1,19}")

_REDIRECTS = 5  # followed for one request
_SLOWEST = 8 << 10  # bytes a second; a portal that drips more slowly counts as silent
_WORDS = 300  # characters of a portal's own words in an error; they end up in logs


@dataclass(frozen=True, slots=True)
class Head:
    """What a HEAD request on a skylink tells; None or empty where the portal says nothing."""

    skylink: Skylink | None
    metadata: bytes | None
    size: int | None
    content_type: str


def _words(text: str) -> str:
    """Return the beginning of what a portal says, fit for a line of a log or a terminal."""
    return "".join(c if c.isprintable() else " " for c in text[:_WORDS])


def _check_redirect(first: httpx.Request, then: httpx.Request) -> None:
    """RemoteProtocolError when a redirect leads where the request must not go."""
    if first.url.scheme == "https" and then.url.scheme != "https":
        raise httpx.RemoteProtocolError("a redirect from https to http is not followed")
    origins = {(url.scheme, url.host, url.port) for url in (first.url, then.url)}
    if first.method == "POST" and len(origins) > 1:
        raise httpx.RemoteProtocolError("an upload is not redirected to another origin")


def _error_for(status: int) -> type[PortalError]:
    known = _STATUS_ERRORS.get(status)
    if known is not None:
        return known
    return RequestRefusedError if 400 <= status < 500 else UnavailableError


class PortalClient:
    """Talks to one portal. Safe for many tasks at once; an async context manager.

    Every method raises a `PortalError` and nothing else for what happens on the wire.
    """

    def __init__(self, options: PortalOptions) -> None:
        self.options = options
        self.dialect = options.dialect
        self._http: httpx.AsyncClient | None = None
        self._opening = trio.Lock()
        self._free = trio.Semaphore(options.connections)

    @property
    def url(self) -> str:
        """The portal's address, without credentials."""
        return self.options.url

    def __repr__(self) -> str:
        return f"PortalClient({self.url!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 2):
            await self.aclose()

    async def aclose(self) -> None:
        """Close every connection."""
        if self._http is not None:
            http, self._http = self._http, None
            await http.aclose()

    async def prepare(self) -> None:
        """Do now what the first request would otherwise wait for. No network traffic.

        What goes wrong is the error of each request, not of this.
        """
        with suppress(PortalError):
            await self._client()

    async def head(self, skylink: Skylink) -> Head:
        """Ask for the headers of a whole skylink (endpoint 4).

        ``format=concat`` keeps a portal from redirecting to, or failing over, a default path.
        """
        request = messages.download(skylink, method="HEAD", archive="concat")
        async with self._open(request) as response:
            await self._body(response, 0)  # there is none; its end frees the connection
            return Head(
                self._skylink_header(response),
                self._raw_header(response, self.dialect.metadata_header),
                self._content_length(response),
                response.headers.get("content-type", ""),
            )

    async def metadata(self, skylink: Skylink) -> bytes:
        """Fetch the stored metadata JSON from its endpoint."""
        return await self._fetch(messages.metadata(self.dialect, skylink), METADATA_LIMIT)

    async def base_sector(self, skylink: Skylink) -> bytes:
        """Fetch the used bytes of a base sector."""
        return await self._fetch(messages.base_sector(self.dialect, skylink), SECTOR_SIZE)

    async def sector(self, root: bytes, length: int) -> bytes:
        """Fetch the first `length` bytes of the sector with that Merkle root."""
        data = await self._fetch(messages.sector(self.dialect, root, 0, length), length)
        if len(data) != length:
            raise BadContentError(f"sector {root.hex()}: short answer", url=self.url)
        return data

    @asynccontextmanager
    async def stream(
        self, skylink: Skylink, path: str, byte_range: ByteRange, size: int
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a byte range of content of `size` bytes; yields an iterator of its pieces.

        An empty path selects the whole payload, all files one after another. Pieces add up to
        exactly the range, or the iterator raises BadContentError.
        """
        request = messages.download(
            skylink,
            path,
            byte_range=byte_range,
            archive="" if path else "concat",
            with_metadata=False,
        )
        async with self._open(request) as response:
            self._check_range(response, byte_range, size)
            async with aclosing(self._pieces(response, len(byte_range))) as pieces:
                yield pieces

    async def upload(self, body: UploadBody) -> messages.UploadResult:
        """Send content (endpoints 1 and 2); the body is read once, so this is never repeated."""
        request = messages.upload(
            self.dialect, f"skymount/{uuid4().hex}", filename=body.dirname, query=body.query
        )
        headers = {"Content-Type": body.content_type, "Content-Length": str(body.size)}
        async with self._open(request, headers=headers, content=body) as response:
            answer = await self._body(response, messages.ANSWER_LIMIT)
        try:
            return messages.UploadResult.parse(answer)
        except MalformedError as error:
            raise BadContentError(str(error), method="POST", url=self.url) from None

    async def _client(self) -> httpx.AsyncClient:
        """Return the HTTP client, made at first use and off the event loop: TLS set-up is slow."""
        async with self._opening:
            if self._http is None:
                try:
                    self._http = await trio.to_thread.run_sync(self._make_client)
                except Exception as error:  # a proxy or a certificate file in the environment
                    raise UnavailableError(
                        f"the HTTP client cannot be set up: {error}", url=self.url
                    ) from error
            return self._http

    def _make_client(self) -> httpx.AsyncClient:
        options = self.options
        headers = {
            "Accept-Encoding": "identity",
            "User-Agent": options.user_agent or f"{self.dialect.agent} skymount/{__version__}",
        }
        if options.api_key:
            headers["Authorization"] = messages.basic_credentials(options.api_key)
        return httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(options.idle_timeout, connect=options.connect_timeout),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),  # none are kept
            trust_env=not options.is_local,  # a proxy cannot reach our own loopback
        )

    @asynccontextmanager
    async def _open(
        self,
        request: messages.Request,
        *,
        headers: Mapping[str, str] | None = None,
        content: AsyncIterator[bytes] | UploadBody | None = None,
    ) -> AsyncIterator[httpx.Response]:
        """Send a request and yield the open answer; raise for any status but success."""
        try:
            http = await self._client()
            built = http.build_request(
                request.method,
                self.url + request.target,
                headers={**dict(request.headers), **(headers or {})},
                content=content,
            )
            async with self._turn():
                with self._patience(content is not None):
                    response = await self._send(http, built)
                try:
                    if not response.is_success:
                        await self._raise_for_status(request, response)
                    if response.headers.get("content-encoding", "identity") != "identity":
                        raise BadContentError(
                            "the portal encoded the content", method=request.method, url=self.url
                        )
                    yield response
                finally:
                    with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
                        await response.aclose()
        except httpx.HTTPError as error:
            self._raise_translated(error, request)
        except httpx.InvalidURL as error:
            raise RequestRefusedError(str(error), method=request.method, url=self.url) from None

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Wait for one of the connections. httpcore's own bound loses one for good when a request
        is cancelled while it waits.
        """
        limit = self.options.idle_timeout
        with trio.move_on_after(limit) as scope:
            await self._free.acquire()
        if scope.cancelled_caught:
            raise httpx.PoolTimeout(f"every connection is busy for {limit:g} s")
        try:
            yield
        finally:
            self._free.release()

    @contextmanager
    def _patience(self, uploading: bool) -> Iterator[None]:
        """Bound the time until the headers are there, however slowly they drip in."""
        options = self.options
        limit = options.connect_timeout + 2 * options.idle_timeout
        try:
            with trio.fail_after(math.inf if uploading else limit):
                yield
        except trio.TooSlowError:
            raise httpx.ReadTimeout(f"no headers in {limit:g} s") from None

    @staticmethod
    async def _send(http: httpx.AsyncClient, request: httpx.Request) -> httpx.Response:
        """Send, and follow redirects without reading their bodies, as httpx would."""
        response = await http.send(request, stream=True)
        for _ in range(_REDIRECTS):
            if response.next_request is None:
                return response
            await response.aclose()
            _check_redirect(request, response.next_request)
            response = await http.send(response.next_request, stream=True)
        if response.next_request is not None:
            await response.aclose()
            raise httpx.TooManyRedirects(f"more than {_REDIRECTS} redirects", request=request)
        return response

    def _raise_translated(self, error: httpx.HTTPError, request: messages.Request) -> NoReturn:
        detail = _words(str(error)) or type(error).__name__
        if isinstance(error, httpx.TimeoutException):
            raise PortalTimeoutError(
                f"no answer in time: {detail}", method=request.method, url=self.url
            ) from error
        if isinstance(error, httpx.RemoteProtocolError | httpx.TooManyRedirects):
            raise BadContentError(detail, method=request.method, url=self.url) from error
        raise UnavailableError(
            f"cannot be reached: {detail}", method=request.method, url=self.url
        ) from error

    async def _raise_for_status(
        self, request: messages.Request, response: httpx.Response
    ) -> NoReturn:
        """Raise the error that the status stands for, with the portal's own words."""
        body = b""
        async with aclosing(self._raw(response)) as pieces:
            async for piece in pieces:
                body += piece
                if len(body) > messages.ANSWER_LIMIT:
                    break
        words = _words(messages.parse_error(body))
        status = response.status_code
        raise _error_for(status)(
            words or f"HTTP status {status}",
            status=status,
            method=request.method,
            url=self.url + request.target.partition("?")[0],
        )

    async def _fetch(self, request: messages.Request, limit: int) -> bytes:
        async with self._open(request) as response:
            return await self._body(response, limit)

    async def _body(self, response: httpx.Response, limit: int) -> bytes:
        """Read a body of at most `limit` bytes; a longer one is a portal's fault."""
        found, total = [], 0
        async with aclosing(self._raw(response)) as pieces:
            async for piece in pieces:
                found.append(piece)
                total += len(piece)
                if total > limit:
                    raise BadContentError(f"answer is longer than {limit} bytes", url=self.url)
        return b"".join(found)

    async def _pieces(self, response: httpx.Response, length: int) -> AsyncGenerator[bytes, None]:
        left = length
        async with aclosing(self._raw(response)) as pieces:
            async for piece in pieces:
                left -= len(piece)
                if left < 0:
                    raise BadContentError("more bytes than asked for", url=self.url)
                yield piece
        if left:
            raise BadContentError(f"{left} bytes too few", url=self.url)

    async def _raw(self, response: httpx.Response) -> AsyncGenerator[bytes, None]:
        """Yield a body as it comes; one that drips is not waited for longer than silence is."""
        waited, arrived = 0.0, 0
        body = response.aiter_raw()
        while True:
            begun = trio.current_time()
            piece = await anext(body, None)
            if piece is None:
                return
            waited += trio.current_time() - begun
            arrived += len(piece)
            yield piece
            if waited > self.options.idle_timeout:
                if arrived < _SLOWEST * waited:
                    slow = f"only {arrived} bytes in {waited:.0f} s"
                    raise PortalTimeoutError(slow, url=self.url)
                waited, arrived = 0.0, 0

    def _check_range(self, response: httpx.Response, asked: ByteRange, size: int) -> None:
        """BadContentError unless the answer holds exactly the range, of content of `size` bytes."""
        length = self._content_length(response)
        if response.status_code == httpx.codes.PARTIAL_CONTENT:
            try:
                given, total = ByteRange.parse_content_range(
                    response.headers.get("content-range", "")
                )
            except MalformedError as error:
                raise BadContentError(str(error), url=self.url) from None
            if given != asked or total not in (None, size) or length not in (None, len(asked)):
                raise BadContentError(
                    f"asked for {asked.content_range(size)}, got "
                    f"{response.headers['content-range'][:80]}",
                    url=self.url,
                )
        elif asked != ByteRange(0, size) or length not in (None, size):
            raise BadContentError("the portal ignores byte ranges", url=self.url)

    def _skylink_header(self, response: httpx.Response) -> Skylink | None:
        text = response.headers.get(self.dialect.skylink_header, "")
        try:
            return Skylink.parse(text) if text else None
        except MalformedError as error:
            raise BadContentError(str(error), url=self.url) from None

    @staticmethod
    def _content_length(response: httpx.Response) -> int | None:
        text = response.headers.get("content-length", "")
        return int(text) if _TOTAL.fullmatch(text) else None

    @staticmethod
    def _raw_header(response: httpx.Response, name: str) -> bytes | None:
        """Return a header's bytes as they came: httpx would guess an encoding."""
        wanted = name.lower().encode()
        for found, value in response.headers.raw:
            if found.lower() == wanted:
                return value
        return None
