"""What to do about each kind of failure: from what happened to the message and the advice."""

import errno
import socket
import ssl
from http import HTTPStatus

import httpx
import pytest

from skymount.portal.http.advice import Refusal, about_failure
from skymount.portal.http.proxy import Proxy, ProxyAwayError, TunnelRefusedError
from skymount.settings import DEFAULT_SVC_PORTAL_URL, PortalOptions

URL = "http://portal.example"
PROXY = Proxy("http", "proxy.example", 3128)
KNOWN_PROXY = Proxy("http", "proxy.example", 3128, b"Basic eDp5")
TOO_LARGE = HTTPStatus(413).phrase  # another one since Python 3.13
LARGE = (
    "a server before the portal takes no upload as large as this: its operator can allow more "
    "(client_max_body_size in nginx), or use another portal"
)
MAY_BE_PROXY = "it may be the proxy that says so; to go without it, name the host in NO_PROXY"
SET_KEY = "set api_key in the configuration, or SKYMOUNT_API_KEY, for this portal"
TLS_PORT = b"<center>The plain HTTP request was sent to HTTPS port</center>"

REFUSALS = [
    # a portal's own words say what is wrong
    (Refusal(500, "Skykey name already used"), "Skykey name already used", ""),
    (Refusal(507, "the disk of this portal is full"), "the disk of this portal is full", ""),
    (Refusal(413, "it is over the limit"), "it is over the limit", ""),
    (Refusal(503, "busy", retry_after=2.5), "busy", "it may be asked again in 3 s"),
    (Refusal(404, is_of_portal=True), "HTTP status 404 (Not Found)", ""),
    (Refusal(502, "upstream is down", proxy=PROXY), "upstream is down", ""),
    # servers before it
    (Refusal(413, server="nginx"), f"HTTP status 413 ({TOO_LARGE}) from nginx", LARGE),
    (
        Refusal(429, server="nginx"),
        "HTTP status 429 (Too Many Requests) from nginx",
        "these were too many requests for a server before the portal; try again later",
    ),
    (
        Refusal(429, retry_after=7),
        "HTTP status 429 (Too Many Requests)",
        "these were too many requests for a server before the portal; it may be asked again in 7 s",
    ),
    (
        Refusal(502),
        "HTTP status 502 (Bad Gateway)",
        "the portal behind this server does not answer as it should: is it running?; try again",
    ),
    (
        Refusal(503),
        "HTTP status 503 (Service Unavailable)",
        "the portal is overloaded, or out of service for a while; try again later",
    ),
    (
        Refusal(504),
        "HTTP status 504 (Gateway Timeout)",
        "the portal behind this server did not answer in time; try again later",
    ),
    (
        Refusal(403),
        "HTTP status 403 (Forbidden)",
        "a server before the portal lets no such request through; its operator knows why",
    ),
    (
        Refusal(511),
        "HTTP status 511 (Network Authentication Required)",
        "log in to your network first: open any web page in a browser",
    ),
    (Refusal(500), "HTTP status 500 (Internal Server Error)", ""),
    (Refusal(599), "HTTP status 599", ""),
    # nginx adds the portal's header to its own pages too; the portal's words are missing for HEAD
    (Refusal(413, is_of_portal=True), f"HTTP status 413 ({TOO_LARGE})", ""),
    (
        Refusal(413, is_of_portal=True, beginning=b"<html>"),
        f"HTTP status 413 ({TOO_LARGE})",
        LARGE,
    ),
    (Refusal(403, text="for subscribers", is_of_portal=True), "for subscribers", ""),
    (Refusal(400, beginning=TLS_PORT), "HTTP status 400 (Bad Request)", "write https:// in place"),
    # proxies of the environment
    (
        Refusal(407, proxy=PROXY),
        "HTTP status 407 (Proxy Authentication Required) from the proxy http://proxy.example:3128",
        "give it a name and a password: HTTP_PROXY=http://NAME:PASSWORD@proxy.example:3128",
    ),
    (
        Refusal(407, proxy=KNOWN_PROXY),
        "HTTP status 407 (Proxy Authentication Required) from the proxy http://proxy.example:3128",
        "the name or the password of the proxy in HTTP_PROXY is wrong",
    ),
    (
        Refusal(503, server="squid", proxy=PROXY),
        f"HTTP status 503 (Service Unavailable) from squid, through {PROXY}",
        f"{MAY_BE_PROXY}; try again later",
    ),
]


@pytest.mark.parametrize(("refusal", "message", "advice"), REFUSALS)
def test_refusals(refusal: Refusal, message: str, advice: str) -> None:
    """C18: Each says who refused what, and what to do."""
    assert refusal.message == message
    found = refusal.advice(PortalOptions.parse(URL))
    assert found == advice or (advice and found.startswith(advice))


@pytest.mark.parametrize(
    ("refusal", "answer"),
    [
        (Refusal(404), False),
        (Refusal(400), False),
        (Refusal(501), False),
        (Refusal(404, "no"), True),
        (Refusal(404, is_of_portal=True), True),
        (Refusal(400, beginning=TLS_PORT), None),
        (Refusal(403), None),
        (Refusal(429), None),
        (Refusal(522, server="cloudflare"), None),
    ],
)
def test_who_refused(refusal: Refusal, answer: bool | None) -> None:
    """C18: There is doubt only where the refusal does not say what is wrong."""
    assert refusal.is_from_portal is answer


def test_a_portal_with_accounts() -> None:
    """C18: It says so in text, and takes no api_key."""
    refusal = Refusal(401, text="authenticated users only", is_of_portal=True)
    for given in ({}, {"api_key": "x"}):
        options = PortalOptions.parse(URL, **given)  # type: ignore[arg-type]
        assert refusal.advice(options).endswith("into `headers`, as Svc-Api-Key")


@pytest.mark.parametrize(
    ("words", "options", "advice"),
    [
        ("API authentication failed.", {}, SET_KEY),
        ("API authentication failed.", {"api_key": "x"}, "the api_key is wrong"),
        ("", {"api_key": "x"}, "the api_key is wrong, or a server before the portal wants a user"),
        ("no", {"headers": {"Cookie": "x=y"}}, "what `headers` in the configuration has"),
    ],
)
def test_credentials(words: str, options: dict[str, object], advice: str) -> None:
    """C18: A key that is missing is not one that is wrong."""
    parsed = PortalOptions.parse(URL, **options)  # type: ignore[arg-type]
    assert Refusal(401, words).advice(parsed).startswith(advice)


def certificate_error(code: int) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code = code
    return error


def tls_error(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, reason)
    error.reason = reason
    return error


def refused() -> OSError:
    """What trio raises if no address can be connected to."""
    made = OSError("all attempts to connect failed")
    cause = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
    made.__cause__ = ExceptionGroup("", [cause])
    return made


def proxy_away() -> ProxyAwayError:
    made = ProxyAwayError("")
    made.__cause__ = refused()
    return made


@pytest.mark.parametrize(
    ("cause", "url", "advice"),
    [
        (refused(), DEFAULT_SVC_PORTAL_URL, "start a portal with `skymount portal serve` or"),
        (refused(), URL, "is the portal running, and is the port right?"),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), URL, "is this machine online?"),
        (socket.gaierror(socket.EAI_NONAME, "no such name"), URL, "is the name right?"),
        (socket.gaierror(socket.EAI_AGAIN, "later"), URL, "is this machine online?"),
        (certificate_error(9), URL, "is the clock of this machine right?"),
        (certificate_error(10), URL, "its operator must renew it; is the clock"),
        (certificate_error(20), URL, "to trust it, name a file with its authority in ca_file"),
        (certificate_error(62), URL, "use the name that the certificate is for"),
        (tls_error("WRONG_VERSION_NUMBER"), URL, "nobody speaks TLS there: write http://"),
        (
            httpx.RemoteProtocolError("Server disconnected without sending a response."),
            URL,
            "if it wants TLS, write https:// in place of http://",
        ),
        (
            TunnelRefusedError(PROXY, 407, ""),
            URL,
            "give it a name and a password: HTTPS_PROXY=http://NAME:PASSWORD@proxy.example:3128",
        ),
        (
            TunnelRefusedError(KNOWN_PROXY, 407, ""),
            URL,
            "the name or the password of the proxy in HTTPS_PROXY is wrong",
        ),
        (proxy_away(), URL, "is that proxy running, and is its address right? to go"),
        (TunnelRefusedError(PROXY, 403, ""), URL, "the proxy may not connect to that host"),
    ],
)
def test_failures(cause: Exception, url: str, advice: str) -> None:
    """C18: The cause tells what to do, however it is wrapped."""
    error = httpx.ConnectError("")
    error.__cause__ = cause
    assert about_failure(error, url).startswith(advice)


def test_what_nobody_knows() -> None:
    assert about_failure(httpx.ConnectError("odd"), URL) == ""
