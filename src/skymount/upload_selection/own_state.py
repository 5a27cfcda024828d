"""Where skymount keeps what is its user's alone: keys, configuration, ledger, portal, cache."""

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from skymount.errors import ConfigError, MalformedError
from skymount.storage.pipes import open_at_once
from skymount.upload_selection.secret_files import (
    HEAD_LIMIT,
    OWN_FORMS,
    OWN_STATE,
    reason_of_form,
)
from skymount.upload_selection.selection import shown
from skymount.user_directories import KINDS, user_directory


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


def refuse_own_state(path: Path) -> None:
    """MalformedError if what is named itself is of skymount's own state, by its place; a file also
    if it is so by its form.
    """
    reason = OWN_STATE if OwnState.find().holds(os.path.realpath(path)) else _own_form(path)
    if reason:
        raise MalformedError(f"{shown(str(path))}: {reason}; it is uploaded with --all only")


def _own_form(path: Path) -> str:
    with suppress(OSError), open(path, "rb", buffering=0, opener=open_at_once) as file:
        found = os.fstat(file.fileno())
        if stat.S_ISREG(found.st_mode):
            reason = reason_of_form(file.read(HEAD_LIMIT), found.st_size)
            return reason if reason in OWN_FORMS else ""
    return ""  # the upload says what is wrong with it
