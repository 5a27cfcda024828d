"""What is uploaded of a folder, and what is not: the rules, and what the walk finds."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from skymount.errors import MalformedError

_NAMED = 20  # in an error; it has all of them

Identity = tuple[int, int]
"""Device and inode."""

Option = Literal["", "take_all", "follow_outside"]
"""The rule that would take along what is left out, if there is one."""


@dataclass(frozen=True, slots=True)
class SelectionRules:
    """What of a folder is uploaded."""

    take_all: bool = False
    """Also version control, secrets, files of editors, and skymount's own state."""
    excludes: tuple[str, ...] = ()
    """Patterns as in an ignore file of the folder; they come before these files."""
    follow_outside: bool = False
    """Also what links lead to outside of the folder."""
    skip_special: bool = False
    """Go on without what cannot be uploaded."""
    reads_ignore_files: bool = True


EVERYTHING = SelectionRules(take_all=True, reads_ignore_files=False)


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A regular file that is uploaded."""

    path: str
    """Where it is opened; it is no link."""
    name: str
    """Its path inside the upload."""
    size: int
    mode: int
    identity: Identity


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What is not uploaded. Not what a pattern of the user's leaves out."""

    path: str
    reason: str
    option: Option = ""

    def __str__(self) -> str:
        return f"{shown(self.path)}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Selection:
    """What is uploaded of a folder, and what is not."""

    files: list[FoundFile]
    left_out: list[LeftOut]
    empty: list[str]
    """Folders without anything in them, which a skylink cannot hold."""


class NamedSecretError(MalformedError):
    """What was named itself is uploaded by the rule `take_all` only."""


class UnusableFilesError(MalformedError):
    """There are files that cannot be uploaded: `files` has all of them."""

    def __init__(self, files: list[LeftOut]) -> None:
        super().__init__(listed(files))
        self.files = files


def listed(things: Sequence[LeftOut]) -> str:
    """Return the first of them in one line."""
    more = f"; and {len(things) - _NAMED} more" if len(things) > _NAMED else ""
    return "; ".join(map(str, things[:_NAMED])) + more


def shown(path: str) -> str:
    """Return a path for a message, in which bytes that are not UTF-8 are escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def options(things: Iterable[LeftOut]) -> list[Option]:
    """Return the rules that would take these things along."""
    return sorted({each.option for each in things if each.option}, reverse=True)
