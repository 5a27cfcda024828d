"""Where skymount keeps what is its user's alone: keys, configuration, ledger, portal, cache."""

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

OWN_STATE = "skymount's own state"


@dataclass(frozen=True, slots=True)
class OwnState:
    """The folders of this user's state, by resolved path, and by device and inode."""

    _paths: tuple[str, ...] = ()
    _identities: frozenset[tuple[int, int]] = frozenset()

    @classmethod
    def find(cls) -> Self:
        """Find those that are there."""
        import platformdirs

        paths, identities = [], []
        for place in (
            platformdirs.user_config_dir,
            platformdirs.user_data_dir,
            platformdirs.user_state_dir,
            platformdirs.user_cache_dir,
        ):
            with suppress(OSError, RuntimeError):  # RuntimeError: without a home there is none
                path = os.path.realpath(place("skymount"))
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
