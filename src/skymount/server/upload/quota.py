"""The limit of what a portal stores, with the uploads that are in progress."""

from collections.abc import Iterator
from contextlib import contextmanager

from skymount.server.storage.disk_errors import DiskFullError
from skymount.server.storage.interfaces import Catalogue
from skymount.wire.skylink import SECTOR_SIZE
from skymount.wording import readable_size

_SMALL = 64 << 10  # bytes


class QuotaError(DiskFullError):
    """An upload would take the portal over its limit."""


class Quota:
    """The limit of one portal, in bytes on disk; 0 for none."""

    def __init__(self, limit: int, catalogue: Catalogue) -> None:
        self._limit = limit
        self._catalogue = catalogue
        self._reserved = 0
        self._publishing = 0

    def check(self) -> None:
        """QuotaError if there is no room for a small file; StorageError."""
        if self._limit and self._left() < _SMALL:
            raise self._refusal()

    @contextmanager
    def reserving(self) -> Iterator["Reservation"]:
        """Count an upload until it is recorded, or has failed."""
        reservation = Reservation(self)
        try:
            yield reservation
        finally:
            self._reserved -= reservation.size
            self._publishing -= reservation.confirmed

    def grow(self, reservation: "Reservation", size: int) -> None:
        """Count an upload as `size` bytes; QuotaError if there is no room."""
        further = size - reservation.size
        if not self._limit or further <= 0:
            return
        if self._left() < further:
            raise self._refusal()
        reservation.size = size
        self._reserved += further

    def _left(self) -> int:
        return self._limit - self._catalogue.totals()[1] - self._reserved

    async def confirm(self, reservation: "Reservation") -> None:
        """Compare an upload with what all processes have stored by now; QuotaError."""
        if not self._limit:
            return
        await self._catalogue.refresh_totals()
        if self._catalogue.totals()[1] + self._publishing + reservation.size > self._limit:
            raise self._refusal()
        reservation.confirmed = reservation.size
        self._publishing += reservation.size

    def _refusal(self) -> QuotaError:
        return QuotaError(f"this portal stores at most {readable_size(self._limit)}")


class Reservation:
    """The room of one upload."""

    def __init__(self, quota: Quota) -> None:
        self._quota = quota
        self.size = 0
        self.confirmed = 0

    def need(self, content: int, *, is_encrypted: bool) -> None:
        """Take the room of that many bytes in all; QuotaError. Encrypted sectors are whole ones,
        and there is a base sector.
        """
        if is_encrypted:
            content = (-(-content // SECTOR_SIZE) + 1) * SECTOR_SIZE
        self.take(content)

    def take(self, size: int) -> None:
        """Take the room of that many bytes on disk in all; QuotaError."""
        self._quota.grow(self, size)

    async def confirm(self) -> None:
        """Compare the room with what is stored, before it is used; QuotaError."""
        await self._quota.confirm(self)
