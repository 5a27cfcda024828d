"""Owns the synchronous client: every call of `PortalClient`, for scripts and notebooks.

One generic layer, not a second implementation: a thread runs trio with the client in it, and each
call waits for its result. It works beside another event loop, as a notebook has one.
"""

import inspect
import threading
from collections.abc import Awaitable, Callable
from functools import partial, wraps
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import trio

from skymount.portal.client import PortalClient
from skymount.portal.options import ClientOptions
from skymount.portal.registry import Registry
from skymount.portal.skydb import SkyDB

T = TypeVar("T")

_GROUPS = (Registry, SkyDB)


class _Loop:
    """A thread that runs trio, and one client in it, until told to stop."""

    def __init__(self, client: PortalClient) -> None:
        self._client = client
        self._ready = threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._stop: trio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="skymount-client", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._ready.wait()

    def _run(self) -> None:
        try:
            trio.run(self._main)
        finally:
            self._token = None
            self._ready.set()

    async def _main(self) -> None:
        self._stop = trio.Event()
        async with self._client:
            self._token = trio.lowlevel.current_trio_token()
            self._ready.set()
            await self._stop.wait()

    def call(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run an async function in the thread; an interrupt cancels it there."""
        token = self._token
        if token is None:
            raise RuntimeError("this client is closed")
        scope = trio.CancelScope()

        async def run() -> T:
            with scope:
                return await function()
            raise KeyboardInterrupt

        try:
            return trio.from_thread.run(run, trio_token=token)
        except KeyboardInterrupt:
            token.run_sync_soon(scope.cancel)
            raise
        except trio.Cancelled:
            raise RuntimeError("the client was closed during this call") from None

    def stop(self) -> None:
        token, stop = self._token, self._stop
        if token is not None and stop is not None:
            token.run_sync_soon(stop.set)
        if threading.current_thread() is not self._thread:
            self._thread.join()


class _Calls:
    """Stands for an object of the async client, and waits for what its methods return."""

    def __init__(self, target: object, loop: _Loop) -> None:
        self._target = target
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        found = getattr(self._target, name)
        if isinstance(found, _GROUPS):
            return _Calls(found, self._loop)
        if inspect.iscoroutinefunction(found):

            @wraps(found)
            def waiting(*args: Any, **kwargs: Any) -> Any:
                return self._loop.call(partial(found, *args, **kwargs))

            return waiting
        if inspect.ismethod(found) and hasattr(inspect.unwrap(found), "__isasyncgenfunction__"):
            raise AttributeError(f"{name} exists in the asynchronous client only")
        return found

    def __dir__(self) -> list[str]:
        return [name for name in dir(self._target) if not name.startswith("_")]


class SyncPortalClient(_Calls):
    """`PortalClient` without async: the same names, arguments, results and errors.

    A context manager; `close` it otherwise. Safe for many threads at once. Progress callbacks run
    in the client's own thread.
    """

    def __init__(self, portal_url: str = "", **options: Unpack[ClientOptions]) -> None:
        client = PortalClient(portal_url, **options)
        loop = _Loop(client)
        super().__init__(client, loop)
        loop.start()

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
