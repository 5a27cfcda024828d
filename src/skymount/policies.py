"""What is demanded of content that is read, and of writes to several portals."""

from enum import StrEnum

from skymount.errors import PortalError


class VerifyPolicy(StrEnum):
    """What is done with content that cannot be checked against its skylink."""

    REQUIRE = "require"
    """It is refused."""
    AVAILABLE = "available"
    """It is served, and the result says so; content that can be checked must pass."""
    OFF = "off"


class WritePolicy(StrEnum):
    """How many of the portals that take writes must have taken one (`registry_writes`)."""

    ANY = "any"
    MAJORITY = "majority"
    ALL = "all"

    def needed(self, portals: int) -> int:
        """Return how many of so many portals must have taken it."""
        if self is WritePolicy.ANY:
            return min(portals, 1)
        return portals if self is WritePolicy.ALL else portals // 2 + 1


def too_few(error: PortalError, took: int, portals: int, needed: int) -> PortalError:
    """Return the error of a write that fewer portals took than it needs."""
    if needed <= 1:
        return error
    return error.explained(before=f"{took} of {portals} portals took it, {needed} have to: ")


class Verified(StrEnum):
    """How far content was compared with its skylink."""

    YES = "yes"
    """Names and sizes were; each byte is before it is returned."""
    PARTLY = "partly"
    """Only names and sizes were."""
    NO = "no"
