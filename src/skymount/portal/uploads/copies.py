"""Which portals have what was uploaded, and which skylink counts. No IO."""

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from skymount.errors import BadContentError, PortalError, UnavailableError
from skymount.portal.client.base import PortalReader
from skymount.portal.client.upload import Progress
from skymount.wire.http.responses import UploadResult
from skymount.wire.skylink import Skylink


@dataclass(frozen=True, slots=True)
class Copies:
    """The portals that have what was uploaded, and those that failed."""

    results: dict[PortalReader, UploadResult] = field(default_factory=dict)
    failures: dict[PortalReader, PortalError] = field(default_factory=dict)
    proven: set[PortalReader] = field(default_factory=set)
    """Those that proved their skylink, which they are asked for when the skylinks differ."""

    @property
    def is_same(self) -> bool:
        """Whether all portals gave it the same skylink."""
        return len({result.skylink for result in self.results.values()}) < 2

    def agreed(self, needed: int) -> Skylink:
        """Return the skylink that counts: a proven one, else that of more than half of the portals.

        PortalError if too few gave it, or if nobody knows which one is right.
        """
        counted = self.proven or self.results.keys()
        names = Counter(self.results[each].skylink for each in self.results if each in counted)
        skylink, count = next(iter(names.most_common(1)), (None, 0))
        is_certain = bool(self.proven) or 2 * count > len(self.results)
        if skylink is not None and count >= needed and is_certain:
            return skylink
        raise self._shortage(count, needed)

    def lacking(self, skylink: Skylink) -> list[str]:
        """Return the addresses of the portals that do not have it under this skylink."""
        others = [each for each, result in self.results.items() if result.skylink != skylink]
        return [client.url for client in (*others, *self.failures)]

    def disagreement(self) -> str:
        """Return what each portal says, when they gave it different skylinks."""
        claims = [f"{client.url} has {each.skylink}" for client, each in self.results.items()]
        proved = [client.url for client in self.results if client in self.proven]
        known = f"only {' and '.join(proved)} proved it" if proved else "none of them proved it"
        return f"the portals gave it different skylinks, and {known}: " + ", ".join(claims)

    def _shortage(self, count: int, needed: int) -> PortalError:
        """Return the error of too few copies: a failure of some portal, else a refusal."""
        failures = (UnavailableError, BadContentError)
        errors = sorted(self.failures.values(), key=lambda each: not isinstance(each, failures))
        if not self.is_same or not errors:
            advice = "leave out the portal that is wrong (--portal, `portals` in the configuration)"
            return BadContentError(f"{self.disagreement()}; {advice}")
        error = copy.copy(errors[0])
        if needed > 1:
            total = len(self.results) + len(self.failures)
            error.message = f"{count} of {total} portals took it, {needed} have to: {error.message}"
        return error


OnFallback = Callable[[PortalError, PortalReader], None]
"""Called with why a portal failed, and the portal that is tried then: the next one, or the same one
again after the pause that it asked for."""


class SharedProgress:
    """The progress of several uploads of the same: that of the one that is furthest."""

    def __init__(self, report: Progress | None) -> None:
        self._report = report
        self._sent: dict[PortalReader, int] = {}

    def note(self, client: PortalReader, sent: int, total: int | None) -> None:
        self._sent[client] = sent
        if self._report is not None:
            self._report(max(self._sent.values()), total)

    def forget(self, client: PortalReader) -> None:
        self._sent.pop(client, None)
