"""Read repair: a portal that turns out to be behind is owed the newest entry that is known.

Entries prove themselves, so anybody may post them. Whoever sends what is owed does so later.
"""

import logging
from collections.abc import Callable, Collection, Mapping

import trio
from cachetools import TTLCache

from skymount.errors import StorageError
from skymount.portal.ledger.ledger import Ledger
from skymount.portal.ledger.revision_marks import EntryId, RevisionMarks
from skymount.portal.registry.entry_state import EntryState, is_behind, newest

REPAIR_TIME = 300.0
"""Seconds in which a portal is owed the same revision of an entry at most once."""

_REMEMBERED = 10_000  # repairs

_REASON = "a read found it there in an older revision, or not at all"

log = logging.getLogger(__name__)


class ReadRepair:
    """Which portals are behind, as reads find out."""

    def __init__(
        self,
        ledger: Ledger,
        marks: RevisionMarks,
        portals: Collection[str],
        nursery: trio.Nursery,
        owed: Callable[[], None],
    ) -> None:
        """`portals` are the addresses of those that may be repaired. `owed` is called when one is
        owed something new.
        """
        self._ledger = ledger
        self._marks = marks
        self._portals = frozenset(portals)
        self._nursery = nursery
        self._owed = owed
        self._has_repaired = False
        self._repaired: TTLCache[tuple[str, EntryId], bytes] = TTLCache(
            _REMEMBERED, REPAIR_TIME, trio.current_time
        )  # the signature of what it was owed

    def compare(self, ref: EntryId, answers: Mapping[str, EntryState | None], asked: float) -> None:
        """Take what portals said of an entry when they were `asked`, by the ledger's clock; None:
        absent, or older than what was seen.
        """
        states = [state for state in answers.values() if state is not None]
        best = newest(states) if states else None
        behind = []
        for portal, state in answers.items():
            if state is None or (best is not None and is_behind(state, best)):
                behind.append(portal)
            elif self._has_repaired:
                self._repaired.pop((portal, ref), None)
        wanted = self._portals.intersection(behind)
        if wanted:
            self._nursery.start_soon(self._owe, ref, wanted, best, asked)

    async def _owe(
        self, ref: EntryId, portals: Collection[str], best: EntryState | None, asked: float
    ) -> None:
        try:
            await self._owe_newest(ref, portals, best, asked)
        except StorageError as error:
            log.info("registry entry %s: portals that lack it are not repaired: %s", ref, error)
        except Exception:  # a bug must not end the mount
            log.exception("registry entry %s: read repair failed", ref)

    async def _owe_newest(
        self, ref: EntryId, portals: Collection[str], best: EntryState | None, asked: float
    ) -> None:
        found = await self._marks.in_thread(self._ledger.newest_entry, ref.public_key, ref.tweak)
        if found is None:
            return
        if best is None or best.signed != found:
            mark = await self._marks.find(ref)
            if mark is None or mark.seen_at >= asked:
                return  # it was written since: the portals may have it by now
        last = found.signature
        behind = [each for each in portals if self._repaired.get((each, ref)) != last]
        self._has_repaired = True
        self._repaired.update({(portal, ref): last for portal in behind})
        if behind:
            owe = self._ledger.owe
            if await self._marks.in_thread(owe, found, ref.data_key, behind, _REASON):
                self._owed()
