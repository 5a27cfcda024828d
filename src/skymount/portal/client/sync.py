"""The synchronous client: every call of `PortalClient`, run by trio in a thread of its own."""

import inspect
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

import trio

from skymount.portal.client.client import PortalClient
from skymount.portal.client.registry import Registry
from skymount.portal.client.skydb import SkyDB
from skymount.portal.ledger.ledger import Ledger
from skymount.portal.options import ClientOptions, PortalOptions

T = TypeVar("T")

_CLEANUP_TIMEOUT = 5.0  # seconds that an interrupted call may take to clean up
_CLOSED = "this client is closed"
_ASYNC_ONLY = frozenset({"aclose", "node", "of", "stream", "http"})


class _ClientThread:
    """A thread with an open client. It ends on `stop`, or when nothing refers to this object.

    anyio's blocking portal would not do: it refuses calls from a thread that runs trio itself, and
    closes neither from a callback nor at the exit of the interpreter.
    """

    def __init__(self, client: PortalClient) -> None:
        self._process = os.getpid()
        ready: Future[tuple[trio.lowlevel.TrioToken, trio.Nursery]] = Future()
        self._thread = threading.Thread(
            target=_run, args=(client, ready), name="skymount-client", daemon=True
        )
        self._thread.start()
        self._token, self._nursery = ready.result()

    def __del__(self) -> None:
        if sys.is_finalizing():  # the thread is frozen and may hold a lock
            return
        with suppress(AttributeError):  # __init__ failed
            self._cancel()

    def call(self, function: Callable[[], Awaitable[T]]) -> T:
        if threading.current_thread() is self._thread:
            raise RuntimeError("a callback of this client cannot wait for another of its calls")
        if os.getpid() != self._process:
            raise RuntimeError("this client was made before a fork: make one in this process")
        scope = trio.CancelScope()
        result: Future[T] = Future()
        try:
            self._token.run_sync_soon(_start, self._nursery, function, scope, result)
        except trio.RunFinishedError:
            raise RuntimeError(_CLOSED) from None
        try:
            return result.result()
        except KeyboardInterrupt:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(scope.cancel)
            wait([result], _CLEANUP_TIMEOUT)
            raise

    def stop(self) -> None:
        self._cancel()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _cancel(self) -> None:
        if os.getpid() == self._process:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._nursery.cancel_scope.cancel)


def _run(
    client: PortalClient, ready: "Future[tuple[trio.lowlevel.TrioToken, trio.Nursery]]"
) -> None:
    async def serve() -> None:
        async with client, trio.open_nursery() as nursery:
            ready.set_result((trio.lowlevel.current_trio_token(), nursery))
            await trio.sleep_forever()

    try:
        trio.run(serve)
    except BaseException as error:
        if ready.done():
            raise
        ready.set_exception(error)


def _start(
    nursery: trio.Nursery,
    function: Callable[[], Awaitable[T]],
    scope: trio.CancelScope,
    result: "Future[T]",
) -> None:
    if nursery.cancel_scope.cancel_called:
        result.set_exception(RuntimeError(_CLOSED))
    else:
        nursery.start_soon(_call, function, scope, result)


async def _call(
    function: Callable[[], Awaitable[T]], scope: trio.CancelScope, result: "Future[T]"
) -> None:
    try:
        with scope:
            try:
                result.set_result(await function())
            except (Exception, KeyboardInterrupt, SystemExit) as error:  # noqa: BLE001 - the caller's
                result.set_exception(error)
    finally:
        if not result.done():
            result.set_exception(RuntimeError("the client was closed during this call"))


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

    def __init__(self, target: object, thread: _ClientThread) -> None:
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
        super().__init__(client, _ClientThread(client))

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
