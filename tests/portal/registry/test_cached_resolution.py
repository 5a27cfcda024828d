"""How long a resolved name holds, and what is served meanwhile."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skymount.errors import NotFoundError
from skymount.portal.registry.name_resolver import NEGATIVE_TTL, CachedResolution, Resolution
from tests.fakes import skyfiles

SITE = skyfiles.of_files({"f": b"site"})
FOUND = Resolution(SITE.skylink, True, 100.0)


def test_answer_holds():
    """H2: A resolution holds for `hns_ttl` (60 s), from when it was asked for."""
    known = CachedResolution(FOUND, requested_at=100)
    assert [known.revalidate_in(now, 60) for now in (100, 159, 160, 1000)] == [60, 1, 0, 0]
    assert known.answer(159, 60) is FOUND
    assert known.answer(160, 60) is None


def test_answer_is_asked_for_before_its_end():
    """H2: 5 s before its end (a quarter of `hns_ttl`, if that is less)."""
    known = CachedResolution(FOUND, requested_at=100)
    assert [known.refresh_in(now, 60) for now in (100, 154, 155, 1000)] == [55, 1, 0, 0]
    assert known.refresh_in(100, 4) == 3
    for other in (
        CachedResolution(),
        CachedResolution(absent=True, requested_at=100),
        CachedResolution(replace(FOUND, provisional=True), requested_at=100),
        known.after_failure(101),
        replace(known, outdated=True),
    ):
        assert other.refresh_in(101, 60) is None


def test_answer_that_is_outdated():
    """H5: What this mount learns earlier counts within a second.

    Until then it is stale; when asking fails it is served on, for as long as after any failure.
    """
    known = CachedResolution(FOUND, requested_at=100, outdated=True)
    assert (known.revalidate_in(101, 60), known.answer(101, 60), known.stale) == (0, None, True)
    failed = known.after_failure(101)
    assert (failed.revalidate_in(101, 60), failed.answer(102, 60), failed.stale) == (2, FOUND, True)


def test_absence_holds():
    """H1: and asked for again after 5 s."""
    known = CachedResolution(absent=True, requested_at=100)
    assert known.revalidate_in(101, 60) == NEGATIVE_TTL - 1
    with pytest.raises(NotFoundError):
        known.answer(104, 60)
    assert known.answer(105, 60) is None


def test_failures():
    """H3: While the resolver fails, the last good tree is served.

    It is asked less and less often, but not more seldom than when it does not fail.
    """
    known = CachedResolution(FOUND, requested_at=100)
    pauses = []
    for _ in range(40):
        known = known.after_failure(200)
        assert known.stale
        assert known.answer(200, 60) is FOUND
        pauses.append(known.revalidate_in(200, 60))
    assert pauses[:7] == [2, 4, 8, 16, 32, 60, 60]
    assert known.revalidate_in(200, 0.5) == 0.5


def test_failure_is_no_absence():
    """L4: A portal that fails is never reported as ENOENT, also where it said so before."""
    known = CachedResolution(absent=True, requested_at=100).after_failure(101)
    assert not known.absent
    assert not known.stale
    assert known.answer(102, 60) is None


@given(
    st.lists(st.tuples(st.sampled_from("fns"), st.floats(0, 100)), max_size=30),
    st.floats(0.1, 100),
)
def test_it_is_always_asked_again(events: list[tuple[str, float]], ttl: float):
    """Whatever happened, a name is asked for again within the time for which an answer holds."""
    known, now = CachedResolution(), 0.0
    for kind, later in events:
        now += later
        if kind == "f":
            known = known.after_failure(now)
        else:
            found = replace(FOUND, requested_at=now) if kind == "s" else None
            known = CachedResolution(found, absent=found is None, requested_at=now)
        assert 0 <= known.revalidate_in(now, ttl) <= max(ttl, NEGATIVE_TTL) + 1e-6
        assert known.revalidate_in(now + max(ttl, NEGATIVE_TTL) + 1e-6, ttl) == 0


def test_provisional_answer_holds():
    """T6: and asked for again after 5 s."""
    found = replace(FOUND, verified=False, provisional=True)
    known = CachedResolution(found, requested_at=100)
    assert [known.revalidate_in(now, 60) for now in (100, 104, 105)] == [5, 1, 0]
    assert known.revalidate_in(100, 2) == 2
