"""Standard input, output and error: what a command does without one of them, and at its end."""

import os
import sys
from typing import BinaryIO, TextIO

import click


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
