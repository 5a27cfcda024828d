"""The options of file access, and the configuration that they override."""

import os
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Self, Unpack

from skymount import config
from skymount.errors import ConfigError, MalformedError, WrongTypeError
from skymount.settings import Config, FileOptions
from skymount.values import text
from skymount.wording import did_you_mean

_OTHER_VARIABLES = frozenset(
    {"HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "SSL_CERT_FILE", "SSL_CERT_DIR"}
)
_PROXY = "_proxy"  # how variables of proxies end, in small or capital letters


@dataclass(frozen=True, slots=True)
class Settings:
    """What counts for an operation: the configuration with a caller's options, and variables that
    are no part of it.
    """

    config: Config
    environment: tuple[tuple[str, str], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class ChosenOptions:
    """What a caller chose."""

    given: tuple[tuple[str, Any], ...] = field(default=(), repr=False)

    @classmethod
    def parse(cls, **options: Unpack[FileOptions]) -> Self:
        """WrongTypeError and MalformedError for values that cannot be used."""
        given: dict[str, Any] = {**options}
        known = FileOptions.__annotations__
        for name in given.keys() - known:
            advice = did_you_mean(name, known) or f"; there are {', '.join(known)}"
            raise WrongTypeError(f"unknown option {name!r}{advice}")
        for name in ("verify", "api_key"):
            if given.get(name) is not None:
                text(given[name], name)
        if isinstance(size := given.get("disk_cache"), bool):
            given["disk_cache"] = None if size else 0
        if (portals := given.get("portals")) is not None:
            named = (portals,) if isinstance(portals, str) else portals
            given["portals"] = tuple(filter(None, named)) or None
        made = cls(tuple(sorted(given.items())))
        made.settings()
        return made

    def settings(self) -> Settings:
        """Read configuration and environment, with these options before all else; MalformedError
        if they cannot be used.
        """
        file = config.path_to_read("")
        try:
            return _settings(self, tuple(os.environ.items()), _signature(file))
        except ConfigError as error:
            raise MalformedError(str(error)) from None


@lru_cache(maxsize=16)
def _settings(
    options: ChosenOptions, environment: tuple[tuple[str, str], ...], signature: tuple[object, ...]
) -> Settings:
    """Read the configuration once, as long as nothing of it changes."""
    kept = tuple(
        (name, value)
        for name, value in environment
        if name in _OTHER_VARIABLES or name.lower().endswith(_PROXY)
    )
    found = config.load(dict(options.given), environ=dict(environment), given_by="options")
    return Settings(found, kept)


def _signature(file: Path | None) -> tuple[object, ...]:
    """Return what changes with a file; () if there is none."""
    try:
        found = os.stat(file or "")
    except OSError:
        return ()
    return file, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
