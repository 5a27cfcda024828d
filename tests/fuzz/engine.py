"""What all targets share: how one is executed within its bounds, and how inputs are changed.

A target is a function of bytes that states what holds of them, whatever they are. It calls what it
looks at with `attempt`, which lets nothing but the documented errors pass.
"""

import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from skymount.errors import MalformedError

SECONDS = 2.0
"""Of processor time for one input; the machine may be a slow one."""

LENGTH = 4 << 10
"""Bytes of most inputs."""

LONGEST = 64 << 10
"""Bytes of an input in which something is repeated many times: what takes the square of its length
in time takes longer than it may.
"""

_MESSAGE = 1000  # characters of an error's message

SHORT = 8 << 10
"""Bytes of the longest input of what only its user writes, and what takes a while to read."""

said: list[str] = []
"""What was refused since it was last emptied, and why: what the loop takes for a new way through
the code.
"""


class _TooSlow(BaseException):
    """An input takes more time than it may. No parser catches it."""


@dataclass(frozen=True, slots=True)
class Target:
    """One function, and what its inputs are made of."""

    check: Callable[[bytes], None]
    seeds: tuple[bytes, ...]
    tokens: tuple[bytes, ...]

    @property
    def name(self) -> str:
        return self.check.__name__


TARGETS: dict[str, Target] = {}
"""All of them by name."""


def target(
    *seeds: bytes, tokens: tuple[bytes, ...] = ()
) -> Callable[[Callable[[bytes], None]], Callable[[bytes], None]]:
    """Make a function a target. Seeds are inputs, tokens are parts of them that mean something."""

    def register(check: Callable[[bytes], None]) -> Callable[[bytes], None]:
        assert check.__name__ not in TARGETS
        TARGETS[check.__name__] = Target(check, seeds, tokens)
        return check

    return register


def refusal_of(function: Callable[..., Any], *args: Any) -> str | None:
    """Return the reason why a parser calls its input malformed; None when it does not."""
    try:
        function(*args)
    except MalformedError as error:
        return str(error)
    return None


def attempt(
    function: Callable[..., Any],
    *args: Any,
    errors: type[Exception] | tuple[type[Exception], ...] = MalformedError,
) -> Any:
    """Return what a parser makes of its input; None when it refuses it as documented.

    Then it says why in one line that is not long, and that a terminal and a log can show.
    """
    try:
        return function(*args)
    except errors as error:
        text = str(error)
        assert len(text) <= _MESSAGE, f"a message of {len(text)} characters"
        assert text.isprintable(), f"a message that cannot be shown: {text!r}"
        said.append(text)
        return None


def execute(found: Target, data: bytes) -> None:
    """Run a target on one input. What it raises is a fault, also when it takes too long."""
    try:
        with _bounded():
            found.check(data)
    except _TooSlow:
        raise AssertionError(f"{found.name}: {len(data)} bytes take over {SECONDS} s") from None


@contextmanager
def _bounded() -> Iterator[None]:
    """Bound the processor time, also of what would never end."""
    before = signal.signal(signal.SIGVTALRM, _on_alarm)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _on_alarm(signum: int, frame: object) -> None:
    raise _TooSlow


# --- inputs ----------------------------------------------------------------------

_WORD = re.compile(rb"[A-Za-z0-9_]+|[^A-Za-z0-9_]")
_NUMBER = re.compile(rb"[0-9]+")
_NUMBERS = (
    *(b"0", b"1", b"-1", b"00", b"255", b"256", b"4300", b"65536", b"1.0", b"1e400", b"9" * 5000),
    *(str((1 << bits) + more).encode() for bits in (31, 32, 53, 63, 64) for more in (-1, 0, 1)),
)
_WHOLE = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 1 << 31, (1 << 32) - 1, 1 << 62, 1 << 63)
_TIMES = (2, 3, 10, 100, 1000)


def mutate(random: Random, seeds: list[bytes] | tuple[bytes, ...], tokens: Any) -> bytes:
    """Make an input of one of the seeds, by a few changes of any kind."""
    data = seeds[_below(random, len(seeds))]
    for _ in range(1 << _below(random, 4)):
        edit = _EDITS[_below(random, len(_EDITS))]
        data = edit(random, data, seeds, tokens)[:LONGEST]
    return data if random.random() < 0.002 else data[:LENGTH]


def pieces(data: bytes, steps: bytes) -> list[bytes]:
    """Cut data into pieces whose sizes go by some other bytes, again and again.

    They may be single bytes, unless there are many of them.
    """
    least = 1 + (len(data) >> 8)
    sizes = [least + step * step for step in steps] or [least]
    found, at, turn = [], 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        found.append(data[at : at + size])
        at, turn = at + size, turn + 1
    return found


def _below(random: Random, limit: int) -> int:
    """Return a number of a range; `randrange` takes five times as long."""
    return int(random.random() * limit)


def _span(random: Random, data: bytes) -> tuple[int, int]:
    """Return where a part of data begins and ends; it is short mostly."""
    start = _below(random, len(data) + 1)
    longest = len(data) if random.random() < 0.2 else 12
    return start, min(len(data), start + _below(random, longest + 1))


def _word(random: Random, data: bytes) -> tuple[int, int]:
    """The same of a word, a number or a single character."""
    found = _WORD.search(data, _below(random, len(data) + 1))
    return found.span() if found else (len(data), len(data))


def _piece(random: Random, seeds: Any, tokens: Any) -> bytes:
    kind = random.random()
    if tokens and kind < 0.6:
        return bytes(tokens[_below(random, len(tokens))])
    if kind < 0.8:
        other = seeds[_below(random, len(seeds))]
        start, stop = _span(random, other)
        return bytes(other[start:stop])
    return bytes([_below(random, 256) for _ in range(1 + _below(random, 3))])


def _inserted(random: Random, data: bytes, seeds: Any, tokens: Any) -> bytes:
    at = _below(random, len(data) + 1)
    return data[:at] + _piece(random, seeds, tokens) + data[at:]


def _replaced(random: Random, data: bytes, seeds: Any, tokens: Any, part: Any = _span) -> bytes:
    start, stop = part(random, data)
    return data[:start] + _piece(random, seeds, tokens) + data[stop:]


def _removed(random: Random, data: bytes, seeds: Any, tokens: Any, part: Any = _span) -> bytes:
    start, stop = part(random, data)
    return data[:start] + data[stop:]


def _overwritten(random: Random, data: bytes, seeds: Any, tokens: Any) -> bytes:
    at = _below(random, len(data) + 1)
    put = _piece(random, seeds, tokens)
    return data[:at] + put + data[at + len(put) :]


def _flipped(random: Random, data: bytes, seeds: Any, tokens: Any) -> bytes:
    at = _below(random, len(data))
    return data[:at] + bytes([data[at] ^ 1 << _below(random, 8)]) + data[at + 1 :] if data else data


def _repeated(random: Random, data: bytes, seeds: Any, tokens: Any) -> bytes:
    start, stop = _span(random, data)
    times = _TIMES[_below(random, len(_TIMES))]
    return data[:start] + data[start:stop] * times + data[stop:]


def _swapped(random: Random, data: bytes, seeds: Any, tokens: Any) -> bytes:
    (start, stop), (first, last) = sorted((_span(random, data), _span(random, data)))
    if first < stop:
        return data
    return data[:start] + data[first:last] + data[stop:first] + data[start:stop] + data[last:]


def _renumbered(random: Random, data: bytes, seeds: Any, tokens: Any) -> bytes:
    found = _NUMBER.search(data, _below(random, len(data) + 1))
    if found is None:
        return data
    put = _NUMBERS[_below(random, len(_NUMBERS))]
    return data[: found.start()] + put + data[found.end() :]


def _binary(random: Random, data: bytes, seeds: Any, tokens: Any) -> bytes:
    size = (1, 2, 4, 8)[_below(random, 4)]
    value = _WHOLE[_below(random, len(_WHOLE))] + _below(random, 3) - 1
    put = (value % (1 << 8 * size)).to_bytes(size, "little")
    at = _below(random, len(data) + 1)
    return data[:at] + put + data[at + size :]


def _joined(random: Random, data: bytes, seeds: Any, tokens: Any) -> bytes:
    other = seeds[_below(random, len(seeds))]
    return data[: _below(random, len(data) + 1)] + other[_below(random, len(other) + 1) :]


_EDITS: tuple[Any, ...] = (
    _inserted,
    _replaced,
    partial(_replaced, part=_word),
    _removed,
    partial(_removed, part=_word),
    _overwritten,
    _flipped,
    _repeated,
    _swapped,
    _renumbered,
    _binary,
    _joined,
)
