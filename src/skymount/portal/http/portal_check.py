"""Whether a portal can be used: real requests, and what to do if it cannot."""

import ssl
from dataclasses import replace

import trio

from skymount.errors import (
    AccessDeniedError,
    NoPortalError,
    NotFoundError,
    PortalError,
    PortalTimeoutError,
)
from skymount.portal.http.advice import NO_PORTAL, causes
from skymount.portal.http.client import HttpClient
from skymount.portal.http.recognition import ANSWER_LIMIT, is_of_portal, question
from skymount.portal.http.response import Response
from skymount.portal.options import PortalOptions
from skymount.wire.http.requests import Request

_WORKS_LATER = "the tree works once it does"


async def ask(http: HttpClient) -> Response | None:
    """Return a portal's answer to a request that any portal knows; None if it refuses this one.
    PortalError, with advice, if it is no portal or cannot be used.
    """
    try:
        response = await http.fetch(question(http.options.dialect), ANSWER_LIMIT)
    except NotFoundError:
        return None
    if not is_of_portal(response):
        error = NoPortalError("it sends something else than a portal does", url=http.url)
        error.advice = NO_PORTAL
        raise error
    return response


async def ask_for_write(http: HttpClient) -> None:
    """AccessDeniedError if the portal does not let us change anything. Nothing is changed: what it
    is sent is no registry entry.
    """
    try:
        await http.fetch(
            Request("POST", http.options.dialect.path("registry")), ANSWER_LIMIT, content=b"{}"
        )
    except AccessDeniedError:
        raise
    except PortalError:
        return


async def problem_with(options: PortalOptions, limit: float) -> str:
    """Return why a portal cannot be used and what to do, "" if it answers.

    It gets `limit` seconds to answer. Whether it takes our credentials is asked only if there are
    any: reading may need none.
    """
    hasty = replace(options, connect_timeout=limit, idle_timeout=limit, retries=0)
    http = HttpClient(options.url, hasty)
    try:
        with trio.move_on_after(limit):
            await ask(http)
            if options.api_key and not options.read_only:
                await ask_for_write(http)
            return ""
    except PortalError as error:
        return _described(options.url, error)
    finally:
        await http.aclose()
    return f"{options.url} does not answer yet: silent for {limit:g} s; {_WORKS_LATER}"


def _described(url: str, error: PortalError) -> str:
    is_silent = isinstance(error, PortalTimeoutError) or error.unreached is not None
    works_later = is_silent and not any(isinstance(each, ssl.SSLError) for each in causes(error))
    what = error.message.rpartition("cannot be reached: ")[2].rstrip(".")
    said = f"{url} does not answer yet: {what}" if works_later else f"{url}: {what}"
    return "; ".join(filter(None, (said, error.advice, _WORKS_LATER if works_later else "")))
