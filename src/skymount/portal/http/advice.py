"""What to do about a failure of a portal, by its cause: the one place that gives such advice.

``HttpClient`` puts it into the `advice` of an error. No IO.
"""

import errno
import math
import re
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus

import httpx

from skymount.portal.http.http11 import SILENT_END
from skymount.portal.http.proxy import Proxy, ProxyAwayError, TunnelRefusedError
from skymount.settings import DEFAULT_SVC_PORTAL_URL, PortalOptions

NO_PORTAL = "is this the address of a portal?"
MOVED = (
    "name the portal by the address that it redirects to; or, if your network or the portal wants "
    "you to log in first, do so in a browser"
)

_START = (
    "start a portal with `skymount portal serve` or `skymount mount`, or name one with --portal URL"
)
_REFUSED = "is the portal running, and is the port right?"
_NO_TLS_REASONS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
_NO_TLS = "nobody speaks TLS there: write http:// in place of https://"
_WANTS_TLS = "write https:// in place of http://"
_LOG_IN = "log in to your network first: open any web page in a browser"
_WITHOUT_PROXY = "to go without it, name the host in NO_PROXY"
_MAY_BE_PROXY = f"it may be the proxy that says so; {_WITHOUT_PROXY}"
_WANTS_NAME = "a server before the portal wants a user name too: that goes into `headers`"
_PROXY_AWAY = f"is that proxy running, and is its address right? {_WITHOUT_PROXY}"
_LATER = "try again later"
_WHICH_NAME = "is the name right?"
_IS_ONLINE = "is this machine online?"

# What servers say on a port for TLS to whoever speaks without: nginx, Go, Apache.
_TLS_PORT = re.compile(rb"sent to HTTPS port|to an HTTPS server|to an SSL-enabled server port")

_NAMES = {
    socket.EAI_NONAME: _WHICH_NAME,
    socket.EAI_NODATA: _WHICH_NAME,  # type: ignore[attr-defined, unused-ignore]
    socket.EAI_AGAIN: _IS_ONLINE,
}
_CLOCK = "is the clock of this machine right?"
_OTHER_NAME = "use the name that the certificate is for"
_AUTHORITY = "to trust it, name a file with its authority in ca_file or SSL_CERT_FILE"
_CERTIFICATES = {  # by OpenSSL's number of what is wrong
    9: _CLOCK,  # not valid yet
    10: f"its operator must renew it; {_CLOCK}",
    **dict.fromkeys((18, 19, 20, 21), _AUTHORITY),
    62: _OTHER_NAME,
    64: _OTHER_NAME,
}

# Of a server that is before the portal: what the portal itself says is in its words.
_OF_STATUS = {
    402: "the account there has to be paid for",
    403: "a server before the portal lets no such request through; its operator knows why",
    408: "it took too long to send the request; try again",
    413: (
        "a server before the portal takes no upload as large as this: its operator can allow more "
        "(client_max_body_size in nginx), or use another portal"
    ),
    429: "these were too many requests for a server before the portal",
    451: "the content is blocked there; another portal may have it",
    502: "the portal behind this server does not answer as it should: is it running?",
    503: "the portal is overloaded, or out of service for a while",
    504: "the portal behind this server did not answer in time",
    507: "the disk there is full: make room, or use another portal",
    511: _LOG_IN,
}
_OF_PROXY = frozenset({403, 502, 503, 504})
_PASSING = frozenset({429, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Refusal:
    """A response that is no success, as far as advice depends on it."""

    status: int
    words: str = ""
    """The message of a portal, empty if there is none."""
    text: str = ""
    """What the error of a portal is otherwise, if that is text."""
    server: str = ""
    """Its Server header."""
    beginning: bytes = b""
    """Of its body."""
    retry_after: float | None = None
    proxy: Proxy | None = None
    """The one of the environment that passed it on, or made it."""
    is_of_portal: bool = False
    """Whether a portal surely sent it."""

    @property
    def is_from_portal(self) -> bool | None:
        """Whether a portal sent it; None if that is open, as it says what is wrong, whoever did."""
        if self.is_of_portal or self.words:
            return True
        is_failure = self.status >= 500 and self.status != HTTPStatus.NOT_IMPLEMENTED
        is_clear = is_failure or self.status in (401, 407, *_OF_STATUS) or self._wants_tls
        return None if is_clear else False

    @property
    def _wants_tls(self) -> bool:
        return self.status == HTTPStatus.BAD_REQUEST and bool(_TLS_PORT.search(self.beginning))

    @property
    def _is_of_server_before(self) -> bool:
        """Whether a server before the portal made it, which may add the portal's header to it. The
        portal's own errors have words, but for HEAD.
        """
        has_words = bool(self.words or self.text)
        return not has_words and (bool(self.beginning) or not self.is_of_portal)

    @property
    def message(self) -> str:
        """What happened: the portal's words, or else the status, and who may have sent it."""
        if self.words or self.text:
            return self.words or self.text
        try:
            phrase = f" ({HTTPStatus(self.status).phrase})"
        except ValueError:
            phrase = ""
        said = f"HTTP status {self.status}{phrase}"
        if self.proxy is not None and self.status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
            return f"{said} from {self.proxy}"
        server = f" from {self.server}" if self.server and not self.is_of_portal else ""
        through = f", through {self.proxy}" if self.proxy is not None else ""
        return f"{said}{server}{through}"

    def advice(self, options: PortalOptions) -> str:
        """Return what to do about it; "" if only the portal's own words can say that."""
        if self.status == HTTPStatus.UNAUTHORIZED:
            return self._about_credentials(options)
        if self.status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED and self.proxy is not None:
            return _about_proxy(self.status, self.proxy, "HTTP_PROXY")
        if self._wants_tls:
            return _WANTS_TLS
        known = ""
        if self.proxy is not None and self.status in _OF_PROXY and self.is_from_portal is not True:
            known = _MAY_BE_PROXY
        elif self._is_of_server_before:
            known = _OF_STATUS.get(self.status, "")
        when = _LATER if known and self.status in _PASSING else ""
        if self.retry_after is not None:
            when = again_in(self.retry_after)
        return "; ".join(filter(None, (known, when)))

    def _about_credentials(self, options: PortalOptions) -> str:
        if self.text and not options.headers:  # a portal with accounts (docs/wire.md 9)
            name = f"{options.dialect.header_prefix}-Api-Key"
            return f"it wants an account there: put the key of yours into `headers`, as {name}"
        if options.api_key:
            wrong = "the api_key is wrong"
            return wrong if self.is_from_portal else f"{wrong}, or {_WANTS_NAME}"
        if options.headers:
            return "what `headers` in the configuration has for this portal is wrong, or not enough"
        return "set api_key in the configuration, or SKYMOUNT_API_KEY, for this portal"


def again_in(seconds: float, who: str = "it") -> str:
    """Say when a portal may be asked again."""
    return f"{who} may be asked again in {math.ceil(seconds)} s"


def _about_proxy(status: int, proxy: Proxy, variable: str) -> str:
    """Return what to do about a proxy of the environment that does not pass a request on."""
    if status != HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
        return f"the proxy may not connect to that host, or cannot; {_WITHOUT_PROXY}"
    if proxy.authorization:
        return f"the name or the password of the proxy in {variable} is wrong"
    address = f"{proxy.scheme}://NAME:PASSWORD@{proxy.host}:{proxy.port}"
    return f"give it a name and a password: {variable}={address}"


def about_failure(error: BaseException, url: str) -> str:
    """Return what to do when the portal of an address could not be asked; "" if that is unknown."""
    for cause in causes(error):
        found = _about_cause(cause, url)
        if found:
            return found
    return ""


def _about_cause(cause: BaseException, url: str) -> str:
    if isinstance(cause, ProxyAwayError):
        return _PROXY_AWAY
    if isinstance(cause, TunnelRefusedError):
        return _about_proxy(cause.status, cause.proxy, "HTTPS_PROXY")
    if isinstance(cause, ssl.SSLCertVerificationError):
        return _CERTIFICATES.get(cause.verify_code, "")
    if isinstance(cause, ssl.SSLError):
        return _NO_TLS if cause.reason in _NO_TLS_REASONS else ""
    if isinstance(cause, socket.gaierror):
        return _NAMES.get(cause.errno or 0, "")
    if isinstance(cause, OSError) and cause.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH):
        return _IS_ONLINE
    if isinstance(cause, ConnectionRefusedError):
        return _START if url == DEFAULT_SVC_PORTAL_URL else _REFUSED
    if isinstance(cause, httpx.RemoteProtocolError) and str(cause).startswith(SILENT_END):
        return f"if it wants TLS, {_WANTS_TLS}" if url.startswith("http://") else ""
    return ""


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what caused it, the members of groups included."""
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            for each in error.exceptions:
                yield from causes(each)
        error = error.__cause__
