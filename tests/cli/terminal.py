"""A terminal at which a command asks for something."""

import os
import pty
import select
import subprocess
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.skymount_process import LIMIT, SKYMOUNT, Sandbox, end


class Terminal:
    """A command with a terminal of its own as its standard input and error."""

    def __init__(self, process: "subprocess.Popen[bytes]", master: int) -> None:
        self.process, self.shown = process, ""
        self._master = master

    def type_after(self, prompt: str, text: str) -> None:
        """Wait for a prompt, then type; sooner, the terminal would still show what is typed."""
        seen = len(self.shown)
        while prompt not in self.shown[seen:]:
            assert self._read(), f"no prompt {prompt!r} but {self.shown!r}"
        os.write(self._master, text.encode())

    def wait_for(self, text: str) -> None:
        """Wait until a text is shown."""
        while text not in self.shown:
            assert self._read(), f"no {text!r} but {self.shown!r}"

    @property
    def has_echo(self) -> bool:
        """Whether it shows what is typed."""
        return bool(termios.tcgetattr(self._master)[3] & termios.ECHO)

    def end(self) -> tuple[int, str]:
        """Wait for its end; return the exit code and what went to stdout."""
        while self._read():
            pass
        assert self.process.stdout is not None
        out = self.process.stdout.read()
        return self.process.wait(LIMIT), out.decode()

    def _read(self) -> bool:
        assert select.select([self._master], [], [], LIMIT)[0], f"it hangs: {self.shown!r}"
        try:
            piece = os.read(self._master, 65536)
        except OSError:  # EIO: nobody has the terminal open any more
            return False
        self.shown += piece.decode()
        return bool(piece)


@contextmanager
def at_terminal(
    sandbox: Sandbox, *args: str, controlling: bool = True, command: Sequence[str] = ()
) -> Iterator[Terminal]:
    """Run ``skymount`` at a terminal, as a shell would (`controlling`) or without /dev/tty.

    `command` replaces the whole command line.
    """
    master, slave = pty.openpty()
    session = ["setsid", "--ctty"] if controlling else ["setsid"]
    process = subprocess.Popen(
        [*session, *(command or [*SKYMOUNT, *args])],
        env={**sandbox.env, "TERM": "xterm"},
        stdin=slave,
        stdout=subprocess.PIPE,
        stderr=slave,
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        end(process)
        os.close(master)
