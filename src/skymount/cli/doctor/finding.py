"""What a check found."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    """It works, but not as well as it could, or not for long."""
    FAILURE = "failure"
    """Something does not work, or secrets are not safe."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found, and what to do about it."""

    subject: str
    level: Level
    text: str
    advice: str = ""

    @property
    def line(self) -> str:
        text = f"{self.text.rstrip('.')}; {self.advice}" if self.advice else self.text
        return f"{self.level:<8} {self.subject}: {text}"


def ok(subject: str, text: str) -> Finding:
    """Make a finding that all is well."""
    return Finding(subject, Level.OK, text)


def warning(subject: str, text: str, advice: str = "") -> Finding:
    """Make a finding of something to look at."""
    return Finding(subject, Level.WARNING, text, advice)


def failure(subject: str, text: str, advice: str = "") -> Finding:
    """Make a finding of something that does not work."""
    return Finding(subject, Level.FAILURE, text, advice)
