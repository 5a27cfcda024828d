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
    except (SkymountError, trio.TooSlowError) as error:
        made = translated(error, link)
        if made is error:
            raise
        raise made from made.__cause__


def translated(error: Exception, link: object) -> Exception:
    """Return what a caller gets of a failure."""
    if isinstance(error, trio.TooSlowError):
        return os_error(errno.ETIMEDOUT, link, "no portal sent it in time")
    if not isinstance(error, SkymountError) or isinstance(error, ValueError | TypeError):
        return error
    number = next(number for kind, number in _ERRNO if isinstance(error, kind))
    made = os_error(number, link, _reason(error))
    made.__cause__ = error
    return made


def _reason(error: SkymountError) -> str:
    if isinstance(error, NotFoundError):
        return "no portal has it"
    if isinstance(error, BadContentError):
        return f"what a portal sent is not what it should be: {error}"
    return str(error)
