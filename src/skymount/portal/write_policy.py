"""When a write to several portals has succeeded (the setting `registry_writes`)."""

from enum import StrEnum
from typing import Self

from skymount.errors import MalformedError


class WritePolicy(StrEnum):
    """How many of the portals that take writes must have taken one."""

    ANY = "any"
    MAJORITY = "majority"
    ALL = "all"

    @classmethod
    def parse(cls, text: str) -> Self:
        try:
            return cls(text)
        except ValueError:
            names = ", ".join(policy.value for policy in cls)
            raise MalformedError(f"registry_writes must be one of {names}, not {text!r}") from None

    def needed(self, portals: int) -> int:
        """Return how many of so many portals must have taken it."""
        if self is WritePolicy.ANY:
            return min(portals, 1)
        return portals if self is WritePolicy.ALL else portals // 2 + 1
