"""The sessions of this process: one for each set of settings, in a thread of its own.

One that was not used for some time is closed, and so is the one used longest ago if there are too
many. They open again when they are used. A forked process begins with none.
"""

import atexit
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import trio

from skymount.file_api.options import Settings
from skymount.file_api.os_errors import translating
from skymount.file_api.session import Session, open_session
from skymount.trio_thread import TrioThread

T = TypeVar("T")

IDLE = 60.0
"""Seconds without use after which a session is closed."""

MOST = 4
"""Sessions that are open at a time, unless more are in use."""

_LOOKS = 4  # at a session in the time after which it is idle
_EXIT = 5.0  # seconds that the end of the process waits for sessions


class _Slot:
    """A session that is open, or is about to be."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # held while it opens
        self.thread: TrioThread[Session] | None = None
        self.users = 0
        self.used_at = time.monotonic()


class Sessions:
    """Opens and closes sessions, for any number of threads."""

    def __init__(self, most: int = MOST, idle: float = IDLE) -> None:
        self._most = most
        self._idle = idle
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.RLock()  # `tell` may interrupt its holder, from `__del__`
        self._slots: OrderedDict[Settings, _Slot] = OrderedDict()

    def __len__(self) -> int:
        return len(self._slots)

    def run(
        self, settings: Settings, function: Callable[[Session], Awaitable[T]], link: object
    ) -> T:
        """Run a function in the session of these settings; OSError names the link."""
        with translating(link), self._used(settings) as thread:
            return thread.call(partial(function, thread.opened))

    @contextmanager
    def _used(self, settings: Settings) -> Iterator[TrioThread[Session]]:
        with self._lock:
            slot = self._slots.setdefault(settings, _Slot())
            self._slots.move_to_end(settings)
            slot.users += 1
            surplus = self._take_surplus()
        try:
            for each in surplus:
                each.stop(_EXIT)
            with slot.lock:
                if slot.thread is None or not slot.thread.is_alive:
                    until = partial(self._until_idle, settings, slot)
                    slot.thread = TrioThread(open_session(settings), "session", until)
            yield slot.thread
        finally:
            with self._lock:
                slot.users -= 1
                slot.used_at = time.monotonic()
                if slot.thread is None and not slot.users and self._slots.get(settings) is slot:
                    del self._slots[settings]  # it could not be opened

    def _take_surplus(self) -> list[TrioThread[Session]]:
        """Take out sessions that nobody uses, the ones used longest ago, if there are too many."""
        found = []
        for settings, slot in list(self._slots.items()):
            if len(self._slots) <= self._most:
                break
            if not slot.users:
                del self._slots[settings]
                if slot.thread is not None:
                    found.append(slot.thread)
        return found

    async def _until_idle(self, settings: Settings, slot: _Slot) -> None:
        """Return once nobody has used a session for long enough; it is taken out then."""
        while True:
            await trio.sleep(self._idle / _LOOKS)
            with self._lock:
                is_idle = not slot.users and time.monotonic() >= slot.used_at + self._idle
                if is_idle:
                    if self._slots.get(settings) is slot:
                        del self._slots[settings]
                    return

    def tell(self, settings: Settings, function: Callable[[Session], object]) -> None:
        """Let the session of these settings, if it is open, do something, and do not wait; also
        from `__del__`.
        """
        slot = self._slots.get(settings)
        if slot is not None and slot.thread is not None:
            slot.thread.call_soon(partial(function, slot.thread.opened))

    def close(self) -> None:
        """Close all sessions; those that are used again open again."""
        with self._lock:
            slots = list(self._slots.values())
            self._slots.clear()
        for slot in slots:
            if slot.thread is not None:
                slot.thread.stop(_EXIT)

    def begin_anew(self) -> None:
        """Forget all sessions in a forked process, which has none of their threads."""
        _abandoned.append(self._slots)
        self._begin()


_abandoned: list[object] = []  # kept: closing what belongs to the parent could disturb it

SESSIONS = Sessions()
os.register_at_fork(after_in_child=SESSIONS.begin_anew)
atexit.register(SESSIONS.close)
