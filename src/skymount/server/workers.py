"""Runs a portal as several processes that accept connections from one socket.

The first process has to listen before the others are started; if it cannot, its exit code is that
of all. Later on a process that ends is started again. SIGTERM and SIGINT end all, a second signal
that is SIGINT at once.
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

from skymount.process_hardening import has_terminal

_log = logging.getLogger(__name__)

_QUICK = 10.0  # seconds; a process that ends sooner is started again after a pause
_PAUSE = 1.0  # seconds
_STOP_TIME = 9.0  # seconds that processes may take to end, besides those of running requests
_POLL = 0.05  # seconds
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
        graceful_timeout: float,
    ) -> None:
        self._count = count
        self._listener = listener
        self._worker = worker
        self._on_listening = on_listening
        self._started: dict[int, float] = {}  # process -> when
        self._life = os.pipe()  # its end tells processes that this one has ended
        self._is_stopping = False
        self._stop_time = graceful_timeout + _STOP_TIME

    def pass_on_hangups(self) -> None:
        """Have SIGHUP reach all processes, which open their files again."""
        had_terminal = has_terminal()

        def pass_on(number: int, frame: object) -> None:
            if had_terminal and not has_terminal():
                self._stop(signal.SIGTERM, frame)
            else:
                self._kill_all(number)

        signal.signal(signal.SIGHUP, pass_on)

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
                self._reap_or_wait()
            return 0
        finally:
            self._end_all()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, frame: object) -> None:
        if self._is_stopping and number == signal.SIGINT:
            self._stop_time = 0
        self._is_stopping = True
        self._listener.close()  # connections are refused once all processes have done so
        self._kill_all(signal.SIGTERM)

    def _kill_all(self, number: int) -> None:
        for process in list(self._started):
            with suppress(ProcessLookupError):
                os.kill(process, number)

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
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all processes
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

    def _reap_or_wait(self) -> None:
        """Take note of a process that has ended, or wait for a moment."""
        process, status = os.waitpid(-1, os.WNOHANG) if self._started else (0, 0)
        started = self._started.pop(process, None)
        if started is None:
            time.sleep(_POLL)  # waiting for a process would go on after a signal
            return
        code = os.waitstatus_to_exitcode(status)
        if not self._is_stopping:
            _log.warning("process %d ended with code %d; it is started again", process, code)
            if time.monotonic() - started < _QUICK:
                time.sleep(_PAUSE)

    def _wait_for(self, process: int) -> int:
        _, status = os.waitpid(process, 0)
        self._started.pop(process, None)
        return 0 if self._is_stopping else abs(os.waitstatus_to_exitcode(status))

    def _end_all(self) -> None:
        self._is_stopping = True
        self._stop(0, None)
        began = time.monotonic()
        while self._started and time.monotonic() < began + self._stop_time:
            self._reap_or_wait()
        self._kill_all(signal.SIGKILL)
        for process in list(self._started):
            with suppress(ChildProcessError):
                os.waitpid(process, 0)
        for descriptor in self._life:
            os.close(descriptor)
