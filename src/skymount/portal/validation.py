"""Checks of the types and ranges of options and arguments: WrongTypeError or MalformedError.

Both name the argument; neither repeats a text, which may be a secret. `msgspec.convert` does not
fit: its bounds end at 2**63, and it decodes a text as base64 where bytes are wanted.
"""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from skymount.errors import MalformedError, WrongTypeError

_VARIABLE = re.compile(r"\$[A-Za-z_{]")


def typed(value: object, kind: Any, name: str, what: str) -> Any:
    """Return a value of a type, or of a union of types. A bool counts as a bool only."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise WrongTypeError(f"{name} must be {what}, not {type(value).__name__}")
    return value


def text(value: object, name: str) -> str:
    """Return a text."""
    found: str = typed(value, str, name, "a string")
    return found


def path(value: object, name: str) -> str:
    """Return the text of a path. `~` and `~user` at its start must be known."""
    found = text(value, name)
    if not found:
        raise MalformedError(f"{name} is an empty path")
    if "\0" in found:
        raise MalformedError(f"{name} is not a path: it holds a NUL character")
    if os.path.expanduser(found).startswith("~"):
        raise MalformedError(f"{name} begins with ~, and there is no such home directory")
    return found


def refuse_variables(value: object, name: str) -> None:
    """MalformedError for a path with variables, where no shell has replaced them."""
    if isinstance(value, str) and _VARIABLE.search(value):
        raise MalformedError(f"{name} holds a $: variables are not replaced; write ~ for your home")


def flag(value: object, name: str) -> bool:
    """Return a truth value; numbers are not taken for one."""
    found: bool = typed(value, bool, name, "True or False")
    return found


def integer(value: object, name: str, least: int = 0, most: int | None = None) -> int:
    """Return an integer of a range."""
    found: int = typed(value, int, name, "an integer")
    if found < least or (most is not None and found > most):
        limits = f"at least {least}" if most is None else f"from {least} to {most}"
        raise MalformedError(f"{name} must be {limits}")
    return found


def seconds(value: object, name: str, most: float = sys.float_info.max) -> float:
    """Return a number of seconds above 0."""
    found: float = typed(value, int | float, name, "a number of seconds")
    if not 0 < found <= most:
        limit = "finite" if most == sys.float_info.max else f"at most {most}"
        raise MalformedError(f"{name} must be above 0 seconds and {limit}")
    return float(found)


def texts(value: object, name: str) -> tuple[str, ...]:
    """Return a sequence of texts; a single text is not one."""
    what = "a list of strings"
    if isinstance(value, str):
        raise WrongTypeError(f"{name} must be {what}, not a single one")
    return tuple(text(item, f"each of {name}") for item in typed(value, Sequence, name, what))


def mapping(value: object, name: str) -> Mapping[object, object]:
    """Return a mapping."""
    found: Mapping[object, object] = typed(value, Mapping, name, "a mapping")
    return found


def callback(value: object, name: str) -> Any:
    """Return a callable or None."""
    if value is not None and not callable(value):
        raise WrongTypeError(f"{name} must be callable, not {type(value).__name__}")
    return value
