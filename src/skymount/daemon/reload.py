"""What a running mount takes over from a configuration that is read again (semantics, M9)."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import trio

from skymount.daemon.log import reopen_file, set_level
from skymount.errors import SkymountError
from skymount.portal.failover.portals import Portals
from skymount.portal.registry.name_resolver import NameResolver
from skymount.settings import SETTINGS, Config, PortalOptions, declared

log = logging.getLogger(__name__)

_LIVE = {name for name, each in SETTINGS.items() if each.live}


def compare(old: Config, new: Config) -> tuple[list[str], list[str]]:
    """Return the portals whose credentials have changed, and the keys that take effect when the
    mount starts again. What is set for portals is compared portal by portal.
    """
    before, after = old.portal_options, new.portal_options
    of_portals = {
        url: _changed(before[url], after[url], declared(PortalOptions))
        for url in before
        if url in after
    }
    changed = _changed(old, new, SETTINGS.keys() - declared(PortalOptions)).union(
        *of_portals.values()
    )
    credentials = [url for url, names in of_portals.items() if names & _LIVE]
    return credentials, sorted(changed - _LIVE)


def _changed(old: object, new: object, names: Iterable[str]) -> set[str]:
    return {name for name in names if getattr(old, name) != getattr(new, name)}


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
        credentials, remount = compare(self.config, new)
        if new.log_level != self.config.log_level:
            log.info("SIGHUP: log_level is %s now", new.log_level)
        for url in credentials:
            log.info("SIGHUP: %s has other credentials now", url)
        for key in remount:
            log.warning("SIGHUP: %s has changed: mount again for that", key)
        if new.log_level == self.config.log_level and not (credentials or remount):
            log.info("SIGHUP: the configuration is as before")
        live = {name: getattr(new, name) for name in _LIVE}
        self.config = replace(self.config, portal_tables=new.portal_tables, **live)
        set_level(new.log_level)
        for client in self.portals.clients:
            if client.url in credentials:
                client.set_credentials(new.portal_options[client.url])
