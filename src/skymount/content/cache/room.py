"""Room for content in flight, by bytes."""

import trio


class Room:
    """A number of bytes that may be reserved at once. More than all of them may be when nothing
    else is.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.reserved = 0
        self._first_waiter = trio.StrictFIFOLock()
        """Held by the first task that waits for room; later ones queue for it."""
        self._released = trio.lowlevel.ParkingLot()

    async def reserve(self, size: int) -> None:
        """Reserve so many bytes, waiting for them first come, first served."""
        if self._first_waiter.locked() or not self._has_room(size):
            async with self._first_waiter:
                while not self._has_room(size):
                    await self._released.park()
        self.reserved += size

    def try_reserve(self, size: int, limit: int | None = None) -> bool:
        """Reserve so many bytes unless a task waits for some, or all together were too many: more
        than `limit`, if one is given.
        """
        fits = self._has_room(size) if limit is None else self.reserved + size <= limit
        if self._first_waiter.locked() or not fits:
            return False
        self.reserved += size
        return True

    def release(self, size: int) -> None:
        """Release reserved bytes: they have arrived, or will not."""
        self.reserved -= size
        self._released.unpark_all()

    def _has_room(self, size: int) -> bool:
        return not self.reserved or self.reserved + size <= self.size
