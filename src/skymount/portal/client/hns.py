"""The HNS calls of the client: what a domain resolves to, and URLs of content and names."""

from dataclasses import dataclass
from typing import Any, Unpack
from urllib.parse import urlsplit

import msgspec
import trio

from skymount.errors import SkymountError
from skymount.portal.client import arguments
from skymount.portal.client.base import PortalReader
from skymount.portal.http.client import HttpClient
from skymount.settings import CommonOptions, PortalOptions
from skymount.values import flag, text
from skymount.wire.hns import DomainRecord, SkylinkRecord, parse_domain, parse_resolution
from skymount.wire.http import requests, responses
from skymount.wire.skylink import Skylink


@dataclass(frozen=True, slots=True)
class HnsResult:
    """The record of a domain."""

    data: dict[str, Any]
    """The record as the portal sends it: ``skylink`` or ``registry``."""
    skylink: str
    """``<scheme>://<skylink>``; for a registry record that of the entry (v2)."""
    record: DomainRecord


async def resolve(http: HttpClient, domain: str, call: PortalOptions) -> HnsResult:
    """Ask a portal what a domain in canonical form resolves to (endpoint 12)."""
    request = requests.hns_resolution(domain)
    answer = await http.fetch(request, responses.RESPONSE_LIMIT, call)
    with http.parsing(request, call, answer.status):
        record = parse_resolution(answer.body)
        data: dict[str, Any] = msgspec.json.decode(answer.body)
    path = record.path if isinstance(record, SkylinkRecord) else ""
    return HnsResult(data, call.dialect.link(f"{record.skylink}{path}"), record)


class HnsCalls(PortalReader):
    """Domains, and URLs (contract, endpoints 11 and 12)."""

    async def resolve_hns(self, domain: str, **options: Unpack[CommonOptions]) -> HnsResult:
        """Ask what a domain resolves to; NotFoundError for an unknown one."""
        call = self.options.overridden(**options)
        return await resolve(self.http, canonical_domain(domain), call)

    async def open_file(
        self,
        skylink: str | Skylink,
        *,
        path: str = "",
        download: bool = False,
        **options: Unpack[CommonOptions],
    ) -> str:
        """Open content in the system's browser; return the URL. SkymountError without a browser."""
        url = self.get_skylink_url(skylink, path=path, download=download, **options)
        await _open_browser(url)
        return url

    async def open_file_hns(
        self,
        domain: str,
        *,
        path: str = "",
        download: bool = False,
        **options: Unpack[CommonOptions],
    ) -> str:
        """Open what a domain resolves to in the system's browser; return the URL."""
        url = self.get_hns_url(domain, path=path, download=download, **options)
        await _open_browser(url)
        return url

    def get_skylink_url(
        self,
        skylink: str | Skylink,
        *,
        path: str = "",
        download: bool = False,
        subdomain: bool = False,
        **options: Unpack[CommonOptions],
    ) -> str:
        """Return ``{base_url}/<skylink>[/<path>]``; with `download` one that forces a download.

        With `subdomain` the skylink is a part of the host name.
        """
        base_url = self.options.overridden(**options).url
        target, inner = arguments.link(skylink, path)
        query = _download_query(download)
        if flag(subdomain, "subdomain"):
            return f"{_subdomain(base_url, target.base32)}/{requests.quote_path(inner)}{query}"
        suffix = f"/{requests.quote_path(inner)}" if inner else ""
        return f"{base_url}/{target}{suffix}{query}"

    def get_hns_url(
        self,
        domain: str,
        *,
        path: str = "",
        download: bool = False,
        subdomain: bool = False,
        **options: Unpack[CommonOptions],
    ) -> str:
        """Return ``{base_url}/hns/<domain>[/<path>]``, or one with the domain in the host name."""
        base_url = self.options.overridden(**options).url
        name, inner = canonical_domain(domain), arguments.inner_path(path)
        query = _download_query(download)
        if flag(subdomain, "subdomain"):
            return f"{_subdomain(base_url, f'{name}.hns')}/{requests.quote_path(inner)}{query}"
        return base_url + requests.hns_download(name, inner).target + query

    def get_hnsres_url(
        self, domain: str, *, download: bool = False, **options: Unpack[CommonOptions]
    ) -> str:
        """Return ``{base_url}/hnsres/<domain>``."""
        base_url = self.options.overridden(**options).url
        request = requests.hns_resolution(canonical_domain(domain))
        return base_url + request.target + _download_query(download)


def canonical_domain(value: object) -> str:
    """Return the canonical form of a domain that a caller gives, with or without ``hns:``."""
    given = text(value, "domain")
    is_short = given[:4].lower() == "hns:" and given[4:6] != "//"
    return parse_domain(given[4:] if is_short else given)


def _download_query(download: bool) -> str:
    return "?attachment=true" if flag(download, "download") else ""


def _subdomain(url: str, label: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{label}.{parts.netloc}{parts.path}"


async def _open_browser(url: str) -> None:
    import webbrowser

    try:
        is_open = await trio.to_thread.run_sync(webbrowser.open, url, abandon_on_cancel=True)
    except webbrowser.Error:
        is_open = False
    if not is_open:
        raise SkymountError(f"no browser can be started; the address is {url}")
