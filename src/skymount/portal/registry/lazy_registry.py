"""The registry for whoever reads little of it: the ledger is opened when an entry is needed."""

from collections.abc import Callable

from skymount.errors import StorageError
from skymount.policies import VerifyPolicy
from skymount.portal.client.registry import GET_TIMEOUT
from skymount.portal.failover.portals import Portals
from skymount.portal.ledger.ledger import Ledger
from skymount.portal.registry.name_resolver import NameResolver, NameResolverConfig
from skymount.portal.registry.verified_registry import VerifiedRegistry


class LazyRegistry:
    """The registry as this machine has seen it, opened when an entry is first read an entry."""

    def __init__(
        self,
        portals: Portals,
        policy: VerifyPolicy,
        warn: Callable[[str], None],
        timeout: float | None = None,
    ) -> None:
        """`timeout` is the seconds that a portal may look for an entry."""
        self._ledger: Ledger | None = None
        self._policy = policy
        self._warn = warn
        self._registry = VerifiedRegistry(portals, None, look=timeout or GET_TIMEOUT)
        self._is_open = self._is_without_ledger = False

    async def open(self) -> VerifiedRegistry:
        """Return the registry; warn of an unusable ledger, or fail if verification is required."""
        if not self._is_open:
            marks = self._registry.marks
            try:
                self._ledger = marks.ledger = Ledger.of_user()
                await marks.in_thread(self._ledger.prepare)
            except StorageError as error:
                await self._go_without_ledger(error)
            self._is_open = True
        return self._registry

    async def _go_without_ledger(self, error: StorageError) -> None:
        if self._policy is VerifyPolicy.REQUIRE:
            raise StorageError(f"{error}; with verify require that must be mended first")
        self._warn(f"{error}; it may go unnoticed when a portal shows an old registry entry")
        self._is_without_ledger = True
        marks = self._registry.marks
        if self._ledger is None:
            return
        try:
            await marks.in_thread(self._ledger.public_keys)
        except StorageError:
            marks.ledger = None  # not even readable

    async def name_resolver(self) -> NameResolver:
        registry = await self.open()
        return NameResolver(registry.portals, registry, NameResolverConfig(verify=self._policy))

    def close(self) -> None:
        """Close the ledger; warn if it could not store something."""
        failure = self._registry.marks.failure
        if failure is not None and not self._is_without_ledger:
            self._warn(f"{failure}; what portals showed of the registry is not remembered")
        if self._ledger is not None:
            self._ledger.close()
