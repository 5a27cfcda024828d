"""How long a resolved name holds, when to ask for it again, and what is served meanwhile. No IO."""

from dataclasses import dataclass, replace

from skymount.errors import NotFoundError
from skymount.wire.skylink import Skylink

NEGATIVE_TTL = 5.0  # seconds for which «not found» holds: somebody may register the name any moment
_FIRST_BACK_OFF = 2.0  # seconds; doubled for each further failure in a row, up to the TTL
_MOST_DOUBLINGS = 32
_REFRESH_AHEAD = 5.0  # seconds before an answer runs out, if that is not more than a quarter of it

_PROVISIONAL_TTL = 5.0  # seconds


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a name leads to."""

    skylink: Skylink  # a v1 skylink
    verified: bool  # whether each registry entry on the path was; never of a domain
    requested_at: float = 0.0  # when it was asked for, by trio's clock
    provisional: bool = False  # whether nobody proved it, and a portal failed


@dataclass(frozen=True, slots=True)
class CachedResolution:
    """What is known of a name. Times are seconds of one clock."""

    found: Resolution | None = None  # the last good answer
    absent: bool = False  # whether the last answer was that there is no such name
    requested_at: float = 0.0
    failures: int = 0  # in a row, since that answer
    failed_at: float = 0.0
    outdated: bool = False  # whether it is known to have changed since

    @property
    def stale(self) -> bool:
        """Whether the last good answer is served though it may have changed."""
        return self.found is not None and (self.failures > 0 or self.outdated)

    def revalidate_in(self, now: float, ttl: float) -> float:
        """Return the seconds until the portals are to be asked again; 0: now."""
        if self.outdated:
            return 0.0
        if self.failures:
            doublings = min(self.failures - 1, _MOST_DOUBLINGS)
            until = self.failed_at + min(ttl, _FIRST_BACK_OFF * 2.0**doublings)
        elif self.absent:
            until = self.requested_at + NEGATIVE_TTL
        elif self.found is not None:
            holds = min(ttl, _PROVISIONAL_TTL) if self.found.provisional else ttl
            until = self.requested_at + holds
        else:
            return 0.0
        return max(0.0, until - now)

    def refresh_in(self, now: float, ttl: float) -> float | None:
        """Return the seconds until a name in use is asked for before its answer runs out.

        None where that is not done: there is no good answer, it is provisional and holds for
        seconds only, or the last attempt failed.
        """
        if self.found is None or self.found.provisional or self.failures or self.outdated:
            return None
        return max(0.0, self.requested_at + ttl - min(_REFRESH_AHEAD, ttl / 4) - now)

    def answer(self, now: float, ttl: float) -> Resolution | None:
        """Return what still holds, or raise NotFoundError; None if the portals are to be asked."""
        if not self.revalidate_in(now, ttl):
            return None
        if self.absent:
            raise NotFoundError("there is no such name")
        return self.found

    def after_failure(self, now: float) -> "CachedResolution":
        failures = self.failures + 1
        return replace(self, absent=False, failures=failures, failed_at=now, outdated=False)
