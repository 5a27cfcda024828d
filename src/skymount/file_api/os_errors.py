"""Turns errors of portals and content into those of Python's own `open`."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from skymount.errors import (
    AccessDeniedError,
    BadContentError,
    NotFoundError,
    PortalTimeoutError,
    ReadOnlyPortalError,
    SkymountError,
)

_ERRNO = (
    (NotFoundError, errno.ENOENT),
    (AccessDeniedError, errno.EACCES),
    (PortalTimeoutError, errno.ETIMEDOUT),
    (ReadOnlyPortalError, errno.EROFS),
    (SkymountError, errno.EIO),
)


def os_error(number: int, link: object, reason: str = "") -> OSError:
    """Return the error of a number, of the class that Python gives it; it names the link."""
    text = os.strerror(number)
    return OSError(number, f"{text}: {reason}" if reason else text, str(link))


def naming(link: object, error: OSError) -> OSError:
    """Return the same error for another link."""
    made = OSError(error.errno, error.strerror, str(link))
    made.__cause__ = error.__cause__
    return made


def no_change(link: object) -> OSError:
    """Return the error of whatever would change something."""
    return os_error(errno.EROFS, link, "content of a skylink never changes; put makes a new one")


@contextmanager
def translating(link: object) -> Iterator[None]:
    """Raise OSError, with its cause, for what a portal did not do; it names the link.

    Wrong arguments stay what they are: a ValueError or a TypeError.
    """
    try:
        yield
    except trio.TooSlowError:
        raise os_error(errno.ETIMEDOUT, link, "no portal sent it in time") from None
    except SkymountError as error:
        if isinstance(error, ValueError | TypeError):
            raise
        number = next(number for kind, number in _ERRNO if isinstance(error, kind))
        raise os_error(number, link, _reason(error)) from error


def _reason(error: SkymountError) -> str:
    if isinstance(error, NotFoundError):
        return "no portal has it"
    if isinstance(error, BadContentError):
        return f"what a portal sent is not what it should be: {error}"
    return str(error)
