"""What the portals said to one operation, and what that means together. No IO."""

from collections.abc import Callable
from typing import TypeVar

from skymount.errors import BadContentError, NotFoundError, PortalError, UnavailableError
from skymount.portal.client.base import PortalReader
from skymount.portal.failover.reachability import Attempts

E = TypeVar("E", bound=PortalError)


class Tally:
    """The answers of all rounds that are not good ones."""

    def __init__(
        self,
        attempts: Callable[[PortalReader], Attempts],
        spared: set[PortalReader],
        failure: PortalError | None,
    ) -> None:
        """`spared` are portals that are not asked, and `failure` says why."""
        self.done = set(spared)
        self._spared = spared
        self.is_empty = True
        self._attempts = attempts
        self._failure = failure
        self._refusal: PortalError | None = None

    def admit(self, spared: set[PortalReader]) -> None:
        """Let those of the portals that were spared be asked that are so no more."""
        self.done -= self._spared - spared
        self._spared &= spared

    def note(self, client: PortalReader, error: PortalError) -> None:
        self.is_empty = False
        if isinstance(error, (UnavailableError, BadContentError)):
            if self._attempts(client) is not Attempts.ALL:
                self.done.add(client)
            if not isinstance(self._failure, BadContentError):
                self._failure = _bare(error)
        else:
            self.done.add(client)
            if self._refusal is None or isinstance(self._refusal, NotFoundError):
                self._refusal = _bare(error)

    @property
    def is_refused(self) -> bool:
        """Whether a portal refused, or said «not found»."""
        return self._refusal is not None

    @property
    def error(self) -> PortalError | None:
        return self._failure or self._refusal


def _bare(error: E) -> E:
    """Return the error without its traceback and causes, whose frames hold what was received."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)
