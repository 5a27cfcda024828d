"""Runs a portal as several processes that accept connections from one socket.

The first process has to listen before the others are started; if it cannot, its exit code is that
of all. Later on a process that ends is started again. SIGTERM and SIGINT end all.
"""

import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

_log = logging.getLogger(__name__)

_QUICK = 10.0  # seconds; a process that ends sooner is started again after a pause
_PAUSE = 1.0  # seconds
_STOP_TIME = 10.0  # seconds that processes may take to end
_SIGNALS = (signal.SIGTERM, signal.SIGINT)

Worker = Callable[[socket.socket, Callable[[str], None], int], int]
"""Serves from a socket, calls a function with the URL once it listens, and ends when the file of a
descriptor does; returns its exit code.
"""


class Workers:
    """The processes of one portal."""

    def __init__(
        self,
        count: int,
        listener: socket.socket,
        worker: Worker,
        on_listening: Callable[[str], None],
    ) -> None:
        self._count = count
        self._listener = listener
        self._worker = worker
        self._on_listening = on_listening
        self._started: dict[int, float] = {}  # process -> when
        self._life = os.pipe()  # its end tells processes that this one has ended
        self._is_stopping = False

    def run(self) -> int:
        """Run until a signal; return the exit code."""
        before = {number: signal.signal(number, self._stop) for number in _SIGNALS}
        try:
            first, url = self._start_first()
            if not url:
                return self._wait_for(first)
            self._on_listening(url)
            while not self._is_stopping:
                self._fill()
                self._reap(block=True)
            return 0
        finally:
            self._end_all()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, frame: object) -> None:
        self._is_stopping = True
        for process in list(self._started):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)

    def _start_first(self) -> tuple[int, str]:
        """Start a process, and return it with the URL it listens at; empty if it ended."""
        reading, writing = os.pipe()

        def tell(url: str) -> None:
            os.write(writing, url.encode())
            os.close(writing)

        process = self._start(tell, reading)
        os.close(writing)
        with open(reading, "rb") as told:
            return process, told.read().decode()

    def _start(self, on_listening: Callable[[str], None], unused: int = -1) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        # A signal now would run `_stop` in the new process, which must not end the others.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        process = -1
        try:
            process = os.fork()
            if process:
                self._started[process] = time.monotonic()
        finally:
            if process:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if not process:
            self._work(on_listening, unused, mask)
        if self._is_stopping:  # the signal came before
            self._stop(0, None)
        return process

    def _work(
        self, on_listening: Callable[[str], None], unused: int, mask: set[int | signal.Signals]
    ) -> NoReturn:
        """Be a worker, and nothing else afterwards."""
        code = 1
        try:
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.close(self._life[1])
            if unused >= 0:
                os.close(unused)
            code = self._worker(self._listener, on_listening, self._life[0])
        except BaseException:  # noqa: BLE001  # what runs the first process must not run here
            _log.exception("a process of the portal failed")
        finally:
            with suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _fill(self) -> None:
        while len(self._started) < self._count and not self._is_stopping:
            try:
                self._start(lambda url: None)
            except OSError as error:  # too many processes, or too little memory
                _log.error("cannot start a process: %s", error)
                time.sleep(_PAUSE)
                return

    def _reap(self, *, block: bool) -> int:
        """Wait for a process that has ended, and return its exit code; -1 if there is none."""
        try:
            process, status = os.waitpid(-1, 0 if block else os.WNOHANG)
        except ChildProcessError:
            return -1
        started = self._started.pop(process, None)
        if started is None:
            return -1
        code = os.waitstatus_to_exitcode(status)
        if not self._is_stopping:
            _log.warning("process %d ended with code %d; it is started again", process, code)
            if time.monotonic() - started < _QUICK:
                time.sleep(_PAUSE)
        return code

    def _wait_for(self, process: int) -> int:
        _, status = os.waitpid(process, 0)
        self._started.pop(process, None)
        return 0 if self._is_stopping else abs(os.waitstatus_to_exitcode(status))

    def _end_all(self) -> None:
        self._is_stopping = True
        self._stop(0, None)
        until = time.monotonic() + _STOP_TIME
        while self._started and time.monotonic() < until:
            if self._reap(block=False) < 0:
                time.sleep(0.02)
        for process in list(self._started):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(process, 0)
        for descriptor in self._life:
            os.close(descriptor)
