"""What a running mount takes over from a configuration that is read again (semantics, M9)."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import trio

from skymount.config import Config
from skymount.config_portals import CREDENTIALS
from skymount.daemon.log import reopen_file, set_level
from skymount.errors import SkymountError
from skymount.portal.failover.portals import Portals
from skymount.portal.options import ClientOptions
from skymount.portal.registry.name_resolver import NameResolver

log = logging.getLogger(__name__)

_OF_PORTALS = frozenset(
    {
        *("dialect", "api_key", "user_agent", "headers", "node_url", "ca_file", "connections"),
        *("redirect_hosts", "portal_tables"),
    }
)
"""The keys that are compared portal by portal."""

_KEYS = {"custom_user_agent": "user_agent"}  # what options are called in the configuration


@dataclass(frozen=True, slots=True)
class Changes:
    """What differs between two configurations."""

    credentials: Sequence[str]
    """Portals whose api_key or headers have changed."""
    remount: Sequence[str]
    """Keys that take effect when the mount starts again."""


def compare(old: Config, new: Config) -> Changes:
    """Return what has changed."""
    changed = [each.name for each in fields(Config) if _value(old, each) != _value(new, each)]
    before, after = old.portal_options, new.portal_options
    common = [url for url in before if url in after]
    options = {
        key
        for url in common
        for key in before[url].keys() | after[url].keys()
        if _option(before, url, key) != _option(after, url, key)
    }
    needing = [key for key in changed if key != "log_level" and key not in _OF_PORTALS]
    return Changes(
        [
            url
            for url in common
            if any(_option(before, url, key) != _option(after, url, key) for key in CREDENTIALS)
        ],
        sorted({*needing, *(_KEYS.get(key, key) for key in options if key not in CREDENTIALS)}),
    )


def _value(config: Config, key: Any) -> object:
    return getattr(config, key.name)


def _option(options: Mapping[str, ClientOptions], url: str, key: str) -> object:
    return options[url].get(key) or None


@dataclass(eq=False)
class Reloader:
    """Reads the configuration again, and hands the parts of a mount what has changed."""

    config: Config
    """As it is in effect."""
    reread: Callable[[], Config]
    portals: Portals
    resolver: NameResolver

    async def reload(self) -> None:
        """Read it again, and resolve names again that are used from now on. Open the log again.

        A configuration with an error changes nothing.
        """
        reopen_file()
        self.resolver.outdate_all()
        try:
            new = await trio.to_thread.run_sync(self.reread)
        except SkymountError as error:
            log.error("SIGHUP: nothing is changed: %s", error)
            return
        changes = compare(self.config, new)
        if new.log_level != self.config.log_level:
            log.info("SIGHUP: log_level is %s now", new.log_level)
        for url in changes.credentials:
            log.info("SIGHUP: %s has other credentials now", url)
        for key in changes.remount:
            log.warning("SIGHUP: %s has changed: mount again for that", key)
        if new.log_level == self.config.log_level and not (changes.credentials or changes.remount):
            log.info("SIGHUP: the configuration is as before")
        self.config = replace(
            self.config,
            api_key=new.api_key,
            headers=new.headers,
            portal_tables=new.portal_tables,
            log_level=new.log_level,
        )
        set_level(new.log_level)
        for client in self.portals.clients:
            if client.url in changes.credentials:
                client.set_credentials(new.portal_options[client.url])
