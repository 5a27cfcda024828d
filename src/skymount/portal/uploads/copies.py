"""Which portals have what was uploaded, and which skylink counts. No IO."""

from collections.abc import Callable
from dataclasses import dataclass, field

from skymount.errors import BadContentError, PortalError, UnavailableError
from skymount.policies import too_few
from skymount.portal.client.base import PortalReader
from skymount.portal.client.upload import Progress
from skymount.wire.http.responses import UploadResult
from skymount.wire.skylink import Skylink


@dataclass(frozen=True, slots=True)
class Copies:
    """The portals that have what was uploaded, and those that failed."""

    results: dict[PortalReader, UploadResult] = field(default_factory=dict)
    failures: dict[PortalReader, PortalError] = field(default_factory=dict)

    @property
    def is_same(self) -> bool:
        """Whether all portals gave it the same skylink."""
        return len({result.skylink for result in self.results.values()}) < 2

    @property
    def lacking(self) -> list[str]:
        """The addresses of the portals that do not have it."""
        return [client.url for client in self.failures]

    def agreed(self, needed: int) -> Skylink:
        """Return the skylink that all gave it; PortalError if too few have it, or they differ."""
        results = self.results.values()
        if self.is_same and results and len(results) >= needed:
            return next(iter(results)).skylink
        raise self._shortage(needed)

    def keep(self, proved: Skylink) -> list[PortalError]:
        """Let this skylink count; return the errors of portals that gave it another one, and so do
        not have it.
        """
        errors: list[PortalError] = []
        for client, result in list(self.results.items()):
            if result.skylink != proved:
                text = f"it has the upload as {result.skylink}, and {proved} is proved"
                self.failures[client] = error = BadContentError(text, url=client.url)
                errors.append(error)
                del self.results[client]
        return errors

    def disagreement(self) -> str:
        """Return what each portal says, when they gave it different skylinks."""
        claims = [f"{client.url} has {each.skylink}" for client, each in self.results.items()]
        said = "the portals gave it different skylinks, and none of them proved it: "
        return said + ", ".join(claims)

    def _shortage(self, needed: int) -> PortalError:
        """Return the error of too few copies: a failure of some portal, else a refusal."""
        failures = (UnavailableError, BadContentError)
        errors = sorted(self.failures.values(), key=lambda each: not isinstance(each, failures))
        if not self.is_same or not errors:
            advice = "leave out the portal that is wrong (--portal, `portals` in the configuration)"
            return BadContentError(f"{self.disagreement()}; {advice}")
        return too_few(errors[0], len(self.results), len(self.results) + len(self.failures), needed)


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
