"""How long a repetition waits."""

import random

import pytest

from skymount.portal.http.retry import RetryPolicy


def test_pauses(monkeypatch: pytest.MonkeyPatch):
    """Pauses are drawn from 0 to a bound that doubles up to 5 s."""
    bounds: list[float] = []

    def draw(low: float, high: float) -> float:
        assert low == 0
        bounds.append(high)
        return high

    monkeypatch.setattr(random, "uniform", draw)
    assert [RetryPolicy().pause_before(n) for n in range(1, 8)] == [
        0.2,
        0.4,
        0.8,
        1.6,
        3.2,
        5.0,
        5.0,
    ]
    assert bounds == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_pauses_that_a_portal_asks_for():
    """What a portal asks for is waited, up to a minute; more is not worth waiting for."""
    assert RetryPolicy().pause_before(1, 30.0) == 30.0
    assert RetryPolicy().pause_before(3, 60.0) == 60.0
    assert RetryPolicy().pause_before(1, 60.1) is None
    pause = RetryPolicy().pause_before(1, 0.0)
    assert pause is not None
    assert 0 <= pause <= 0.2
