"""Reading JSON from outside: with a limit, of an expected form, and with one kind of error."""

from typing import TypeVar

import msgspec

from skymount.errors import MalformedError

T = TypeVar("T")


def decode_json(body: bytes, form: type[T], what: str, limit: int) -> T:
    """Read JSON of a type that msgspec knows; a MalformedError names `what`."""
    if len(body) > limit:
        raise MalformedError(f"{what} is too long")
    try:
        return msgspec.json.decode(body, type=form)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedError(f"{what} is not as expected: {error}") from None
