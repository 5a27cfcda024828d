"""Turns failures of upstream portals into the answers that clients get."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from skymount.errors import DisprovedError, NotFoundError, PortalError, PortalTimeoutError
from skymount.server.http_error import HttpError

LONGEST_WAIT = 60.0
"""Seconds that a request waits for upstream portals."""

_log = logging.getLogger(__name__)


def http_error(error: PortalError, *, absent: str) -> HttpError:
    """Return what a request is answered with; `absent` is the text if there is no such thing."""
    if isinstance(error, NotFoundError):
        return HttpError(404, absent)
    if isinstance(error, DisprovedError):
        _log.warning("upstream: not served: %s", error)
        return HttpError(502, f"upstream sent something else: {error}")
    status = 504 if isinstance(error, PortalTimeoutError) else 502
    return HttpError(status, f"upstream cannot be asked: {error}")


@contextmanager
def upstream_errors(absent: str, longest_wait: float = LONGEST_WAIT) -> Iterator[None]:
    """HttpError for a failure of upstream, also for a wait that is too long."""
    try:
        with trio.fail_after(longest_wait):
            yield
    except PortalError as error:
        raise http_error(error, absent=absent) from None
    except trio.TooSlowError:
        text = f"it did not answer within {longest_wait:.0f} s"
        raise HttpError(504, f"upstream cannot be asked: {text}") from None
