"""Responses: bodies of bytes, JSON and errors, streamed bodies, headers in every dialect."""

import logging
from collections.abc import Generator, Iterable
from contextlib import closing

import trio
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from skymount.errors import StorageError
from skymount.server.http_error import HttpError
from skymount.wire.dialect import PRESETS
from skymount.wire.http.responses import encode_error
from skymount.wire.skylink import Skylink

_log = logging.getLogger(__name__)

JSON_TYPE = "application/json; charset=utf-8"

HeaderList = list[tuple[str, str | bytes]]


def skylink_headers(skylink: Skylink) -> HeaderList:
    """Name the v1 skylink of what is served or was stored."""
    return [(dialect.skylink_header, str(skylink)) for dialect in PRESETS.values()]


def encode_headers(headers: Iterable[tuple[str, str | bytes]]) -> list[tuple[bytes, bytes]]:
    """Encode headers for ASGI."""
    return [
        (name.lower().encode("latin-1"), value if isinstance(value, bytes) else value.encode())
        for name, value in headers
    ]


class BytesResponse(Response):
    """A response with its headers exactly as given, and a body of bytes."""

    def __init__(self, status: int, headers: HeaderList, body: bytes = b"") -> None:
        self.status_code = status
        self.body = body
        self.background = None
        if status != 204:  # which must not have a Content-Length (RFC 9110 8.6)
            headers = [*headers, ("Content-Length", str(len(body)))]
        self.raw_headers = encode_headers(headers)


class StreamedResponse(Response):
    """A response whose body is read from the disk, in threads, while it is sent."""

    def __init__(
        self,
        status: int,
        headers: HeaderList,
        chunks: Generator[bytes] | None,
        length: int | None,
    ) -> None:
        self.status_code = status
        self.background = None
        if length is not None:
            headers = [*headers, ("Content-Length", str(length))]
        self.raw_headers = encode_headers(headers)
        self._chunks = chunks
        self._is_begun = self._is_sent = False
        self._failure: HttpError | StorageError | OSError | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it; stop reading as soon as the client has gone.

        HttpError, StorageError or OSError if nothing can be read, and nothing was sent. Later the
        response is broken off.
        """
        if self._chunks is None or scope["method"] == "HEAD":
            await self._begin(send)
        else:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_when_gone, receive, nursery.cancel_scope)
                await self._send_chunks(self._chunks, send)
                nursery.cancel_scope.cancel()
            if self._failure is not None:
                if not self._is_begun:
                    raise self._failure
                _log.error("%s %r: broken off: %s", scope["method"], scope["path"], self._failure)
            if not self._is_sent:
                raise ClientDisconnect
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _begin(self, send: Send) -> None:
        if not self._is_begun:
            self._is_begun = True
            start = {"type": "http.response.start", "status": self.status_code}
            await send({**start, "headers": self.raw_headers})

    async def _send_chunks(self, chunks: Generator[bytes], send: Send) -> None:
        with closing(chunks):
            try:
                while (chunk := await trio.to_thread.run_sync(next, chunks, None)) is not None:
                    await self._begin(send)
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            except (HttpError, StorageError, OSError) as error:
                self._failure = error
                return
        await self._begin(send)
        self._is_sent = True


async def _cancel_when_gone(receive: Receive, scope: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


def json_body(body: bytes, *, status: int = 200, headers: HeaderList | None = None) -> Response:
    """Answer with JSON that is encoded already."""
    return BytesResponse(status, [*(headers or []), ("Content-Type", JSON_TYPE)], body)


def error(status: int, message: str, headers: HeaderList | None = None) -> Response:
    """Answer with an error (docs/wire.md 4.6)."""
    return json_body(encode_error(message), status=status, headers=headers)


def of_http_error(failure: HttpError, headers: HeaderList | None = None) -> Response:
    """Answer with an HttpError; `headers` come before its own."""
    if failure.plain_text:
        text_type = ("Content-Type", "text/plain; charset=utf-8")
        return BytesResponse(failure.status, [text_type], failure.message.encode())
    return error(failure.status, failure.message, [*(headers or []), *failure.headers])
