"""Brings back trees that were evicted while the kernel knows their names."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import trio

from skymount.concurrency import off_loop
from skymount.content.model.skyfile import Skyfile
from skymount.errors import BadContentError, NotFoundError, PortalError, UnavailableError
from skymount.fs.skylinks.mounted_name import TreeVersion
from skymount.fs.skylinks.tree import Tree
from skymount.wire.skylink import Skylink

log = logging.getLogger(__name__)


class SkyfileSource(Protocol):
    """Where descriptions of skylinks come from."""

    async def load(self, skylink: Skylink, fingerprint: bytes | None = None) -> Skyfile:
        """Describe a skylink; the description with the fingerprint was used before."""

    def forget(self, skyfile: Skyfile) -> None:
        """Let go of a skyfile whose tree is evicted."""


@dataclass(eq=False, slots=True)
class _Restore:
    """The load of one version."""

    ended: trio.Event = field(default_factory=trio.Event)
    error: PortalError | None = None


class TreeRestorer:
    """Loads evicted trees again, once for all who wait.

    `show` is called with a version, its tree and the fingerprint of that, or `replace` with a
    version that is described differently now, or provisionally.
    """

    def __init__(
        self,
        source: SkyfileSource,
        nursery: trio.Nursery,
        show: Callable[[TreeVersion, Tree, bytes], None],
        replace: Callable[[TreeVersion], None],
    ) -> None:
        self._source = source
        self._nursery = nursery
        self._show = show
        self._replace = replace
        self._restores: dict[TreeVersion, _Restore] = {}

    async def restore(self, version: TreeVersion) -> PortalError | None:
        """Load the tree of a version; return why that failed."""
        restore = self._restores.get(version)
        if restore is None:
            restore = self._restores[version] = _Restore()
            version.waiting += 1
            self._nursery.start_soon(self._run, version, restore)
        await restore.ended.wait()
        return restore.error

    async def _run(self, version: TreeVersion, restore: _Restore) -> None:
        target, name = version.target, version.mounted.name
        assert target is not None
        try:
            skyfile = await self._source.load(target, version.fingerprint)
            is_same = await fingerprint_of(skyfile) == version.fingerprint
            if is_same and not skyfile.is_provisional:
                self._show(version, Tree(skyfile), version.fingerprint)
            else:
                self._replace(version)
        except NotFoundError as error:
            restore.error = UnavailableError(f"{target}: {error}")  # it was there before
        except PortalError as error:
            restore.error = error
            log.info("%s: %s", name, error)
        except Exception:  # a bug that one name brings out must not end the mount
            restore.error = BadContentError(f"{name}: loading failed, see the log")
            log.exception("%s: loading failed", name)
        finally:
            if version.is_evicted and restore.error is None:
                restore.error = UnavailableError("the load was cancelled")
            version.waiting -= 1
            del self._restores[version]
            restore.ended.set()


async def fingerprint_of(skyfile: Skyfile) -> bytes:
    """Return its fingerprint, hashed in a thread if the listing is long."""
    return await off_loop(partial(skyfile.fingerprint), len(skyfile.listing.packed))
