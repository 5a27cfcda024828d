"""Checks of the portals: reachable, over TLS if so configured, of the dialect, with the right time.

One request each is made, through the proxy that the environment names.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from functools import partial
from urllib.parse import urlsplit

import trio

from skymount import default_portal
from skymount.cli.doctor.finding import Finding, failure, ok, warning
from skymount.cli.status_report import readable_time
from skymount.concurrency import run_all
from skymount.config import Config
from skymount.errors import (
    AccessDeniedError,
    NotFoundError,
    PortalError,
)
from skymount.portal.http import portal_check
from skymount.portal.http.response import Response
from skymount.portal.options import PortalOptions

TIMEOUT = 5.0
"""Seconds that a portal may take for each step."""

_LIMIT = 10.0  # seconds for all portals together
_CLOCK_TOLERANCE = 120.0  # seconds


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
        answer = await _ask(options)
    except NotFoundError:
        return [*findings, await _other_dialect(options)]
    except AccessDeniedError as error:
        return [*findings, failure(subject, str(error), "set api_key, or the right one")]
    except PortalError as error:
        return [*findings, failure(subject, error.message, portal_check.advice_for(error.message))]
    if not portal_check.is_of_portal(answer.response):
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


async def _ask(options: PortalOptions) -> _Answer:
    return _Answer(await portal_check.ask(options, options.dialect), time.time())


async def _other_dialect(options: PortalOptions) -> Finding:
    """Ask in all other dialects, as what was configured is not spoken there."""
    subject = f"portal {options.url}"
    dialect = await portal_check.other_dialect(options)
    if dialect is None:
        return _no_portal(subject, "it does not know the requests of a portal")
    text = f"it speaks the dialect {dialect.name}, not {options.dialect.name}"
    return failure(subject, text, f'set dialect = "{dialect.name}"')


def _no_portal(subject: str, text: str) -> Finding:
    return failure(subject, text, portal_check.NO_PORTAL)


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
    owner = default_portal.foreign_owner(url)
    if owner is None:
        return None
    subject, text = f"portal {url}", f"another user (uid {owner}) listens there"
    advice = "that user sees what you upload: name a portal with portals = [...]"
    return warning(subject, text, advice) if is_default else ok(subject, text)
