"""What is demanded of the verification of content, and what was reached."""

from enum import StrEnum
from typing import Self

from skymount.errors import MalformedError


class VerifyPolicy(StrEnum):
    """What is done with content that cannot be checked against its skylink."""

    REQUIRE = "require"
    """It is refused."""
    AVAILABLE = "available"
    """It is served, and the result says so; content that can be checked must pass."""
    OFF = "off"

    @classmethod
    def parse(cls, text: str) -> Self:
        try:
            return cls(text)
        except ValueError:
            names = ", ".join(policy.value for policy in cls)
            raise MalformedError(f"verify must be one of {names}, not {text!r}") from None


class Verified(StrEnum):
    """How far content was compared with its skylink."""

    YES = "yes"
    """Names and sizes were; each byte is before it is returned."""
    PARTLY = "partly"
    """Only names and sizes were."""
    NO = "no"
