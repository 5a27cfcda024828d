"""Owns how a request goes out over a connection that it was lent: written once for all ranges of
some content, and followed through redirects. What comes back is not known here.
"""

from functools import lru_cache

import httpx

from skymount.errors import BadContentError
from skymount.portal.http.channel import Channel
from skymount.portal.http.http11 import Arrived
from skymount.portal.http.redirects import following, refusal
from skymount.portal.http.request import Call
from skymount.portal.http.response_head import SMALL_LIMIT
from skymount.portal.http.stream import NotFollowedError
from skymount.portal.http.timeouts import Content
from skymount.portal.options import HEADER_LIMIT
from skymount.wire.byte_range import ByteRange

_WRITTEN = 64  # requests that stay written: content is asked for range by range
_REDIRECTS = 5  # followed for one request
_ACCEPT = (b"Accept", b"*/*")


async def send(
    channel: Channel, call: Call, byte_range: ByteRange | None, content: Content | None
) -> Arrived:
    """Send, and follow redirects without reading their bodies, as httpx would."""
    request, private = written(call) if content is None else _new_request(call, content)
    before, status = request, 0
    part = b"" if byte_range is None else byte_range.header().encode()
    for _ in range(_REDIRECTS + 1):
        try:
            arrived = await channel.exchange(request, part)
        except NotFollowedError as error:  # the address of its host is known only now
            raise refusal(call, before, request, status, error) from None
        except UnicodeError as error:  # of a host's name, at last when it is looked up
            raise call.error(BadContentError, f"no host can have this name: {error}") from None
        if arrived.next_request is None:
            return arrived
        await arrived.body.aclose()
        before, status = request, arrived.status
        request = following(call, before, arrived, content, private)
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
