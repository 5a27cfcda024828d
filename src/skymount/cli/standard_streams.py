"""Standard input, output and error: what a command does without one of them, and at its end.

Secrets are read from a terminal or standard input, never from the command line: others see that.
"""

import os
import signal
import sys
from typing import BinaryIO, TextIO

import click

from skymount.errors import MalformedError
from skymount.wording import readable_size

_SECRET_LIMIT = 64 << 10  # bytes of a seed or pass-phrase
_TYPED_LIMIT = 4094  # bytes of a line; a terminal drops what is typed beyond (N_TTY_BUF_SIZE)

# For commands that read a secret. It may be a surplus argument, which click would print.
SURPLUS = {"allow_extra_args": True}


def open_closed() -> None:
    """Open standard streams that are closed to nowhere, or the next file would get their number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def standard_input() -> BinaryIO:
    """Return what a command reads content from; ClickException if it was closed at the start."""
    return _binary(sys.stdin, "standard input")


def standard_output() -> BinaryIO:
    """Return what a command writes content to; ClickException if it was closed at the start."""
    return _binary(sys.stdout, "standard output")


def _binary(stream: TextIO | None, name: str) -> BinaryIO:
    if stream is None:  # Python found the descriptor closed
        raise click.ClickException(f"{name} is closed")
    return stream.buffer


def flush_or_discard() -> None:
    """Flush the output, or Python would complain at its end and exit with 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def refuse_surplus(ctx: click.Context, expected: str) -> None:
    """Refuse surplus arguments without printing them."""
    if ctx.args:
        raise click.UsageError(
            f"{expected}: secrets are read from standard input, since other users can see the "
            "command line",
            ctx,
        )


def read_secret(what: str, *, confirm: bool = False) -> str:
    """Read a secret from a terminal, twice if `confirm`, or else from standard input."""
    text = _ask(what, confirm) if os.isatty(0) else _piped(what)
    if not text:
        raise MalformedError(f"{what.lower()}: nothing was given")
    return text


def _ask(what: str, confirm: bool) -> str:
    try:
        text = _typed(f"{what}: ")
        if confirm and _typed("Once more: ") != text:
            raise click.ClickException("the two are different; try again")
        size = len(text.encode())
    except UnicodeError:
        raise MalformedError(f"{what.lower()}: not valid text") from None
    if size >= _TYPED_LIMIT:
        raise MalformedError(f"{what.lower()}: too long for a terminal; pipe it in instead")
    return text


class _StoppedError(BaseException):
    """Ctrl-Z was typed."""


def _typed(prompt: str) -> str:
    """Read a line without echo. While the command is stopped the terminal is as it was before."""
    from getpass import getpass

    def stop(*_: object) -> None:
        raise _StoppedError

    while True:
        usual = signal.getsignal(signal.SIGTSTP)
        try:
            if usual is not signal.SIG_IGN:
                signal.signal(signal.SIGTSTP, stop)
            return getpass(prompt)
        except _StoppedError:
            pass
        finally:
            signal.signal(signal.SIGTSTP, usual)
        signal.raise_signal(signal.SIGTSTP)


def _piped(what: str) -> str:
    raw = standard_input().read(_SECRET_LIMIT + 2).removesuffix(b"\n")
    if len(raw) > _SECRET_LIMIT:
        raise MalformedError(f"{what.lower()}: longer than {readable_size(_SECRET_LIMIT)}")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise MalformedError(f"{what.lower()}: not valid UTF-8") from None
