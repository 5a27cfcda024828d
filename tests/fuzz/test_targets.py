"""Whatever the bytes: each parser of what comes from outside keeps what its target says.

A few inputs of each here, the same on every run; `scripts/fuzz` makes a million.
"""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.all import TARGETS
from tests.fuzz.engine import LONGEST, execute, mutate

few = settings(derandomize=True, database=None, deadline=None, max_examples=100)
each = pytest.mark.parametrize("name", list(TARGETS))


@each
def test_seeds(name: str) -> None:
    """What the inputs are made of is what the target takes: most of it is not refused."""
    found = TARGETS[name]
    for seed in found.seeds:
        execute(found, seed)


@each
@few
@given(random=st.randoms(use_true_random=False))
def test_near_inputs(name: str, random: Random) -> None:
    """Inputs that are nearly right."""
    found = TARGETS[name]
    execute(found, mutate(random, found.seeds, found.tokens))


@each
@few
@given(data=st.binary(max_size=300))
def test_any_input(name: str, data: bytes) -> None:
    """Inputs that are not."""
    execute(TARGETS[name], data)


@each
def test_long_inputs(name: str) -> None:
    """No input takes the square of its length in time, whatever is repeated in it."""
    found = TARGETS[name]
    for token in {*found.tokens, b" ", b"\n", b"a"}:
        many = token * max(1, LONGEST // max(1, len(token)))
        for seed in (b"", found.seeds[0]):
            half = len(seed) // 2
            execute(found, (seed[:half] + many + seed[half:])[:LONGEST])
