"""The options of file access, and the configuration that they override."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from skymount import config, default_portal
from skymount.config import Config
from skymount.config_file import path_to_read
from skymount.errors import AccessDeniedError, ConfigError, MalformedError, WrongTypeError

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
class FileOptions:
    """What a caller chose; None: as the configuration says."""

    portals: tuple[str, ...] | None = None
    verify: str | None = None
    disk_cache: int | str | None = None
    api_key: str | None = field(default=None, repr=False)

    @classmethod
    def parse(
        cls,
        portals: str | Iterable[str] | None = None,
        verify: str | None = None,
        disk_cache: bool | int | str | None = None,
        api_key: str | None = None,
    ) -> "FileOptions":
        """WrongTypeError and MalformedError for values that cannot be used."""
        if isinstance(portals, str):
            portals = (portals,)
        named = None if portals is None else tuple(filter(None, portals)) or None
        for value, name in ((verify, "verify"), (api_key, "api_key")):
            if value is not None and not isinstance(value, str):
                raise WrongTypeError(f"{name} must be a text (str), not {type(value).__name__}")
        size = {True: None, False: 0}[disk_cache] if isinstance(disk_cache, bool) else disk_cache
        made = cls(named, verify, size, api_key)
        made.settings()
        return made

    def settings(self) -> Settings:
        """Read configuration and environment, with these options before all else; MalformedError
        if they cannot be used.
        """
        file = path_to_read("")
        try:
            return _settings(self, tuple(os.environ.items()), file, _signature(file))
        except ConfigError as error:
            raise MalformedError(str(error)) from None


@lru_cache(maxsize=16)
def _settings(
    options: FileOptions,
    environment: tuple[tuple[str, str], ...],
    file: Path | None,
    signature: tuple[int, ...],
) -> Settings:
    """Read the configuration once, as long as nothing of it changes."""
    flags = {
        "portals": options.portals,
        "verify": options.verify,
        "disk_cache": options.disk_cache,
        "api_key": options.api_key,
    }
    kept = tuple(
        (name, value)
        for name, value in environment
        if name in _OTHER_VARIABLES or name.lower().endswith(_PROXY)
    )
    return Settings(config.load(flags, environ=dict(environment), given_by="options"), kept)


def _signature(file: Path | None) -> tuple[int, ...]:
    """Return what changes with a file; () if there is none."""
    if file is None:
        return ()
    try:
        found = file.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def with_default_portal(settings: Config) -> Config:
    """Return the configuration with the portal that is used if none is named; AccessDeniedError if
    that is another user's.
    """
    if settings.portals:
        return settings
    found = default_portal.find()
    if not found.url:
        raise AccessDeniedError(
            f"{settings.default_portal}: another user (uid {found.foreign_uid}) listens there, who "
            "would see what you read, so it is not used by default; name a portal with portals=URL"
        )
    return replace(settings, default_portal=found.url)
