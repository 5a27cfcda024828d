"""Owns the HTTP client for portals behind a proxy of the environment: httpx's own way (httpcore),
with bounds on heads. A proxy costs more than it loses.
"""

import ssl
from http.cookiejar import CookieJar
from typing import Any
from weakref import WeakSet

import h11
import httpcore
import httpx
from h11._receivebuffer import ReceiveBuffer

from skymount.portal.http.response_body import RECEIVE_SIZE
from skymount.portal.http.response_head import LINES_LIMIT, TooLongError
from skymount.portal.http.stream import CheckAddress, check_addresses

_HEAD_LIMIT = 4 << 20  # bytes; here h11 gets all of a head, and nothing runs in its 13 ms for a MiB

_TOO_LONG = 431  # the status by which h11 tells a head that is too long (RFC 6585, 5)

# httpcore has no option for either (its class attributes are the documented way round): it refuses
# headers over 100 KB, and receives in 64 KiB pieces, which costs two thirds of the throughput.
httpcore.AsyncHTTP11Connection.MAX_INCOMPLETE_EVENT_SIZE = _HEAD_LIMIT
httpcore.AsyncHTTP11Connection.READ_NUM_BYTES = RECEIVE_SIZE

_extract = ReceiveBuffer.maybe_extract_lines

_CONNECTED = ("connection.connect_tcp.complete", "connection.start_tls.complete")


def new_client(context: ssl.SSLContext, cookies: CookieJar, kept: float) -> httpx.AsyncClient:
    """Make a client with one connection, which stays idle for `kept` seconds.

    httpx.InvalidURL, ValueError or ImportError when the environment names a proxy that is none.
    """
    return httpx.AsyncClient(
        verify=context,
        cookies=cookies,
        limits=httpx.Limits(max_keepalive_connections=1, keepalive_expiry=kept),
    )


class DirectConnections:
    """The connections of a client that go through no proxy, as some may (NO_PROXY, or a proxy for
    https alone): only of these is it known, and checked, which address they lead to.
    """

    def __init__(self) -> None:
        self._streams: WeakSet[httpcore.AsyncNetworkStream] = WeakSet()

    def watched(self, request: httpx.Request) -> httpx.Request:
        """Return the same request, for which an address that is connected to is checked."""
        host = request.url.raw_host.decode("ascii")
        check = request.extensions.get("check_address")
        is_direct = False

        async def trace(event: str, info: dict[str, Any]) -> None:
            nonlocal is_direct
            if event == "connection.connect_tcp.started":
                is_direct = info["host"] == host  # else it is the proxy's
                if is_direct and check is not None:
                    await _check_addresses(host, info["port"], check)
            elif is_direct and event in _CONNECTED:
                stream: httpcore.AsyncNetworkStream = info["return_value"]
                self._streams.add(stream)
                if check is not None:
                    try:
                        check(stream.get_extra_info("server_addr")[0])
                    except BaseException:
                        await stream.aclose()
                        raise

        return httpx.Request(
            request.method,
            request.url,
            headers=request.headers.raw,
            stream=request.stream,
            extensions={**request.extensions, "trace": trace},
        )

    def peer(self, response: httpx.Response) -> str | None:
        """Return the address that an answer came from; None when that was a proxy."""
        stream = response.extensions["network_stream"]
        if stream not in self._streams:
            return None
        address: str = stream.get_extra_info("server_addr")[0]
        return address


async def _check_addresses(host: str, port: int, check: CheckAddress) -> None:
    try:
        await check_addresses(host, port, check)
    except OSError as error:
        raise httpx.ConnectError(str(error)) from error


def is_too_long(error: BaseException | None) -> bool:
    """Whether h11 refused a head for its length, by what came of its error."""
    while error is not None and not isinstance(error, h11.RemoteProtocolError):
        error = error.__cause__ or error.__context__  # httpcore raises some `from None`
    return isinstance(error, TooLongError) or getattr(error, "error_status_hint", 0) == _TOO_LONG


def _extract_few(self: Any) -> Any:
    """Take the lines up to the blank one, unless there are too many, whether it came or not."""
    if _count(self._data) > LINES_LIMIT:
        raise TooLongError(f"more than {LINES_LIMIT} header lines")
    return _extract(self)


def _count(data: bytearray) -> int:
    """Count line feeds up to the blank line, and not far beyond the limit."""
    found, at = 0, 0
    while found <= LINES_LIMIT:
        at = data.find(b"\n", at) + 1
        if not at:
            break
        found += 1
        if data[at : at + 2].startswith((b"\n", b"\r\n")):
            break
    return found


# h11 has a bound on the bytes of a head only, and no option for one on its lines, so a method of
# its own buffer is replaced.
ReceiveBuffer.maybe_extract_lines = _extract_few  # type: ignore[method-assign]
