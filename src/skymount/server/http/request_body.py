"""Owns reading small request bodies whole, and what becomes of a body that was not read to its end.

hypercorn stalls when an application leaves a body unread, and closing a connection on unread bytes
can cost the client the answer. So the rest is read and dropped, within bounds, between the answer
and its end.
"""

from dataclasses import dataclass

import trio
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from skymount.server.http_error import HttpError

_DRAIN_LIMIT = 64 << 20  # bytes read and dropped after an early answer
_DRAIN_TIME = 5.0  # seconds; a client still sending then is cut off
_LENGTH_DIGITS = 18  # of an announced length; more is beyond every limit


async def read_body(request: Request, limit: int, timeout: float) -> bytes:
    """Return the whole body: at most `limit` bytes, all of it within `timeout` seconds.

    HttpError with 413 over the limit, at once if the length is announced, and with 408 when it is
    late. ClientDisconnect when the client goes away. Uploads, which are large, have their own way.
    """
    refusal = HttpError(413, f"the body is over the limit of {limit} bytes")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and (len(announced) > _LENGTH_DIGITS or int(announced) > limit):
        raise refusal
    body, more = bytearray(), True
    with trio.move_on_after(timeout):
        while more:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            body += message.get("body", b"")
            if len(body) > limit:
                raise refusal
            more = message.get("more_body", False)
    if more:
        raise HttpError(408, "the body did not come in time")
    return bytes(body)


@dataclass
class _Progress:
    """What was seen of one request's body."""

    is_over: bool


class DrainBodyMiddleware:
    """An ASGI wrapper that leaves no body unread."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application on one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        names = {name for name, _ in scope["headers"]}
        progress = _Progress(is_over=not names & {b"content-length", b"transfer-encoding"})

        async def watched_receive() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect" or not message.get("more_body", False):
                progress.is_over = True
            return message

        async def draining_send(message: Message) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                if not progress.is_over:
                    await send({**message, "more_body": True})
                    await _drain(watched_receive, progress)
                    message = {**message, "body": b""}
                await _send_last(message, receive, send)
            else:
                await send(message)

        await self._app(scope, watched_receive, draining_send)


async def _drain(receive: Receive, progress: _Progress) -> None:
    size = 0
    with trio.move_on_after(_DRAIN_TIME):
        while not progress.is_over and size < _DRAIN_LIMIT:
            size += len((await receive()).get("body", b""))


async def _send_last(message: Message, receive: Receive, send: Send) -> None:
    """Send the end of the answer; take what hypercorn queues meanwhile, or it would wait."""

    async def take_all() -> None:
        while True:
            await receive()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take_all)
        await send(message)
        nursery.cancel_scope.cancel()
