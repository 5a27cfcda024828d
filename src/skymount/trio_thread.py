"""A thread of its own that runs trio, for callers without async."""

import os
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

import trio

R = TypeVar("R")
T = TypeVar("T")

_REAL_MODULES = ("select", "threading")
_CLEANUP_TIMEOUT = 5.0  # seconds that an interrupted call may take to clean up


def _refuse_gevent(kind: str) -> None:
    """RuntimeError if gevent has replaced what trio runs on: it would fail, or wait for ever."""
    monkey = sys.modules.get("gevent.monkey")
    patched = [] if monkey is None else list(filter(monkey.is_module_patched, _REAL_MODULES))
    if patched:
        raise RuntimeError(
            f"a {kind} needs the real modules select and threading, and gevent has patched "
            f"{' and '.join(patched)}: use monkey.patch_all(select=False, thread=False)"
        )


class TrioThread(Generic[R]):
    """A thread that runs trio with an open context, such as a client. It ends on `stop`, when
    `until` returns, or when nothing refers to this object. `kind` is what messages call it.

    anyio's blocking portal would not do: it refuses calls from a thread that runs trio itself, and
    closes neither from a callback nor at the exit of the interpreter.
    """

    def __init__(
        self,
        context: AbstractAsyncContextManager[R],
        kind: str,
        until: Callable[[], Awaitable[None]] = trio.sleep_forever,
    ) -> None:
        _refuse_gevent(kind)
        self._kind = kind
        self._process = os.getpid()
        ready: Future[_Running[R]] = Future()
        self._thread = threading.Thread(
            target=_run, args=(context, until, ready), name=f"skymount-{kind}", daemon=True
        )
        try:
            self._thread.start()
            running = ready.result()
        except BaseException:
            if not ready.cancel() and not ready.exception():  # it has opened meanwhile
                ready.result().end()
            raise
        self.opened = running.opened
        """What the context gave."""
        self._running = running
        self._token, self._nursery = running.token, running.nursery

    def __del__(self) -> None:
        if sys.is_finalizing():  # the thread is frozen and may hold a lock
            return
        with suppress(AttributeError):  # __init__ failed
            self._cancel()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def call(self, function: Callable[[], Awaitable[T]]) -> T:
        if threading.current_thread() is self._thread:
            text = f"a callback of this {self._kind} cannot wait for another of its calls"
            raise RuntimeError(text)
        if os.getpid() != self._process:
            text = f"this {self._kind} was made before a fork: make one in this process"
            raise RuntimeError(text)
        scope = trio.CancelScope()
        result: Future[T] = Future()
        try:
            try:
                self._token.run_sync_soon(self._start, function, scope, result)
            except trio.RunFinishedError:
                result.cancel()  # nothing waits for it
                raise RuntimeError(f"this {self._kind} is closed") from None
            return result.result()
        except BaseException:
            if not result.done():  # a signal, whose handler may raise anything
                with suppress(trio.RunFinishedError):
                    self._token.run_sync_soon(scope.cancel)
                wait([result], _CLEANUP_TIMEOUT)
            raise

    def call_soon(self, function: Callable[[], object]) -> None:
        """Let the thread call a function and do not wait, also from `__del__`; nothing happens
        once it has ended.
        """
        if os.getpid() == self._process:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(function)

    def stop(self, timeout: float | None = None) -> None:
        """End the thread, and wait for so many seconds until it has ended."""
        self._cancel()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    def _cancel(self) -> None:
        if os.getpid() == self._process:
            self._running.end()

    def _start(
        self, function: Callable[[], Awaitable[T]], scope: trio.CancelScope, result: "Future[T]"
    ) -> None:
        if self._nursery.cancel_scope.cancel_called:
            result.set_exception(RuntimeError(f"this {self._kind} is closed"))
        else:
            self._nursery.start_soon(self._call, function, scope, result)

    async def _call(
        self, function: Callable[[], Awaitable[T]], scope: trio.CancelScope, result: "Future[T]"
    ) -> None:
        try:
            with scope:
                try:
                    result.set_result(await function())
                except (Exception, KeyboardInterrupt, SystemExit) as error:  # noqa: BLE001 - the caller's
                    result.set_exception(error)
        finally:
            if not result.done():
                text = f"the {self._kind} was closed during this call"
                result.set_exception(RuntimeError(text))


@dataclass(frozen=True, slots=True)
class _Running(Generic[R]):
    """What a thread that has started hands to the one that made it."""

    opened: R
    token: trio.lowlevel.TrioToken
    nursery: trio.Nursery

    def end(self) -> None:
        with suppress(trio.RunFinishedError):
            self.token.run_sync_soon(self.nursery.cancel_scope.cancel)


def _run(
    context: AbstractAsyncContextManager[R],
    until: Callable[[], Awaitable[None]],
    ready: "Future[_Running[R]]",
) -> None:
    async def serve() -> None:
        async with context as opened, trio.open_nursery() as nursery:
            if not ready.set_running_or_notify_cancel():
                return  # whoever made it was interrupted
            ready.set_result(_Running(opened, trio.lowlevel.current_trio_token(), nursery))
            await until()
            nursery.cancel_scope.cancel()

    try:
        trio.run(serve)
    except BaseException as error:
        if ready.cancelled():
            return
        if ready.done():
            raise
        with suppress(InvalidStateError):  # cancelled just now
            ready.set_exception(error)
