"""The synchronous client: every call of `PortalClient`, run by trio in a thread of its own."""

import inspect
from functools import partial, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Never, Self, Unpack

from skymount.portal.client.client import PortalClient
from skymount.portal.client.registry import Registry
from skymount.portal.client.skydb import SkyDB
from skymount.portal.ledger.ledger import Ledger
from skymount.portal.options import ClientOptions, PortalOptions
from skymount.trio_thread import TrioThread

_ASYNC_ONLY = frozenset({"aclose", "node", "of", "stream", "http"})


def _synchronous(name: str, member: Any) -> Any:
    if inspect.iscoroutinefunction(member):

        @wraps(member)
        def call(self: "_SyncFacade", *args: Any, **kwargs: Any) -> Any:
            return self._thread.call(partial(member, self._target, *args, **kwargs))

        return call
    if inspect.isfunction(member):

        @wraps(member)
        def direct(self: "_SyncFacade", *args: Any, **kwargs: Any) -> Any:
            return member(self._target, *args, **kwargs)

        return direct
    return property(lambda self: getattr(self._target, name), doc=member.__doc__)


class _SyncFacade:
    """The public members of an async class, without async. A subclass copies those of `of`."""

    def __init_subclass__(cls, of: type) -> None:
        for name, member in inspect.getmembers_static(of):
            if not (name.startswith("_") or name in _ASYNC_ONLY or hasattr(cls, name)):
                setattr(cls, name, _synchronous(name, member))

    def __init__(self, target: object, thread: TrioThread[PortalClient]) -> None:
        self._target = target
        self._thread = thread

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


class SyncRegistry(_SyncFacade, of=Registry):
    """`Registry` without async."""


class SyncSkyDB(_SyncFacade, of=SkyDB):
    """`SkyDB` without async."""


class SyncPortalClient(_SyncFacade, of=PortalClient):
    """`PortalClient` without async: the same names, arguments, results and errors.

    A context manager; `close` it otherwise, or drop it. Safe for many threads at once. Progress
    callbacks run in the client's own thread, and cannot make calls.
    """

    _target: PortalClient

    def __init__(
        self,
        portal_url: str = "",
        *,
        ledger: Ledger | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        client = PortalClient(portal_url, ledger=ledger, **options)
        super().__init__(client, TrioThread(client, "client"))

    @property
    def options(self) -> PortalOptions:
        return self._target.options

    @property
    def registry(self) -> SyncRegistry:
        """The registry: get_entry, set_entry, get_entry_url, get_entry_link."""
        return SyncRegistry(self._target.registry, self._thread)

    @property
    def db(self) -> SyncSkyDB:
        """SkyDB: get_json, set_json, delete_json."""
        return SyncSkyDB(self._target.db, self._thread)

    def __repr__(self) -> str:
        return f"Sync{self._target!r}"

    def __reduce__(self) -> Never:
        raise TypeError(
            "a client cannot be pickled: pass its address and options on, and make one there"
        )

    def close(self) -> None:
        """Close every connection and end the thread. Calls that wait raise RuntimeError."""
        self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
