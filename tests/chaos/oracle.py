"""What may be read, what must be there at the end, and what must never happen."""

import json
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from skymount.errors import MalformedError
from skymount.wire.key_pair import SigningKeyPair
from skymount.wire.registry_entry import SignedEntry, hash_data_key, linked_skylink

NEVER = float("inf")

Value = str | None
"""The content of an entry; None: there is none."""


class History:
    """The writes to one entry, in order, and what a reader may find.

    A reader finds the last acknowledged write or a later attempt whose result is unknown, and never
    anything older than what was found before.
    """

    def __init__(self) -> None:
        self._values: list[Value] = [None]
        self._floor = 0

    def begin(self, value: Value) -> int:
        """Take note of an attempt; its result is unknown until `acknowledge`."""
        self._values.append(value)
        return len(self._values) - 1

    def acknowledge(self, attempt: int) -> None:
        """The attempt succeeded: nothing older is to be found any more."""
        self._floor = max(self._floor, attempt)

    @property
    def allowed(self) -> list[Value]:
        """What may be found, the oldest first."""
        return self._values[self._floor :]

    @property
    def is_certain(self) -> bool:
        """Whether only one thing may be found."""
        return len(self.allowed) == 1

    def find(self, value: Value) -> bool:
        """Take note of what was found; false if it must not be."""
        allowed = self.allowed
        if value not in allowed:
            return False
        if value is not None:  # of several deletions nobody knows which one was found
            self._floor += len(allowed) - 1 - allowed[::-1].index(value)
        return True


@dataclass
class Tally:
    """Counts operations by what became of them."""

    right: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    excused: Counter[str] = field(default_factory=Counter)

    @property
    def share(self) -> float:
        """The share of operations that were right, of those that had to be."""
        right, wrong = self.right.total(), self.wrong.total()
        return right / (right + wrong) if right + wrong else 1.0

    @property
    def total(self) -> int:
        return self.right.total() + self.wrong.total() + self.excused.total()

    def __str__(self) -> str:
        counted = f"{self.total} operations, {self.right.total()} right, {self.wrong.total()} wrong"
        excused = ", ".join(f"{n} {why}" for why, n in sorted(self.excused.items()))
        return f"{counted}, {100 * self.share:.3f} % right; excused: {excused or 'none'}"


class Posts:
    """The registry entries that passed the proxies."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._signed: dict[tuple[bytes, bytes, int], bytes] = {}
        self._taken: dict[tuple[bytes, bytes], dict[tuple[int, int], float]] = {}
        self._uploads: dict[tuple[int, str], float] = {}
        self.twice: list[str] = []
        """Revisions that were signed for two contents."""
        self.count = 0

    def add(self, portal: int, body: str, status: int | None, at: float) -> None:
        """Take note of a post, and of its answer."""
        try:
            signed = SignedEntry.parse_update(body.encode("latin-1"))
        except MalformedError:
            self.twice.append(f"a post that is no entry: {body[:200]!r}")
            return
        entry = signed.entry
        with self._lock:
            key = (signed.public_key, entry.tweak, entry.revision)
            self.count += status is None
            if self._signed.setdefault(key, entry.data) != entry.data:
                self.twice.append(
                    f"revision {entry.revision} of {entry.tweak.hex()[:16]}: "
                    f"{self._signed[key]!r} and {entry.data!r}"
                )
            if status in (200, 204):
                taken = self._taken.setdefault(key[:2], {})
                taken.setdefault((portal, entry.revision), at)

    def is_known(self, pair: SigningKeyPair, data_key: str) -> bool:
        """Whether any portal has ever taken such an entry."""
        with self._lock:
            return (pair.public_key, hash_data_key(data_key)) in self._taken

    def uploaded(self, portal: int, body: str, at: float) -> None:
        """Take note of the answer to an upload."""
        try:
            skylink = str(json.loads(body)["skylink"])
        except (ValueError, KeyError, TypeError):
            return
        with self._lock:
            self._uploads.setdefault((portal, skylink), at)

    def held(
        self,
        pair: SigningKeyPair,
        data_key: str,
        portals: Iterable[int],
        at: float,
        versions: int = 1,
    ) -> bool:
        """Whether one of these portals had the newest entry at some time, and what it leads to.

        The newest one is the one with the highest revision that any portal has taken. Of several
        `versions` a portal must have what each leads to.
        """
        key = (pair.public_key, hash_data_key(data_key))
        with self._lock:
            taken = self._taken.get(key, {})
            newest = sorted({revision for _, revision in taken})[-versions:]
            if not newest:
                return True
            linked = [linked_skylink(self._signed[(*key, each)]) for each in newest]
            return any(
                taken.get((portal, newest[-1]), NEVER) <= at
                and all(
                    self._uploads.get((portal, str(each)), NEVER) <= at for each in linked if each
                )
                for portal in portals
            )


@dataclass
class Report:
    """What a run came to."""

    tally: Tally = field(default_factory=Tally)
    schedules: int = 0
    violations: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """Operations that had to be right and were not."""

    def add(self, other: "Report") -> None:
        for name in ("right", "wrong", "excused"):
            getattr(self.tally, name).update(getattr(other.tally, name))
        self.schedules += other.schedules
        self.violations += other.violations
        self.failures += other.failures
