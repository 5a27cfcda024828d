"""Whether a portal can be used: one real request, and advice about what went wrong."""

from collections.abc import Sequence
from dataclasses import replace

import trio

from skymount.errors import (
    AccessDeniedError,
    MalformedError,
    NotFoundError,
    PortalError,
    PortalTimeoutError,
    UnavailableError,
)
from skymount.portal.http.client import HttpClient
from skymount.portal.http.response import Response
from skymount.portal.options import PortalOptions
from skymount.wire.dialect import PRESETS, Dialect
from skymount.wire.http.requests import Request
from skymount.wire.limited_json import decode_json

BODY_LIMIT = 1 << 20
"""Bytes of an answer."""

NO_PORTAL = "is this the address of a portal?"

# What to do about an error, by words of OpenSSL, of the resolver and of the kernel.
_ADVICE = (
    ("certificate has expired", "its operator must renew it; is the clock of this machine right?"),
    ("certificate is not yet valid", "is the clock of this machine right?"),
    ("Hostname mismatch", "use the name that the certificate is for"),
    ("IP address mismatch", "use the name that the certificate is for"),
    ("WRONG_VERSION_NUMBER", "nobody speaks TLS there: write http:// in place of https://"),
    ("record layer failure", "nobody speaks TLS there: write http:// in place of https://"),
    ("sent to HTTPS port", "write https:// in place of http://"),
    ("disconnected without sending", "if it wants TLS, write https:// in place of http://"),
    ("is not as expected", NO_PORTAL),
    ("Name or service not known", "is the name right?"),
    ("No address associated with hostname", "is the name right?"),
    ("Temporary failure in name resolution", "is this machine online?"),
    ("Connection refused", "is the portal running, and is the port right?"),
)


def advice_for(message: str) -> str:
    """Return what to do about an error of a portal; "" if that is not known."""
    return next((advice for words, advice in _ADVICE if words in message), "")


async def ask(options: PortalOptions, dialect: Dialect) -> Response:
    """Return a portal's answer to a request that any portal knows."""
    http = HttpClient(options.url, options)
    try:
        return await http.fetch(Request("GET", dialect.path("stats")), BODY_LIMIT)
    finally:
        await http.aclose()


def is_of_portal(response: Response) -> bool:
    """Whether a successful answer may be a portal's."""
    try:
        decode_json(response.body, dict[str, object], "what it sent", BODY_LIMIT)
    except MalformedError:
        return False
    return True


async def other_dialect(options: PortalOptions) -> Dialect | None:
    """Return the dialect in which a portal answers that does not know the configured one."""
    for dialect in PRESETS.values():
        if dialect is not options.dialect:
            try:
                await ask(options, dialect)
            except PortalError:
                continue
            return dialect
    return None


async def problem_with(options: PortalOptions, limit: float) -> str:
    """Return why a portal cannot be used and what to do, "" if it answers.

    It gets `limit` seconds to answer.
    """
    hasty = replace(options, connect_timeout=limit, idle_timeout=limit, retries=0)
    with trio.move_on_after(limit):
        return _with_advice(options.url, *await _problem(hasty))
    return f"{options.url} does not answer yet: silent for {limit:g} s; {_WORKS_LATER}"


_WORKS_LATER = "the tree works once it does"


async def _problem(options: PortalOptions) -> Sequence[str]:
    """Return what is wrong and what to do; nothing if all is well."""
    try:
        response = await ask(options, options.dialect)
    except AccessDeniedError as error:
        return error.message, "set api_key in the configuration, or the right one"
    except NotFoundError as error:
        if error.message != f"HTTP status {error.status}":  # it has the words of a portal
            return ()
        dialect = await other_dialect(options)
        if dialect is None:
            return "it does not know the requests of a portal", NO_PORTAL
        return (
            f"it speaks the dialect {dialect.name}, not {options.dialect.name}",
            f'set dialect = "{dialect.name}"',
        )
    except UnavailableError as error:
        is_silent = isinstance(error, PortalTimeoutError) or error.unreached is not None
        advice = advice_for(error.message)
        late = _WORKS_LATER if is_silent and "certificate" not in error.message else ""
        what = error.message.rpartition("cannot be reached: ")[2]
        return what, "; ".join(filter(None, (advice, late)))
    except PortalError as error:
        return error.message, advice_for(error.message) or NO_PORTAL
    if is_of_portal(response):
        return ()
    return "it sends something else than a portal does", NO_PORTAL


def _with_advice(url: str, what: str = "", advice: str = "") -> str:
    if not what:
        return ""
    said = f"{url} does not answer yet: {what}" if _WORKS_LATER in advice else f"{url}: {what}"
    return f"{said}; {advice}" if advice else said
