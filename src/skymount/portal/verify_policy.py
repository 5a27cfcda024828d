"""Owns the words for trust in content: what is demanded of it, and how far it was checked."""

from enum import StrEnum
from typing import Self

from skymount.errors import MalformedError


class VerifyPolicy(StrEnum):
    """What is done with content that cannot be checked against its skylink."""

    REQUIRE = "require"
    """It is refused."""
    AVAILABLE = "available"
    """It is served, and says so; content that can be checked must pass."""
    OFF = "off"
    """Nothing is checked."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the policy of that name."""
        try:
            return cls(text)
        except ValueError:
            names = ", ".join(policy.value for policy in cls)
            raise MalformedError(f"verify must be one of {names}, not {text!r}") from None


class Verified(StrEnum):
    """How much of what is handed out of a skylink has been checked against it."""

    YES = "yes"
    """Names and sizes were; every byte of content is before it is handed out."""
    PARTLY = "partly"
    """Names and sizes were, the bytes of content are not."""
    NO = "no"
