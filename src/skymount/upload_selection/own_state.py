"""Where skymount keeps what is its user's alone: keys, configuration, ledger, portal, cache."""

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from skymount.errors import ConfigError
from skymount.user_directories import KINDS, user_directory

OWN_STATE = "skymount's own state"


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
