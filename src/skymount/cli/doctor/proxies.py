"""Checks of the proxies that the environment names."""

import socket
from collections.abc import Iterator
from urllib.parse import urlsplit
from urllib.request import getproxies

from skymount.cli.doctor.finding import Finding, failure, ok
from skymount.errors import UnavailableError
from skymount.portal.http.proxy import Proxy, proxy_of
from skymount.settings import Config
from skymount.values import is_local

_TIMEOUT = 3.0  # seconds


def checks(config: Config) -> Iterator[Finding]:
    """Say how each portal is reached."""
    subject = "proxy"
    if not getproxies():
        yield ok(subject, "the environment names none")
        return
    for url in config.portal_urls:
        if is_local(url):
            yield ok(subject, f"{url} is asked directly: it is on this machine")
            continue
        try:
            proxy = proxy_of(url)
        except UnavailableError as error:
            yield failure(
                subject, error.message, "set HTTP_PROXY and HTTPS_PROXY like http://host:port"
            )
            continue
        yield _reachable(url, proxy) if proxy else ok(subject, f"{url} is asked directly")


def _reachable(url: str, proxy: Proxy) -> Finding:
    address = f"{proxy.scheme}://{proxy.host}:{proxy.port}"
    variable = f"{urlsplit(url).scheme.upper()}_PROXY"
    try:
        socket.create_connection((proxy.host, proxy.port), timeout=_TIMEOUT).close()
    except OSError as error:
        text = f"{address} cannot be reached: {error.strerror or error}"
        return failure("proxy", text, f"mend {variable}, or put the portal into NO_PROXY")
    return ok("proxy", f"{url} is asked through {address}")
