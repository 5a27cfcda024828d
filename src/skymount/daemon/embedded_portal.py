"""Owns the embedded portal as a child of a mount, and the question whether any portal answers."""

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
from skymount.portal.options import DEFAULT_SVC_PORTAL_URL

log = logging.getLogger(__name__)

PROBE = 0.3
"""Seconds to find out whether a portal answers; only a warning hangs on it."""

_PORTAL_START = 15.0  # seconds that our own portal may take to listen
_PORTAL_CHECK = 2.0  # seconds between two looks at whether a portal is at the default address
_LINE = 4096  # bytes of what it says that are taken for one line
_PORTAL_PAUSE = 60.0  # seconds between two attempts at most to start one that does not start


def answers(url: str) -> bool:
    """Whether something listens at a portal's address."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=PROBE).close()
    except OSError:
        return False
    return True


class EmbeddedPortal:
    """The embedded portal as a child process; it ends when we do, however that happens."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._listening_to = threading.Thread()

    @property
    def is_running(self) -> bool:
        """Whether there is such a child now."""
        return self._process is not None and self._process.poll() is None

    @property
    def was_started(self) -> bool:
        """Whether there is or has been one."""
        return self._process is not None

    def start(self) -> None:
        """Start it at the default address. The end of its standard input ends it.

        MountError when there is no starting it.
        """
        self.stop()
        address = urlsplit(DEFAULT_SVC_PORTAL_URL).netloc
        command = [sys.executable, "-P", "-m", "skymount", "portal", "serve", "--listen", address]
        try:
            self._process = subprocess.Popen(
                [*command, "--until-eof"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,  # not our log itself, which becomes another file
                start_new_session=True,  # a Ctrl-C in our terminal is not for it
            )
        except OSError as error:
            raise MountError(
                f"{sys.executable}: the embedded portal cannot be started: {error.strerror}; "
                "name a portal with --portal URL"
            ) from None
        self._listening_to = threading.Thread(
            target=_log_lines, args=(self._process.stderr,), daemon=True
        )
        self._listening_to.start()

    async def is_listening(self) -> bool:
        """Wait until it listens; False when it ended, or took too long."""
        process = self._process
        if process is None or process.stdout is None:
            return False
        with trio.move_on_after(_PORTAL_START):
            line = await trio.to_thread.run_sync(process.stdout.readline, abandon_on_cancel=True)
            if not line:
                await trio.to_thread.run_sync(self._listening_to.join, abandon_on_cancel=True)
            return b"listening on" in line
        return False

    async def keep(self) -> None:
        """Start one whenever none answers at the default address.

        The one that was there may have been another mount's, and have ended with it.
        """
        pause = _PORTAL_CHECK
        while True:
            await trio.sleep(pause)
            if self.is_running or await trio.to_thread.run_sync(
                answers, DEFAULT_SVC_PORTAL_URL, abandon_on_cancel=True
            ):
                continue
            log.warning("no portal answers at %s any more, starting one", DEFAULT_SVC_PORTAL_URL)
            try:
                await trio.to_thread.run_sync(self.start)
                pause = _PORTAL_CHECK if await self.is_listening() else pause * 2
            except MountError as error:
                log.warning("%s", error)
                pause *= 2
            pause = min(pause, _PORTAL_PAUSE)

    def stop(self) -> None:
        """End it, if it is there, and wait for that."""
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
        self._listening_to.join(5)
        process.stdout.close()


def _log_lines(said: IO[bytes]) -> None:
    """Log what a process says on standard error, until it ends."""
    with said:
        for line in iter(partial(said.readline, _LINE), b""):
            log.warning("portal: %s", line.decode("utf-8", "backslashreplace").rstrip())
