"""The options of file access, and the configuration that they override."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from skymount import config, default_portal
from skymount.config import Config
from skymount.errors import AccessDeniedError, ConfigError, MalformedError, WrongTypeError


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
        named = None if portals is None else tuple(portals) or None
        for value, name in ((verify, "verify"), (api_key, "api_key")):
            if value is not None and not isinstance(value, str):
                raise WrongTypeError(f"{name} must be a text (str), not {type(value).__name__}")
        size = {True: None, False: 0}[disk_cache] if isinstance(disk_cache, bool) else disk_cache
        made = cls(named, verify, size, api_key)
        made.load()
        return made

    def load(self) -> Config:
        """Read the configuration, with these options before all else; MalformedError if it cannot
        be used.
        """
        flags = {
            "portals": self.portals,
            "verify": self.verify,
            "disk_cache": self.disk_cache,
            "api_key": self.api_key,
        }
        try:
            return config.load(flags, environ=os.environ)
        except ConfigError as error:
            raise MalformedError(str(error)) from None


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
