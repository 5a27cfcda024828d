"""Waits for portals that asked for a pause (Retry-After), if it is a short one."""

import copy
import math
import random
from collections.abc import Collection, Mapping

import trio

from skymount.errors import PortalError, UnavailableError
from skymount.portal.failover.health import PortalHealth
from skymount.portal.http.advice import again_in

_SPREAD = 0.1
"""Seconds over which operations that waited for the same portal are spread."""


async def wait_for_one(portals: Collection[PortalHealth], begun: float, longest: float) -> bool:
    """Wait for the first portal whose pause ends; False, at once, if none asked for one that lasted
    when the operation began, or if its end is more than `longest` seconds after that.
    """
    due = min((each.told_until for each in portals if each.told_until > begun), default=math.inf)
    if due > begun + longest:
        return False
    await trio.sleep_until(due + random.uniform(0, _SPREAD))
    return True


class Waits:
    """The waits of one write: together they may take so many seconds from the first one on."""

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._until: float | None = None

    async def wait(self, portals: Collection[PortalHealth]) -> bool:
        """Wait as `wait_for_one`, within what is left."""
        now = trio.current_time()
        if self._until is None:
            self._until = now + self._longest
        return await wait_for_one(portals, now, self._until - now)


def with_end(error: PortalError, portals: Mapping[str, PortalHealth]) -> PortalError:
    """Return an error that also says when a portal, by its address, may be asked again."""
    now = trio.current_time()
    told = [(each.told_until, url) for url, each in portals.items() if each.told_until > now]
    if not told or not isinstance(error, UnavailableError):
        return error
    until, url = min(told)
    found = copy.copy(error)
    known = error.advice
    if error.retry_after is not None:
        known = known.removesuffix(again_in(error.retry_after)).removesuffix("; ")
    found.advice = "; ".join(filter(None, (known, again_in(until - now, url))))
    return found
