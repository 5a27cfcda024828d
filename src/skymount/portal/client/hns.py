"""Owns what a client does with names: resolve a domain, and the URLs of content and names."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import msgspec

from skymount.errors import MalformedError
from skymount.portal.http.client import HttpClient
from skymount.portal.options import PortalOptions
from skymount.wire import requests, responses
from skymount.wire.hns import DomainRecord, SkylinkRecord, parse_resolution
from skymount.wire.skylink import Skylink


@dataclass(frozen=True, slots=True)
class HnsResult:
    """What a domain's record says."""

    data: dict[str, Any]
    """The record as the portal answers: ``skylink`` or ``registry``."""
    skylink: str
    """``<scheme>://<skylink>``; for a registry record that of the entry (v2)."""
    record: DomainRecord


async def resolve(transport: HttpClient, domain: str, call: PortalOptions) -> HnsResult:
    """Ask a portal what a domain, in canonical form, resolves to (endpoint 12)."""
    request = requests.hns_resolution(domain)
    answer = await transport.fetch(request, responses.RESPONSE_LIMIT, call)
    try:
        record = parse_resolution(answer.body)
        data: dict[str, Any] = msgspec.json.decode(answer.body)
    except MalformedError as error:
        raise transport.bad(request, call, str(error), answer.status) from None
    path = record.path if isinstance(record, SkylinkRecord) else ""
    return HnsResult(data, call.dialect.link(f"{record.skylink}{path}"), record)


def skylink_url(
    options: PortalOptions,
    skylink: Skylink,
    path: str,
    *,
    download: bool,
    subdomain: bool,
) -> str:
    """Return ``{base_url}/<skylink>[/<path>]``, or the form with the skylink as a subdomain."""
    base = _under(options.url, skylink.base32) if subdomain else f"{options.url}/{skylink}"
    if path:
        base += f"/{requests.quote_path(path)}"
    elif subdomain:
        base += "/"
    return base + _directive(download)


def hns_url(
    options: PortalOptions, domain: str, path: str, *, download: bool, subdomain: bool
) -> str:
    """Return ``{base_url}/hns/<domain>[/<path>]``, or the form with the name as a subdomain."""
    if subdomain:
        base = _under(options.url, f"{domain}.hns")
        return f"{base}/{requests.quote_path(path)}" + _directive(download)
    return options.url + requests.hns_download(domain, path).target + _directive(download)


def hnsres_url(options: PortalOptions, domain: str, *, download: bool) -> str:
    """Return ``{base_url}/hnsres/<domain>``."""
    return options.url + requests.hns_resolution(domain).target + _directive(download)


def _directive(download: bool) -> str:
    return "?attachment=true" if download else ""


def _under(url: str, label: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{label}.{parts.netloc}{parts.path}"
