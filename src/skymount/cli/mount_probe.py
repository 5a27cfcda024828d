"""Asks mounts for their ``.skymount/status.json``, and never waits for one that does not answer.

A process that reads from a mount may be stuck in the kernel until the daemon answers. So each mount
is asked by a child process, which is left alone if it does not end.
"""

import errno
import os
import select
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import NoReturn

from skymount.fs.mountpoint import MountInfo, daemons_of, is_stopped
from skymount.wording import readable_size

TIMEOUT = 2.0
"""Seconds that all mounts together may take to answer."""

_SIZE_LIMIT = 1 << 20  # bytes of status.json; those of ours have less than 100 KiB
_PIECE = 64 << 10
_GONE = frozenset({errno.ENOTCONN, errno.ECONNABORTED})


class MountState(Enum):
    """What came of asking a mount."""

    RUNNING = "running"
    GONE = "gone"
    """Its daemon has ended without unmounting."""
    STOPPED = "stopped"
    SILENT = "silent"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class MountAnswer:
    """What a mount said of itself, or why it said nothing and what to do."""

    path: str
    state: MountState
    text: bytes = b""
    reason: str = ""


@dataclass(slots=True)
class _Child:
    """A process that asks a mount. Its pipe brings an errno as a line, then the file."""

    pid: int
    pipe: int
    received: bytes = b""

    def receive(self) -> bool:
        """Take what has come; return whether that was the end."""
        piece = os.read(self.pipe, _PIECE)
        self.received += piece
        return not piece or len(self.received) > _SIZE_LIMIT

    def end(self) -> None:
        os.close(self.pipe)
        os.kill(self.pid, signal.SIGKILL)
        with suppress(ChildProcessError):  # where nobody waits for children
            os.waitpid(self.pid, 0)


class MountProber:
    """Asks mounts. One that has not answered is not asked a second time until it does."""

    def __init__(self, timeout: float = TIMEOUT) -> None:
        self._timeout = timeout
        self._asking: dict[str, _Child] = {}

    def ask(self, mounts: Mapping[str, MountInfo]) -> list[MountAnswer]:
        """Ask all of them at once; return their answers in the same order."""
        for path in mounts:
            if path not in self._asking:
                self._asking[path] = _start(path)
        done = self._receive({path: self._asking[path] for path in mounts})
        return [
            _answer(path, done[path]) if path in done else no_answer(path, mounted, self._timeout)
            for path, mounted in mounts.items()
        ]

    def _receive(self, children: Mapping[str, _Child]) -> dict[str, bytes]:
        """Wait until all have answered or the time is over; return what came by then."""
        poll = select.poll()
        paths = {child.pipe: path for path, child in children.items()}
        for pipe in paths:
            poll.register(pipe, select.POLLIN)
        ends = time.monotonic() + self._timeout
        done: dict[str, bytes] = {}
        while len(done) < len(children):
            ready = poll.poll(max(0.0, ends - time.monotonic()) * 1000)
            if not ready:
                break
            for pipe, _ in ready:
                child = children[paths[pipe]]
                if child.receive():
                    poll.unregister(pipe)
                    done[paths[pipe]] = child.received
                    self._asking.pop(paths[pipe]).end()
        return done


def ask(mounts: Mapping[str, MountInfo]) -> list[MountAnswer]:
    """Ask mounts once."""
    return MountProber().ask(mounts)


def _start(path: str) -> _Child:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _be_child(path, writing)
    os.close(writing)
    return _Child(pid, reading)


def _be_child(path: str, pipe: int) -> NoReturn:
    """Write what a mount answers. Nobody waits for our output if we hang, nor for our end."""
    try:
        os.setsid()  # no Ctrl-C
        null = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        try:
            text = b"0\n" + _read(os.path.join(path, ".skymount/status.json"))
        except OSError as error:
            text = f"{error.errno}\n".encode()
        while text:
            text = text[os.write(pipe, text) :]
    finally:
        os._exit(0)


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:  # its close asks the daemon too
        found = b""
        while len(found) <= _SIZE_LIMIT and (piece := file.read(_PIECE)):
            found += piece
    return found


def _answer(path: str, received: bytes) -> MountAnswer:
    line, _, text = received.partition(b"\n")
    number = int(line or str(errno.EIO))
    if number in _GONE:
        reason = f"its daemon is gone; clear it away with `skymount umount {path}`, or mount again"
        return MountAnswer(path, MountState.GONE, reason=reason)
    if number:
        return MountAnswer(path, MountState.UNREADABLE, reason=os.strerror(number))
    if len(text) > _SIZE_LIMIT:
        reason = f"its status has more than {readable_size(_SIZE_LIMIT)}"
        return MountAnswer(path, MountState.UNREADABLE, reason=reason)
    return MountAnswer(path, MountState.RUNNING, text)


def no_answer(path: str, mounted: MountInfo, timeout: float) -> MountAnswer:
    """Say why a mount did not answer in so many seconds, and what to do."""
    pids = daemons_of(mounted)  # before Linux 6.17 also those of this user's other mounts
    stopped = [pid for pid in pids if is_stopped(pid)]
    detached = f"`skymount umount --lazy {path}` detaches it"
    if len(stopped) == 1:
        whose = "its daemon" if len(pids) == 1 else "a daemon of yours"
        reason = f"{whose} is stopped; `kill -CONT {stopped[0]}` lets it go on, {detached}"
        return MountAnswer(path, MountState.STOPPED, reason=reason)
    reason = f"no answer in {timeout:g} s; {detached}"
    if len(pids) == 1:
        daemon = f"its daemon (pid {pids[0]})"
        reason = f"no answer from {daemon} in {timeout:g} s; is the machine overloaded? {detached}"
    return MountAnswer(path, MountState.SILENT, reason=reason)
