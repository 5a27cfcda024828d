"""The embedded portal as a child process of a mount."""

import logging
import socket
import subprocess
import sys
import threading
from functools import partial
from typing import IO
from urllib.parse import urlsplit

import trio

from skymount.errors import MountError
from skymount.settings import DEFAULT_SVC_PORTAL_URL

log = logging.getLogger(__name__)

_PROBE_TIMEOUT = 0.3  # seconds for a connection to a portal
_START_TIMEOUT = 15.0  # seconds that the embedded portal may take to listen
_CHECK_INTERVAL = 2.0  # seconds between checks of the default address
_MAX_BACKOFF = 60.0  # seconds between attempts to start a portal that does not start
_MAX_LINE = 4096  # bytes of its output that are logged as one line


def is_reachable(url: str, timeout: float = _PROBE_TIMEOUT) -> bool:
    """Whether something listens at a portal's address."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=timeout).close()
    except OSError:
        return False
    return True


class EmbeddedPortal:
    """The embedded portal as a child process, which ends when this process does, even if killed."""

    def __init__(
        self,
        url: str = DEFAULT_SVC_PORTAL_URL,
        foreign_uid: int | None = None,
        *,
        start_timeout: float = _START_TIMEOUT,
    ) -> None:
        """`foreign_uid` is the other user who has the default address, if it is taken so;
        `start_timeout` the seconds that it may take to listen.
        """
        self.url, self.foreign_uid = url, foreign_uid
        self._start_timeout = start_timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._log_thread = threading.Thread()
        self._last_line = ""

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def was_started(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        """Start it at its address; MountError when it cannot be started."""
        self.stop()
        self._last_line = ""
        address = urlsplit(self.url).netloc
        command = [sys.executable, "-P", "-m", "skymount", "portal", "serve", "--listen", address]
        try:
            self._process = subprocess.Popen(
                [*command, "--until-eof"],
                stdin=subprocess.PIPE,  # it ends when this does
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,  # not our log file, which changes
                start_new_session=True,  # it gets no Ctrl-C from our terminal
            )
        except OSError as error:
            raise MountError(
                f"{sys.executable}: the embedded portal cannot be started: {error.strerror}; "
                "name a portal with --portal URL"
            ) from None
        self._log_thread = threading.Thread(
            target=self._log_lines, args=(self._process.stderr,), daemon=True
        )
        self._log_thread.start()

    @property
    def last_line(self) -> str:
        """The last line that it printed: why it ended, if it did."""
        return self._last_line

    async def is_listening(self) -> bool:
        """Wait until it listens; False if it ended or took too long."""
        process = self._process
        if process is None or process.stdout is None:
            return False
        with trio.move_on_after(self._start_timeout):
            line = await trio.to_thread.run_sync(process.stdout.readline, abandon_on_cancel=True)
            if not line:
                await trio.to_thread.run_sync(self._log_thread.join, abandon_on_cancel=True)
            return b"listening on" in line
        return False

    async def keep_running(self) -> None:
        """Start one when its address cannot be reached: another mount's may have ended."""
        pause = _CHECK_INTERVAL
        while True:
            await trio.sleep(pause)
            if self.is_running or await trio.to_thread.run_sync(
                is_reachable, self.url, abandon_on_cancel=True
            ):
                continue
            log.warning("no portal answers at %s any more, starting one", self.url)
            started = False
            try:
                await trio.to_thread.run_sync(self.start)
                started = await self.is_listening()
            except MountError as error:
                log.warning("%s", error)
            pause = _CHECK_INTERVAL if started else min(pause * 2, _MAX_BACKOFF)

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._log_thread.join(5)
        process.stdout.close()

    def _log_lines(self, stderr: IO[bytes]) -> None:
        with stderr:
            for line in iter(partial(stderr.readline, _MAX_LINE), b""):
                text = line.decode("utf-8", "backslashreplace").rstrip()
                text = text.removeprefix("skymount: ")
                self._last_line = text
                log.warning("portal: %s", text)
