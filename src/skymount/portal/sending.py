"""Owns how a request goes out over a connection that it was lent: written once for all ranges of
some content, and followed through redirects. What comes back is not known here.
"""

from collections.abc import AsyncIterator
from functools import lru_cache

import httpx

from skymount.errors import BadContentError, RequestRefusedError
from skymount.portal.calls import Call
from skymount.portal.channel import Channel
from skymount.portal.connection import Arrived
from skymount.portal.heads import SMALL_LIMIT
from skymount.portal.options import HEADER_LIMIT
from skymount.portal.patience import Content
from skymount.wire.ranges import ByteRange

_WRITTEN = 64  # requests that stay written: content is asked for range by range
_REDIRECTS = 5  # followed for one request
_ACCEPT = (b"Accept", b"*/*")


async def send(
    channel: Channel, call: Call, byte_range: ByteRange | None, content: Content | None
) -> Arrived:
    """Send, and follow redirects without reading their bodies, as httpx would."""
    request, private = written(call) if content is None else _new_request(call, content)
    part = b"" if byte_range is None else byte_range.header().encode()
    for _ in range(_REDIRECTS + 1):
        try:
            arrived = await channel.exchange(request, part)
        except UnicodeError as error:  # of a host's name, at last when it is looked up
            raise call.error(BadContentError, f"no host can have this name: {error}") from None
        if arrived.next_request is None:
            return arrived
        await arrived.body.aclose()
        request = _redirected(call, request, arrived.next_request, arrived.status, content, private)
        part = b""  # it is among the headers by now
    raise call.error(BadContentError, f"more than {_REDIRECTS} redirects")


def _new_request(call: Call, content: Content | None) -> tuple[httpx.Request, frozenset[bytes]]:
    """Make a request as httpx writes it, and the names of the headers that are private."""
    options = call.options
    headers, private = call.headers()
    timeout = httpx.Timeout(options.idle_timeout, connect=options.connect_timeout)
    limit = HEADER_LIMIT if call.request.may_tell_metadata else SMALL_LIMIT
    request = httpx.Request(
        call.request.method,
        call.address,
        headers=[*headers, _ACCEPT],
        content=content,
        extensions={"timeout": timeout.as_dict(), "head_limit": limit},
    )
    return request, private


@lru_cache(_WRITTEN)
def written(call: Call) -> tuple[httpx.Request, frozenset[bytes]]:
    """Return a request without a body; for each range of some content it is the same."""
    return _new_request(call, None)


def _redirected(
    call: Call,
    before: httpx.Request,
    then: httpx.Request,
    status: int,
    content: Content | None,
    private: frozenset[bytes],
) -> httpx.Request:
    """Return the request that follows a redirect; an error when it must not be followed.

    Method and body are what httpx makes of them: 307 and 308 keep both, any other makes a POST a
    GET. httpx takes only the Authorization header off a request to another origin; here nothing of
    the user's but the user agent goes there.
    """
    if before.url.scheme == "https" and then.url.scheme != "https":
        raise call.error(BadContentError, "a redirect from https to http is not followed", status)
    if then.method == before.method and isinstance(content, AsyncIterator):
        raise call.error(
            RequestRefusedError,
            "the portal redirects the upload, whose content can be read only once",
            status,
        )
    dropped = set(private)
    if then.method != before.method:
        dropped.add(b"content-type")
    kept = [item for item in then.headers.raw if item[0].lower() not in dropped]
    if _origin(before.url) == _origin(then.url):
        kept += [item for item in before.headers.raw if item[0].lower() in private]
    then.headers = httpx.Headers(kept)
    return then


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port
