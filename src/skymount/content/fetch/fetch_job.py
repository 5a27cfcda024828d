"""What is being fetched: units in flight, and the jobs that fetch neighbouring ones together."""

from dataclasses import dataclass, field

import trio

from skymount.content.cache.memory_cache import Data, MemoryCache
from skymount.content.cache.room import Room
from skymount.content.model.skyfile import Skyfile, UnitKey
from skymount.errors import PortalError
from skymount.portal.client.base import PortalReader


@dataclass(slots=True, eq=False)
class Pending:
    """A unit in flight."""

    done: trio.Event = field(default_factory=trio.Event)
    data: Data | None = None
    error: PortalError | None = None
    waiting: int = 0
    """Reads that need it, whether they wait for it now or for a unit before it."""
    needs_portal: bool = False
    """Whether it is known not to be on disk."""

    def settle(self, data: Data | None, error: PortalError | None = None) -> None:
        self.data, self.error = data, error
        self.done.set()

    async def wait(self) -> Data:
        await self.done.wait()
        if self.data is None:
            raise self.error or PortalError("the reading was stopped")
        return self.data


@dataclass(slots=True, eq=False)
class FetchJob:
    """Neighbouring units of one size that are fetched together."""

    skyfile: Skyfile
    keys: list[UnitKey]
    refused: set[PortalReader]
    """Portals that do not send this payload as one stream."""
    speculative: bool
    """Whether it was started before anybody waited for it."""
    begun: float
    room: MemoryCache | Room
    """Where `bytes_left` are reserved while it is fetched, or looked for on disk."""
    units: list[Pending] = field(init=False)
    arrived: int = 0
    """Units that have arrived; they do so in order."""
    is_receiving: bool = False
    """Whether an attempt uses the room that was reserved for the job."""
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    def __post_init__(self) -> None:
        self.units = [Pending() for _ in self.keys]

    @property
    def size(self) -> int:
        """Bytes in a unit; the payload's last one may have less."""
        return self.keys[0][1]

    @property
    def first(self) -> int:
        return self.keys[0][2]

    def bytes_at(self, number: int) -> int:
        return min(self.size, self.skyfile.size - (self.first + number) * self.size)

    @property
    def bytes_left(self) -> int:
        size = self.skyfile.size
        start = min(size, (self.first + self.arrived) * self.size)
        return min(size, (self.first + len(self.keys)) * self.size) - start

    def need_portal(self) -> None:
        """Note that the units which have not arrived are not on disk."""
        for unit in self.units[self.arrived :]:
            unit.needs_portal = True

    @property
    def is_wanted(self) -> bool:
        return any(unit.waiting for unit in self.units)
