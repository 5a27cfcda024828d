"""Owns what every answer has in common: JSON bodies and errors, headers in every dialect, and
streaming a body in large pieces with back-pressure.
"""

import os
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing

import trio
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from skymount.server.storage.skyfile_store import Decrypt
from skymount.wire.dialect import PRESETS
from skymount.wire.responses import encode_error
from skymount.wire.skylink import Skylink

READ_CHUNK_SIZE = 1 << 20
"""Bytes sent at once; hypercorn is several times slower with the usual 64 KiB."""

JSON_TYPE = "application/json; charset=utf-8"

Headers = list[tuple[str, str | bytes]]


def skylink_headers(skylink: Skylink) -> Headers:
    """Name the v1 skylink of what is served or was stored."""
    return [(dialect.skylink_header, str(skylink)) for dialect in PRESETS.values()]


def _raw(headers: Iterable[tuple[str, str | bytes]]) -> list[tuple[bytes, bytes]]:
    return [
        (name.lower().encode("latin-1"), value if isinstance(value, bytes) else value.encode())
        for name, value in headers
    ]


class BytesResponse(Response):
    """An answer with its headers exactly as given, and a body of bytes."""

    def __init__(self, status: int, headers: Headers, body: bytes = b"") -> None:
        self.status_code = status
        self.body = body
        self.background = None
        if status != 204:  # which has no body, and must not state its length (RFC 9110 8.6)
            headers = [*headers, ("Content-Length", str(len(body)))]
        self.raw_headers = _raw(headers)


class StreamedResponse(Response):
    """An answer whose body is produced while it is sent. `length` is None when unknown."""

    def __init__(
        self, status: int, headers: Headers, body: AsyncIterator[bytes], length: int | None
    ) -> None:
        self.status_code = status
        self.background = None
        if length is not None:
            headers = [*headers, ("Content-Length", str(length))]
        self.raw_headers = _raw(headers)
        self._source = body
        self._is_sent = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it; stop reading as soon as the client has gone.

        The last message is sent without listening: hypercorn announces a disconnect when it has
        taken that one, and being cancelled then would leave its connection half recycled.
        """
        start = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})
        if scope["method"] != "HEAD":
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_when_gone, receive, nursery.cancel_scope)
                await self._send_pieces(send)
                nursery.cancel_scope.cancel()
            if nursery.cancel_scope.cancelled_caught and not self._is_sent:
                raise ClientDisconnect
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_pieces(self, send: Send) -> None:
        async with aclosing(self._source) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        self._is_sent = True


async def _cancel_when_gone(receive: Receive, scope: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


def json_body(body: bytes, *, status: int = 200, headers: Headers | None = None) -> Response:
    """Answer with JSON that is encoded already."""
    return BytesResponse(status, [*(headers or []), ("Content-Type", JSON_TYPE)], body)


def error(status: int, message: str, headers: Headers | None = None) -> Response:
    """Answer with an error (wire notes 4.6)."""
    return json_body(encode_error(message), status=status, headers=headers)


def read_piece(fd: int, offset: int, length: int, decrypt: Decrypt | None) -> bytes:
    """Return up to `length` bytes of an open file, at least one. Blocks on the disk."""
    data = os.pread(fd, length, offset)
    if not data:
        raise OSError("stored file is shorter than recorded")
    return data if decrypt is None else decrypt(data, offset)


async def read_pieces(
    fd: int, offset: int, length: int, decrypt: Decrypt | None = None
) -> AsyncIterator[bytes]:
    """Yield bytes of an open file, read (and decrypted) in threads."""
    while length > 0:
        data = await trio.to_thread.run_sync(
            read_piece, fd, offset, min(READ_CHUNK_SIZE, length), decrypt
        )
        yield data
        offset, length = offset + len(data), length - len(data)
