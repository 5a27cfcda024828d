"""Owns the synchronous client: every call of `PortalClient`, for scripts and notebooks.

One generic layer, not a second implementation: a thread runs trio with the client in it, and each
call waits for its result. It works beside another event loop, as a notebook has one.
"""

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
from skymount.portal.options import ClientOptions, PortalOptions
from skymount.portal.registry.ledger import Ledger

T = TypeVar("T")

_GIVING_UP = 5.0  # seconds that an interrupted call may take to put things in order
_CLOSED = "this client is closed"
_ASYNC_ONLY = frozenset({"aclose", "node", "of", "stream", "transport"})


class _Calls:
    """What runs in the thread: trio, one client, and the calls of it that are under way."""

    def __init__(self, client: PortalClient) -> None:
        self._client = client
        self._nursery: trio.Nursery | None = None
        self.ready: Future[trio.lowlevel.TrioToken] = Future()

    def run(self) -> None:
        """Run until `end`; a failure to begin goes to `ready`."""
        try:
            trio.run(self._main)
        except BaseException as error:
            if self.ready.done():
                raise
            self.ready.set_exception(error)

    async def _main(self) -> None:
        async with self._client, trio.open_nursery() as self._nursery:
            self.ready.set_result(trio.lowlevel.current_trio_token())
            await trio.sleep_forever()

    def begin(
        self, function: Callable[[], Awaitable[T]], scope: trio.CancelScope, done: "Future[T]"
    ) -> None:
        """Start a call; its outcome goes to `done`."""
        if self._nursery is None:
            done.set_exception(RuntimeError(_CLOSED))
        else:
            self._nursery.start_soon(_answer, function, scope, done)

    def end(self) -> None:
        """Cancel every call, and close the client."""
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()
            self._nursery = None


class _Loop:
    """A thread with a client in it. It ends when told to, or when nobody refers to this."""

    def __init__(self, client: PortalClient) -> None:
        self._process = os.getpid()
        self._calls = _Calls(client)
        self._thread = threading.Thread(target=self._calls.run, name="skymount-client", daemon=True)
        self._thread.start()
        self._token = self._calls.ready.result()

    def __del__(self) -> None:
        if sys.is_finalizing():  # its thread is dead, maybe with a lock in its hands
            return
        with suppress(AttributeError):  # it never began
            self._end()

    def call(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run an async function in the thread; an interrupt cancels it there."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("a callback of this client cannot wait for another of its calls")
        if os.getpid() != self._process:
            raise RuntimeError("this client was made before a fork: make one in this process")
        scope = trio.CancelScope()
        done: Future[T] = Future()
        try:
            self._token.run_sync_soon(self._calls.begin, function, scope, done)
        except trio.RunFinishedError:
            raise RuntimeError(_CLOSED) from None
        try:
            return done.result()
        except KeyboardInterrupt:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(scope.cancel)
            wait([done], _GIVING_UP)
            raise

    def stop(self) -> None:
        """Cancel what is under way, close the client and end the thread."""
        self._end()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _end(self) -> None:
        if os.getpid() == self._process:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._calls.end)


async def _answer(
    function: Callable[[], Awaitable[T]], scope: trio.CancelScope, done: "Future[T]"
) -> None:
    try:
        with scope:
            try:
                done.set_result(await function())
            except (Exception, KeyboardInterrupt, SystemExit) as error:  # noqa: BLE001 - the caller's
                done.set_exception(error)
    finally:
        if not done.done():
            done.set_exception(RuntimeError("the client was closed during this call"))


def _synchronous(name: str, member: Any) -> Any:
    """Return what stands for a member of an async class in the class that waits for it."""
    if inspect.iscoroutinefunction(member):

        @wraps(member)
        def waiting(self: "_Waiting", *args: Any, **kwargs: Any) -> Any:
            return self._loop.call(partial(member, self._target, *args, **kwargs))

        return waiting
    if inspect.isfunction(member):

        @wraps(member)
        def direct(self: "_Waiting", *args: Any, **kwargs: Any) -> Any:
            return member(self._target, *args, **kwargs)

        return direct
    return property(lambda self: getattr(self._target, name), doc=member.__doc__)


class _Waiting:
    """Stands for an object of the async client. A subclass gets all that the class `of` has."""

    def __init_subclass__(cls, of: type) -> None:
        for name, member in inspect.getmembers_static(of):
            if not (name.startswith("_") or name in _ASYNC_ONLY or hasattr(cls, name)):
                setattr(cls, name, _synchronous(name, member))

    def __init__(self, target: object, loop: _Loop) -> None:
        self._target = target
        self._loop = loop

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


class SyncRegistry(_Waiting, of=Registry):
    """`Registry` without async."""


class SyncSkyDB(_Waiting, of=SkyDB):
    """`SkyDB` without async."""


class SyncPortalClient(_Waiting, of=PortalClient):
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
        super().__init__(client, _Loop(client))

    @property
    def options(self) -> PortalOptions:
        """The options given at creation."""
        return self._target.options

    @property
    def registry(self) -> SyncRegistry:
        """The registry: get_entry, set_entry, get_entry_url, get_entry_link."""
        return SyncRegistry(self._target.registry, self._loop)

    @property
    def db(self) -> SyncSkyDB:
        """SkyDB: get_json, set_json, delete_json."""
        return SyncSkyDB(self._target.db, self._loop)

    def __repr__(self) -> str:
        return f"Sync{self._target!r}"

    def close(self) -> None:
        """Close every connection and end the thread. Calls that wait raise RuntimeError."""
        self._loop.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
