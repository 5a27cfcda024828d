"""Checks of the portals: reachable, over TLS if so configured, of the dialect, with the right time.

Each gets two requests, through the proxy that the environment names.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from email.utils import parsedate_to_datetime
from functools import partial
from urllib.parse import urlsplit

import trio

from skymount import default_portal
from skymount.cli.doctor.finding import Finding, failure, ok, warning
from skymount.cli.status_report import readable_time
from skymount.concurrency import run_all
from skymount.errors import AccessDeniedError, PortalError
from skymount.portal.http import portal_check
from skymount.portal.http.client import HttpClient
from skymount.settings import DEFAULT_SVC_PORTAL_URL, Config, PortalOptions

TIMEOUT = 5.0
"""Seconds that a portal may take for each step."""

_LIMIT = 10.0  # seconds for all portals together
_CLOCK_TOLERANCE = 120.0  # seconds


def checks(config: Config) -> Sequence[Finding]:
    """Check all portals at once."""
    found: dict[str, Sequence[Finding]] = {}
    own = None if config.portals else default_portal.find()
    findings = [] if own is None else list(check_default(own))
    if own is not None:
        if not own.url:
            return findings
        config = replace(config, default_portal=own.url)
    options = {
        url: replace(given, connect_timeout=TIMEOUT, idle_timeout=TIMEOUT, retries=0)
        for url, given in config.portal_options.items()
    }

    async def check(url: str) -> None:
        found[url] = await _check(options[url], is_default=own is not None)

    async def main() -> None:
        with trio.move_on_after(_LIMIT):
            await run_all(*(partial(check, url) for url in options))

    trio.run(main)
    for url in options:
        findings += found.get(url, [failure(f"portal {url}", f"no answer in {_LIMIT:g} s")])
    return findings


async def _check(options: PortalOptions, *, is_default: bool) -> Sequence[Finding]:
    url, subject = options.url, f"portal {options.url}"
    if is_default and not await _is_taken(url):
        return [ok(subject, "nobody listens there; a mount starts a portal of its own")]
    findings = [] if is_default else list(check_owner(url))
    http, is_refused = HttpClient(url, options), False
    try:
        response, received = await portal_check.ask(http), time.time()
        try:
            if not options.read_only:
                await portal_check.ask_for_write(http)
        except AccessDeniedError:
            if options.api_key:
                raise
            is_refused = True
    except PortalError as error:
        return [*findings, failure(subject, error.message, error.advice)]
    finally:
        await http.aclose()
    text = f"it answers, in the dialect {options.dialect.name}"
    if options.read_only:
        text += ", used read-only"
    elif is_refused:
        text += "; to change something there, it wants an api_key"
    findings.append(ok(subject, text))
    date = "" if response is None else response.headers.get("date", "")
    return [*findings, *check_clock(url, date, received)]


async def _is_taken(url: str) -> bool:
    parts = urlsplit(url)
    try:
        with trio.fail_after(TIMEOUT):
            stream = await trio.open_tcp_stream(parts.hostname or "", parts.port or 80)
    except (OSError, trio.TooSlowError):
        return False
    await stream.aclose()
    return True


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


def check_owner(url: str) -> Iterator[Finding]:
    """Say whose portal on this machine it is, if it is another user's."""
    owner = default_portal.foreign_owner(url)
    if owner is not None:
        yield ok(f"portal {url}", f"another user (uid {owner}) listens there")


def check_default(found: default_portal.DefaultPortal) -> Iterator[Finding]:
    """Say which portal is used without a name, if another user has the default address."""
    if found.foreign_uid is None:
        return
    taken = f"another user (uid {found.foreign_uid}) listens there, so it is not used by default"
    subject = f"portal {DEFAULT_SVC_PORTAL_URL}"
    if found.url:
        yield ok(subject, f"{taken}; your own portal is at {found.url}")
        return
    advice = "`skymount mount` starts one of your own, or name a portal with portals = [...]"
    yield warning(subject, f"{taken}, and you run none of your own", advice)
