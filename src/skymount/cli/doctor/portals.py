"""Checks of the portals: reachable, over TLS if so configured, of the dialect, with the right time.

One request each is made, through the proxy that the environment names.
"""

import os
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import trio

from skymount.cli.doctor.finding import Finding, failure, ok, warning
from skymount.cli.status_report import readable_time
from skymount.concurrency import run_all
from skymount.config import Config
from skymount.errors import (
    AccessDeniedError,
    MalformedError,
    NotFoundError,
    PortalError,
)
from skymount.portal.http.client import HttpClient
from skymount.portal.http.response import Response
from skymount.portal.options import PortalOptions, is_local
from skymount.wire.dialect import PRESETS, Dialect
from skymount.wire.http.requests import Request
from skymount.wire.limited_json import decode_json

TIMEOUT = 5.0
"""Seconds that a portal may take for each step."""

_LIMIT = 10.0  # seconds for all portals together
_BODY_LIMIT = 1 << 20  # bytes
_CLOCK_TOLERANCE = 120.0  # seconds
_LISTENING = "0A"

# What to do about an error, by words of OpenSSL, of the resolver and of the kernel.
_ADVICE = (
    ("certificate has expired", "its operator must renew it; is the clock of this machine right?"),
    ("certificate is not yet valid", "is the clock of this machine right?"),
    ("self-signed certificate", "name the authority's certificates as ca_file"),
    ("unable to get local issuer", "name the authority's certificates as ca_file"),
    ("Hostname mismatch", "use the name that the certificate is for"),
    ("IP address mismatch", "use the name that the certificate is for"),
    ("WRONG_VERSION_NUMBER", "nobody speaks TLS there: write http:// in place of https://"),
    ("record layer failure", "nobody speaks TLS there: write http:// in place of https://"),
    ("sent to HTTPS port", "write https:// in place of http://"),
    ("Name or service not known", "is the name right?"),
    ("Temporary failure in name resolution", "is this machine online?"),
    ("all attempts to connect", "is the portal running, and is the port right?"),
)


@dataclass(frozen=True, slots=True)
class _Answer:
    response: Response
    received: float  # when, in seconds since 1970


def checks(config: Config) -> Sequence[Finding]:
    """Check all portals at once."""
    found: dict[str, Sequence[Finding]] = {}
    options = {
        url: replace(
            PortalOptions.parse(url, **given),
            connect_timeout=TIMEOUT,
            idle_timeout=TIMEOUT,
            retries=0,
        )
        for url, given in config.portal_options.items()
    }

    async def check(url: str) -> None:
        found[url] = await _check(options[url], is_default=not config.portals)

    async def main() -> None:
        with trio.move_on_after(_LIMIT):
            await run_all(*(partial(check, url) for url in options))

    trio.run(main)
    return [
        each
        for url in options
        for each in found.get(url, [failure(f"portal {url}", f"no answer in {_LIMIT:g} s")])
    ]


async def _check(options: PortalOptions, *, is_default: bool) -> Sequence[Finding]:
    url, subject = options.url, f"portal {options.url}"
    if is_default and not await _is_taken(url):
        return [ok(subject, "nobody listens there; a mount starts a portal of its own")]
    findings = [each for each in [check_owner(url, is_default=is_default)] if each]
    try:
        answer = await _ask(options, options.dialect)
    except NotFoundError:
        return [*findings, await _other_dialect(options)]
    except AccessDeniedError as error:
        return [*findings, failure(subject, str(error), "set api_key, or the right one")]
    except PortalError as error:
        return [*findings, failure(subject, error.message, _advice(error.message))]
    try:
        decode_json(answer.response.body, dict[str, object], "what it sent", _BODY_LIMIT)
    except MalformedError:
        return [*findings, _no_portal(subject, "it sends something else than a portal does")]
    writes = ", used read-only" if options.read_only else ""
    findings.append(ok(subject, f"it answers, in the dialect {options.dialect.name}{writes}"))
    return [*findings, *check_clock(url, answer.response.headers.get("date", ""), answer.received)]


async def _is_taken(url: str) -> bool:
    parts = urlsplit(url)
    try:
        with trio.fail_after(TIMEOUT):
            stream = await trio.open_tcp_stream(parts.hostname or "", parts.port or 80)
    except (OSError, trio.TooSlowError):
        return False
    await stream.aclose()
    return True


async def _ask(options: PortalOptions, dialect: Dialect) -> _Answer:
    http = HttpClient(options.url, options)
    try:
        response = await http.fetch(Request("GET", dialect.path("stats")), _BODY_LIMIT)
        return _Answer(response, time.time())
    finally:
        await http.aclose()


async def _other_dialect(options: PortalOptions) -> Finding:
    """Ask in all other dialects, as what was configured is not spoken there."""
    subject = f"portal {options.url}"
    for dialect in PRESETS.values():
        if dialect is not options.dialect:
            try:
                await _ask(options, dialect)
            except PortalError:
                continue
            text = f"it speaks the dialect {dialect.name}, not {options.dialect.name}"
            return failure(subject, text, f'set dialect = "{dialect.name}"')
    return _no_portal(subject, "it does not know the requests of a portal")


def _no_portal(subject: str, text: str) -> Finding:
    return failure(subject, text, "is this the address of a portal?")


def _advice(message: str) -> str:
    return next((advice for words, advice in _ADVICE if words in message), "")


def check_clock(url: str, date: str, received: float) -> Iterator[Finding]:
    """Compare a Date header with our clock, which certificates are checked by."""
    subject = f"clock of {url}"
    try:
        theirs = parsedate_to_datetime(date[:64]).timestamp()
    except (ValueError, TypeError, OverflowError):
        return
    ahead = theirs - received
    if abs(ahead) <= _CLOCK_TOLERANCE:
        yield ok(subject, "it agrees with ours")
        return
    by = f"{readable_time(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'} this machine's"
    yield warning(subject, f"it is {by}", "`timedatectl` says whether ours is right")


def check_owner(url: str, *, is_default: bool) -> Finding | None:
    """Say whose portal on this machine it is, if it is another user's."""
    parts = urlsplit(url)
    owner = listener_uid(parts.hostname or "", parts.port or 80) if is_local(url) else None
    if owner is None or owner == os.getuid():
        return None
    subject, text = f"portal {url}", f"another user (uid {owner}) listens there"
    advice = "that user sees what you upload: name a portal with portals = [...]"
    return warning(subject, text, advice) if is_default else ok(subject, text)


def listener_uid(host: str, port: int) -> int | None:
    """Return the user who listens at a loopback address, None if that is not known."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            address, _, number = fields[1].partition(":")
            if fields[3] == _LISTENING and int(number, 16) == port and _is_at(address, host):
                return int(fields[7])
    return None


def _is_at(address: str, host: str) -> bool:
    """Whether a listener of the kernel's table gets what is sent to a loopback host."""
    words = struct.pack(
        f"={len(address) // 8}I", *(int(address[i : i + 8], 16) for i in range(0, len(address), 8))
    )
    if not any(words):
        return True
    text = socket.inet_ntop(socket.AF_INET if len(words) == 4 else socket.AF_INET6, words)
    return text.removeprefix("::ffff:") == host or host == "localhost"
