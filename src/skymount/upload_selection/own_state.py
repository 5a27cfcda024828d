"""What its user keeps alone: skymount's own state, and secrets that are named themselves."""

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from skymount.errors import ConfigError
from skymount.storage.pipes import open_at_once
from skymount.upload_selection.secret_files import (
    HEAD_LIMIT,
    OWN_STATE,
    SECRETS,
    reason_of_form,
    reason_of_name,
)
from skymount.upload_selection.selection import NamedSecretError, shown
from skymount.user_directories import KINDS, user_directory

_LINKS_LIMIT = 40  # as in Linux


@dataclass(frozen=True, slots=True)
class OwnState:
    """The folders of this user's state, by resolved path, and by device and inode."""

    _paths: tuple[str, ...] = ()
    _identities: frozenset[tuple[int, int]] = frozenset()

    @classmethod
    def find(cls) -> Self:
        """Find those that are there."""
        paths, identities = [], []
        for kind in KINDS:
            with suppress(OSError, ConfigError):  # ConfigError: without a home there is none
                path = os.path.realpath(user_directory(kind, ConfigError))
                status = os.stat(path)
                paths.append(path)
                identities.append((status.st_dev, status.st_ino))
        return cls(tuple(paths), frozenset(identities))

    def is_one(self, identity: tuple[int, int]) -> bool:
        return identity in self._identities

    def holds(self, path: str) -> bool:
        """Whether a resolved path is one of them, or below one; also by another mount of it."""
        if any(path == each or path.startswith(f"{each}/") for each in self._paths):
            return True
        while self._identities and path != "/":
            with suppress(OSError):
                status = os.stat(path)
                if self.is_one((status.st_dev, status.st_ino)):
                    return True
            path = os.path.dirname(path)
        return False


def way(path: str) -> list[str]:
    """Return each directory and link that a path leads through, and last where it leads to. These
    are absolute, without a link in what is before the last name.
    """
    at, links = "/", 0
    found = [at]
    left = [*path.split("/")[::-1], *([] if path.startswith("/") else os.getcwd().split("/")[::-1])]
    while left:
        name = left.pop()
        if name == "..":
            at = os.path.dirname(at)
        elif name not in ("", "."):
            step = os.path.join(at, name)
            found.append(step)
            try:
                target = os.readlink(step) if links < _LINKS_LIMIT else ""
            except OSError:  # it is no link, or not there
                target = ""
            if target:
                links += 1
                at = "/" if target.startswith("/") else at
                left += target.split("/")[::-1]
            else:
                at = step
    return found if found[-1] == at else [*found, at]


def refuse_secret(path: Path) -> None:
    """NamedSecretError if what is named itself is secret or of skymount's own state: by where it
    is, by a name on the way there, or a file by its form.
    """
    steps = way(str(path))
    names = {os.path.basename(path), os.path.basename(steps[-1])}
    reason = OWN_STATE if OwnState.find().holds(steps[-1]) else _form(path, names)
    for step in steps:
        if not reason and (found := reason_of_name(step)) in (SECRETS, OWN_STATE):
            is_named = step in (os.path.abspath(path), steps[-1])
            reason = found if is_named else f"it leads through {shown(step)}: {found}"
    if reason:
        raise NamedSecretError(f"{shown(str(path))}: {reason}")


def _form(path: Path, names: Iterable[str]) -> str:
    with suppress(OSError), open(path, "rb", buffering=0, opener=open_at_once) as file:
        found = os.fstat(file.fileno())
        if stat.S_ISREG(found.st_mode):
            return reason_of_form(file.read(HEAD_LIMIT), found.st_size, names)
    return ""  # the upload says what is wrong with it
