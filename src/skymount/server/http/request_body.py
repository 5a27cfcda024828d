"""Reads small request bodies whole, and drains the rest of a body that nobody read.

hypercorn stalls when an application leaves a body unread, and closing a connection with unread
bytes can cost the client the response.
"""

from collections.abc import AsyncIterator

import trio
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from skymount.server.http_error import HttpError

_DRAIN_LIMIT = 64 << 20  # bytes read and dropped after an early response
_DRAIN_TIME = 5.0  # seconds; then the connection is closed
_BODY_HEADERS = {b"content-length", b"transfer-encoding"}
_LENGTH_DIGITS = 18  # of a Content-Length; more is beyond every limit


async def read_body(request: Request, limit: int, timeout: float) -> bytes:
    """Return the whole body, which may take `timeout` seconds; errors as of `stream_body`."""
    with trio.move_on_after(timeout):
        return b"".join([data async for data in stream_body(request, limit, timeout)])
    raise HttpError(408, "the body did not come in time")


async def stream_body(
    request: Request, limit: int, pause: float, *, failed: str = ""
) -> AsyncIterator[bytes]:
    """Yield the body as it arrives, at most `limit` bytes, with pauses of at most `pause` seconds.

    HttpError 413 over the limit, at once if Content-Length says so, and 408 after a longer pause;
    their messages begin with `failed`. ClientDisconnect when the client goes away.
    """
    too_large = HttpError(413, f"{failed}the body is over the limit of {limit} bytes")
    stated = request.headers.get("content-length", "")
    if stated.isdecimal() and (len(stated) > _LENGTH_DIGITS or int(stated) > limit):
        raise too_large
    size, more = 0, True
    while more:
        try:
            with trio.fail_after(pause):
                message = await request.receive()
        except trio.TooSlowError:
            raise HttpError(408, f"{failed}the body did not come in time") from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        data, more = message.get("body", b""), message.get("more_body", False)
        size += len(data)
        if size > limit:
            raise too_large
        yield data


class DrainBodyMiddleware:
    """ASGI middleware that leaves no body unread."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_read = trio.Event()
        if not {name for name, _ in scope["headers"]} & _BODY_HEADERS:
            is_read.set()

        async def watched_receive() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect" or not message.get("more_body", False):
                is_read.set()
            return message

        async def draining_send(message: Message) -> None:
            if message["type"] != "http.response.body" or message.get("more_body", False):
                await send(message)
                return
            if not is_read.is_set():
                await send({**message, "more_body": True})
                size = 0
                with trio.move_on_after(_DRAIN_TIME):
                    while not is_read.is_set() and size < _DRAIN_LIMIT:
                        size += len((await watched_receive()).get("body", b""))
                message = {**message, "body": b""}
            await _send_last(message, receive, send)

        await self._app(scope, watched_receive, draining_send)


async def _send_last(message: Message, receive: Receive, send: Send) -> None:
    """Send the end of the response, and take what hypercorn queues meanwhile, or it would wait."""

    async def take_all() -> None:
        while True:
            await receive()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take_all)
        await send(message)
        nursery.cancel_scope.cancel()
