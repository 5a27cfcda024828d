"""Reads secrets from a terminal or standard input, never from the command line: others see that."""

import os

import click

from skymount.cli.standard_streams import standard_input
from skymount.errors import MalformedError

_SECRET_LIMIT = 64 << 10  # bytes of a seed or pass-phrase
_TYPED_LIMIT = 4094  # bytes of a line; a terminal drops what is typed beyond (N_TTY_BUF_SIZE)

# For commands that read a secret. It may be a surplus argument, which click would print.
SURPLUS = {"allow_extra_args": True}


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
    from getpass import getpass

    try:
        text = getpass(f"{what}: ")
        if confirm and getpass("Once more: ") != text:
            raise click.ClickException("the two are different; try again")
        size = len(text.encode())
    except UnicodeError:
        raise MalformedError(f"{what.lower()}: not valid text") from None
    if size >= _TYPED_LIMIT:
        raise MalformedError(f"{what.lower()}: too long for a terminal; pipe it in instead")
    return text


def _piped(what: str) -> str:
    raw = standard_input().read(_SECRET_LIMIT + 2).removesuffix(b"\n")
    if len(raw) > _SECRET_LIMIT:
        raise MalformedError(f"{what.lower()}: longer than {_SECRET_LIMIT} bytes")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise MalformedError(f"{what.lower()}: not valid UTF-8") from None
