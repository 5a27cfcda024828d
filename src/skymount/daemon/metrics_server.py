"""A small HTTP server at an address of this machine, for Prometheus."""

import logging
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from urllib.parse import urlsplit

import h11
import trio

from skymount.daemon.metrics import CONTENT_TYPE
from skymount.wire.http.host import is_loopback, parse_loopback

log = logging.getLogger(__name__)

_PATH = b"/metrics"
_TIMEOUT = 5.0  # seconds for a connection
_CONNECTIONS = 8  # at a time; more are closed at once
_HEAD_LIMIT = 8 << 10  # bytes
_PIECE = 4096


async def serve(address: str, render: Callable[[], bytes]) -> None:
    """Serve until cancelled; OSError when it cannot listen there."""
    host, port = parse_loopback(address)
    listeners = await trio.open_tcp_listeners(port, host=host)
    bound = listeners[0].socket.getsockname()[1]
    log.info("metrics: http://%s:%d/metrics", f"[{host}]" if ":" in host else host, bound)
    limiter = trio.CapacityLimiter(_CONNECTIONS)
    await trio.serve_listeners(partial(_handle, render, limiter), listeners)


async def _handle(
    render: Callable[[], bytes], limiter: trio.CapacityLimiter, stream: trio.SocketStream
) -> None:
    """Answer one request. Whatever a client does, it does no harm."""
    try:
        limiter.acquire_nowait()
    except trio.WouldBlock:
        await trio.aclose_forcefully(stream)
        return
    try:
        with trio.move_on_after(_TIMEOUT):
            await _answer(render, stream)
    except (trio.BrokenResourceError, trio.ClosedResourceError, h11.ProtocolError):
        pass
    finally:
        limiter.release()
        await trio.aclose_forcefully(stream)


async def _answer(render: Callable[[], bytes], stream: trio.SocketStream) -> None:
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD_LIMIT)
    try:
        request = await _request(connection, stream)
    except h11.RemoteProtocolError as error:
        if connection.our_state is not h11.IDLE:
            return
        status, body, is_head = HTTPStatus(error.error_status_hint), b"", False
    else:
        if request is None:
            return
        status, is_head = check(request), request.method == b"HEAD"
        body = render() if status is HTTPStatus.OK else b""
    headers = [
        ("Content-Type", CONTENT_TYPE),
        ("Content-Length", str(len(body))),
        ("Connection", "close"),
    ]
    answer = h11.Response(status_code=status, headers=headers, reason=status.phrase.encode())
    sent = [connection.send(answer)]
    if body and not is_head:
        sent.append(connection.send(h11.Data(data=body)))
    sent.append(connection.send(h11.EndOfMessage()))
    await stream.send_all(b"".join(filter(None, sent)))
    await stream.send_eof()


async def _request(connection: h11.Connection, stream: trio.SocketStream) -> h11.Request | None:
    """Return the head of a request, None if there is none. A body is not read."""
    while True:
        event = connection.next_event()
        if isinstance(event, h11.Request):
            return event
        if event is not h11.NEED_DATA:
            return None
        connection.receive_data(await stream.receive_some(_PIECE))


def check(request: h11.Request) -> HTTPStatus:
    """Return how a request is answered.

    One for another host comes from a web page whose name leads here.
    """
    host = next((value for name, value in request.headers if name == b"host"), b"")
    try:
        name = urlsplit(f"//{host.decode('ascii')}").hostname or ""
    except ValueError:
        name = ""
    if not is_loopback(name):
        return HTTPStatus.FORBIDDEN
    if request.method not in (b"GET", b"HEAD"):
        return HTTPStatus.METHOD_NOT_ALLOWED
    return HTTPStatus.OK if request.target.partition(b"?")[0] == _PATH else HTTPStatus.NOT_FOUND
