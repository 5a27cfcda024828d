"""Owns the way to a portal that requests take, their answers one after another: how it is made,
direct or through a proxy, and what is left for httpx to do when an answer has come.
"""

import logging
import ssl
from abc import ABC, abstractmethod
from contextvars import ContextVar
from dataclasses import replace
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING
from urllib.request import getproxies

import httpx
import trio

from skymount.errors import UnavailableError
from skymount.portal.http.http11 import Arrived, HeadTooLongError, HTTP11Connection, State
from skymount.portal.http.response_body import IteratedBody
from skymount.portal.options import is_local

if TYPE_CHECKING:
    from skymount.portal.http.proxied import DirectConnections

# httpx logs the address of every request, with its query. Ours stay out of the log, whoever keeps
# it; requests that the program makes with httpx by itself are not touched.
_sending: ContextVar[bool] = ContextVar("sending", default=False)
logging.getLogger("httpx").addFilter(lambda _: not _sending.get())

_KEPT = 60.0  # seconds that an idle connection is kept; servers commonly close theirs after 75

_CLOSING = 1.0  # seconds that closing an answer behind a proxy may take

_PROXIES = {"http", "https", "all"}
"""What httpx looks for in the environment."""

_AS_IT_IS = httpx.Auth()  # else httpx takes credentials from the address that a redirect names


class Channel(ABC):
    """Sends requests, whose answers come one after another."""

    @property
    @abstractmethod
    def is_closed(self) -> bool:
        """Whether `aclose` was called."""

    @property
    def is_open(self) -> bool:
        """Whether a request can go out at once, as far as is known."""
        return True

    @abstractmethod
    async def exchange(self, request: httpx.Request, byte_range: bytes) -> Arrived:
        """Send a request, with a Range header of that value if there is one.

        Returns its answer once the head is there, with the request that follows a redirect.
        """

    async def connect(self, url: httpx.URL, timeout: float) -> None:
        """Have a connection stand before there is a request; behind a proxy none is made."""
        await trio.lowlevel.checkpoint()

    @abstractmethod
    async def aclose(self) -> None:
        """Close it for good; what is under way fails."""


class _Direct(Channel):
    """A connection of our own. What httpx does for an answer that is no redirect would take as long
    as all the rest.
    """

    def __init__(self, connection: HTTP11Connection) -> None:
        self._connection = connection

    @property
    def is_closed(self) -> bool:
        return self._connection.state is State.CLOSED

    @property
    def is_open(self) -> bool:
        return self._connection.state is State.IDLE

    async def exchange(self, request: httpx.Request, byte_range: bytes) -> Arrived:
        arrived = await self._connection.exchange(request, byte_range)
        if 300 <= arrived.status < 400:
            return replace(arrived, next_request=await _following(request, byte_range, arrived))
        return arrived

    async def connect(self, url: httpx.URL, timeout: float) -> None:
        await self._connection.connect(url, timeout)

    async def aclose(self) -> None:
        await self._connection.aclose()


class _Proxied(Channel):
    """A client of httpx."""

    def __init__(self, http: httpx.AsyncClient, direct: "DirectConnections") -> None:
        self._http = http
        self._direct = direct

    @property
    def is_closed(self) -> bool:
        return self._http.is_closed

    async def exchange(self, request: httpx.Request, byte_range: bytes) -> Arrived:
        if self.is_closed:
            raise httpx.NetworkError("the client was closed")
        from skymount.portal.http.proxied import (
            is_too_long,  # there is such a client, so it is imported
        )

        watched = self._direct.watched(_with_range(request, byte_range))
        try:
            response = await _sent(self._http, watched)
        except httpx.RemoteProtocolError as error:
            if is_too_long(error):
                raise HeadTooLongError(str(error)) from error
            raise
        body = _ProxiedBody(response)
        headers = [(name.lower(), value) for name, value in response.headers.raw]
        peer = self._direct.peer(response)
        return Arrived(response.status_code, headers, body, response.next_request, peer)

    async def aclose(self) -> None:
        await self._http.aclose()


class _ProxiedBody(IteratedBody):
    """A body that httpx receives."""

    def __init__(self, response: httpx.Response) -> None:
        super().__init__(response.aiter_raw())
        self._response = response

    async def aclose(self) -> None:
        """Close it, also when its reader was cancelled."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _CLOSING):
            await self._response.aclose()


async def _following(
    request: httpx.Request, byte_range: bytes, arrived: Arrived
) -> httpx.Request | None:
    """Return the request that httpx makes of a redirect."""
    response = httpx.Response(arrived.status, headers=arrived.headers, stream=arrived.body)
    if not response.has_redirect_location:
        return None
    try:
        http = httpx.AsyncClient(
            transport=_Answering(response), cookies=_no_cookies(), trust_env=False
        )
        async with http:
            return (await _sent(http, _with_range(request, byte_range))).next_request
    except BaseException:
        await arrived.body.aclose()
        raise


class _Answering(httpx.AsyncBaseTransport):
    """Lets httpx look at an answer that is here already."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return self._response


async def _sent(http: httpx.AsyncClient, request: httpx.Request) -> httpx.Response:
    silenced = _sending.set(True)
    try:
        return await http.send(request, stream=True, auth=_AS_IT_IS)
    finally:
        _sending.reset(silenced)


def _with_range(request: httpx.Request, byte_range: bytes) -> httpx.Request:
    if not byte_range:
        return request
    headers = [*request.headers.raw, (b"Range", byte_range)]
    return httpx.Request(
        request.method, request.url, headers=headers, extensions=request.extensions
    )


class ChannelMaker:
    """Makes channels to one portal, and once what they need for TLS."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._environment = not is_local(url)  # a proxy cannot reach our own loopback
        self._tls: ssl.SSLContext | None = None
        self._lock = trio.Lock()

    async def make(self) -> Channel:
        """Make a channel; UnavailableError when the environment names what cannot be used."""
        if self._environment and not _PROXIES.isdisjoint(getproxies()):
            return await self._proxied_channel()
        return _Direct(HTTP11Connection(self._context, _KEPT))

    async def _proxied_channel(self) -> Channel:
        context = await self._context()
        try:
            channel = await trio.to_thread.run_sync(_new_proxied_channel, context)
        except httpx.InvalidURL:  # what is wrong may be part of a password
            raise UnavailableError(
                "the address of a proxy in the environment is not valid", url=self._url
            ) from None
        except Exception as error:
            raise self._unusable(error) from error
        return channel

    async def _context(self) -> ssl.SSLContext:
        """Return what TLS needs. To make it is slow: it happens once, and off the event loop."""
        async with self._lock:
            if self._tls is None:
                try:
                    self._tls = await trio.to_thread.run_sync(_new_context, self._environment)
                except Exception as error:
                    raise self._unusable(error) from error
        return self._tls

    def _unusable(self, error: Exception) -> UnavailableError:
        return UnavailableError(f"the HTTP client cannot be set up: {error}", url=self._url)


def _no_cookies() -> CookieJar:
    return CookieJar(DefaultCookiePolicy(allowed_domains=[]))


def _new_context(environment: bool) -> ssl.SSLContext:
    context = httpx.create_ssl_context(trust_env=environment)
    context.set_alpn_protocols(["http/1.1"])
    return context


def _new_proxied_channel(context: ssl.SSLContext) -> Channel:
    from skymount.portal.http.proxied import (  # rarely needed, and slow
        DirectConnections,
        new_client,
    )

    return _Proxied(new_client(context, _no_cookies(), _KEPT), DirectConnections())
