"""Owns the way from flags to an open client or reader, for commands that ask portals and end.

    settings = load(portals=portals, dialect=dialect, config_file=config_file)
    result = run_with_client(settings, lambda client: client.resolve_hns(domain))

What goes wrong leaves both functions as it is, never in an exception group.
"""

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import trio

from skymount import config
from skymount.config import Config
from skymount.errors import UnavailableError
from skymount.portal.client import PortalClient
from skymount.portal.options import PortalOptions
from skymount.wire.dialect import dialect_named

if TYPE_CHECKING:
    from skymount.content.reader import ContentReader
    from skymount.content.skyfile import Policy
    from skymount.portal.failover import Portals

T = TypeVar("T")

_LEAST_CACHE = 1 << 20  # bytes; with none at all, each part of a unit would fetch the whole of it


@dataclass(frozen=True, slots=True)
class Reading:
    """What reads content: all portals, and a reader that checks what they send."""

    portals: "Portals"
    reader: "ContentReader"
    policy: "Policy"


def load(
    *,
    portals: Sequence[str] = (),
    dialect: str | None = None,
    config_file: str | None = None,
    verify: str | None = None,
) -> Config:
    """Read the configuration, with these flags over it; ConfigError says what is wrong."""
    flags = {"portals": portals or None, "dialect": dialect, "verify": verify}
    return config.load(flags, environ=os.environ, file=config_file or "")


def make_client(settings: Config) -> PortalClient:
    """Make a client of the first portal, not yet open: enough to ask it for URLs."""
    url = settings.portal_urls[0]
    return PortalClient(url, dialect=settings.dialect, api_key=settings.api_key)


def run_with_client(settings: Config, function: Callable[[PortalClient], Awaitable[T]]) -> T:
    """Run a function with a client of the first portal; return its result."""

    async def main() -> T:
        async with make_client(settings) as client:
            return await function(client)

    return _run(settings, main)


def run_with_reader(settings: Config, function: Callable[[Reading], Awaitable[T]]) -> T:
    """Run a function with a reader that asks all portals, as a mount's does; return its result."""

    async def main() -> T:
        async with _open_reading(settings) as reading:
            return await function(reading)

    return _run(settings, main)


@asynccontextmanager
async def _open_reading(settings: Config) -> AsyncIterator[Reading]:
    from skymount.content.cache import MemoryCache
    from skymount.content.loader import Loader
    from skymount.content.reader import open_reader
    from skymount.portal.failover import Portals
    from skymount.portal.reading import PortalReader

    dialect = dialect_named(settings.dialect)
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                PortalReader.of(
                    # no repetitions: `Portals` asks the next portal instead, in rounds
                    PortalOptions.parse(url, dialect=dialect, api_key=settings.api_key, retries=0)
                )
            )
            for url in settings.portal_urls
        ]
        portals = Portals(clients)
        cache = MemoryCache(max(settings.memory_cache, _LEAST_CACHE))
        loader = Loader(portals, settings.verify)
        reader = await stack.enter_async_context(open_reader(portals, loader, cache))
        yield Reading(portals, reader, settings.verify)


def _run(settings: Config, main: Callable[[], Awaitable[T]]) -> T:
    logging.getLogger("skymount").addHandler(logging.NullHandler())  # what fails is raised as well
    try:
        # An interrupt between two steps that belong together would leave a file behind.
        return trio.run(main, restrict_keyboard_interrupt_to_checkpoints=True)
    except BaseExceptionGroup as group:
        leaves = list(_leaves(group))
        interrupts = [leaf for leaf in leaves if isinstance(leaf, KeyboardInterrupt)]
        cause = (interrupts or leaves)[0]
        raise _advised(settings, cause) from cause.__cause__
    except UnavailableError as error:
        raise _advised(settings, error) from error.__cause__


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error


def _advised(settings: Config, error: BaseException) -> BaseException:
    """Return the error, with advice if nobody named a portal and none is there."""
    if settings.portals or not isinstance(error, UnavailableError):
        return error
    return UnavailableError(
        f"{error}; start a portal with `skymount portal serve` or `skymount mount`, "
        "or name one with --portal URL"
    )
