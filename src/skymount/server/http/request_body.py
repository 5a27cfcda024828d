"""Reads the body of a request, within limits of size and time."""

from collections.abc import AsyncIterator

import trio
from starlette.requests import ClientDisconnect, Request

from skymount.server.http_error import HttpError
from skymount.wording import readable_size

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
    too_large = HttpError(413, f"{failed}the body is over the limit of {readable_size(limit)}")
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
