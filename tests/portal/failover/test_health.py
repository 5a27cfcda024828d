"""What follows from how a portal has done: rank, pauses, attempts, and what is late."""

import pytest

from skymount.errors import DisprovedError, PortalTimeoutError, UnavailableError
from skymount.portal.failover.health import (
    FORGIVEN_AFTER,
    LIE_MEMORY,
    MEASURED_BODY,
    Health,
    HedgeBudget,
    May,
    Rank,
    State,
)

DOWN = UnavailableError("down", status=503)
SILENT = PortalTimeoutError("no answer")


def test_pauses_grow():
    """R12: from a second to a minute, while each probe fails."""
    health, now = Health(), 0.0
    pauses = []
    for _ in range(9):
        health.failed(DOWN, now)
        begun = now
        while health.state(now) is State.OPEN:
            now += 0.5
        pauses.append(now - begun)
        assert health.state(now) is State.HALF_OPEN
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_failures_of_one_moment_count_once():
    """R12: requests that were under way together make no longer pause."""
    health = Health()
    for _ in range(20):
        health.failed(DOWN, 0)
    assert health.state(0.9) is State.OPEN
    assert health.state(1.0) is State.HALF_OPEN


def test_pauses_are_short_again():
    """R12: after two minutes without a failure; a success alone does not shorten them."""
    health = Health()
    health.failed(DOWN, 0)
    health.failed(DOWN, 1)
    health.answered(3)
    assert health.state(3) is State.CLOSED
    health.failed(DOWN, 4)
    assert health.state(7.9) is State.OPEN
    health.answered(8)
    health.failed(DOWN, 4.1 + FORGIVEN_AFTER)
    assert health.state(5.1 + FORGIVEN_AFTER) is State.HALF_OPEN


def test_rank():
    """R12: healthy, failing, lying; after its pause a portal that is not probed comes first."""
    health = Health()
    assert health.rank(0, has_trials=True) is Rank.HEALTHY
    health.failed(DOWN, 0)
    assert health.rank(0, has_trials=False) is Rank.FAILING
    assert health.rank(1, has_trials=True) is Rank.FAILING
    assert health.rank(1, has_trials=False) is Rank.HEALTHY
    health.failed(DisprovedError("a lie"), 2)
    health.answered(3)
    assert health.rank(3, has_trials=True) is Rank.LYING
    assert health.rank(2 + LIE_MEMORY, has_trials=True) is Rank.HEALTHY


def test_a_silent_portal_is_not_asked():
    """R12: while it pauses, and while a probe is under way; then once."""
    health = Health()
    health.failed(SILENT, 10, waited=1.0)
    assert health.may_ask(10, is_alone=False) is not May.YES
    assert health.may_ask(10, is_alone=True) is May.PROBE
    assert health.may_ask(11, is_alone=False) is May.YES
    health.is_tried = True
    assert health.may_ask(11, is_alone=False) is not May.YES
    health.answered(12, is_good=False)
    assert health.state(12) is State.CLOSED
    assert health.may_ask(12, is_alone=False) is May.YES


def test_a_refusal_is_an_answer():
    """R12: after the pause it shows that a portal works again, also if that lacks something."""
    health = Health()
    health.failed(DOWN, 10)
    health.answered(10.5, is_good=False)
    assert health.state(10.5) is State.OPEN
    health.answered(11, is_good=False)
    assert health.state(11) is State.CLOSED


@pytest.mark.parametrize("error", [DOWN, SILENT])
def test_a_portal_that_fails_quickly_is_not_silent(error: UnavailableError):
    """R12: it is asked if no other one has a good answer."""
    health = Health()
    health.failed(error, 10, waited=0.5)
    assert health.may_ask(10, is_alone=False) is May.YES


def test_a_portal_that_gave_signs_of_life_is_not_silent():
    """R12: whatever it does with one request."""
    health = Health()
    health.head_came(0.1, 9.5)
    health.failed(SILENT, 10, waited=1.0)
    assert health.may_ask(10, is_alone=False) is May.YES


def test_retry_after():
    """R12: up to a minute."""
    health, busy = Health(), UnavailableError("slow down", status=429)
    busy.retry_after = 30.0
    health.failed(busy, 0)
    assert health.may_ask(29, is_alone=False) is not May.YES
    assert health.may_ask(30, is_alone=False) is May.YES
    busy.retry_after = 1e9
    health.failed(busy, 40)
    assert health.state(99) is State.OPEN
    assert health.state(100) is State.HALF_OPEN


def test_all_pause():
    """R12: a silent portal is tried again 2 s after its last failure."""
    health = Health()
    for now in (0, 1, 3, 7):
        health.failed(SILENT, now, waited=1.0)
    assert health.may_ask(8.9, is_alone=False, has_working=False) is May.PROBE
    assert health.may_ask(9, is_alone=False, has_working=False) is May.YES
    assert str(health.known_error) == "it failed a moment ago: no answer"


def test_late_portals_are_not_asked_for_proofs():
    """T3: until their pause is over."""
    health = Health()
    health.lost(1.0, 0)
    assert health.may_ask(0, is_alone=False) is May.YES
    assert health.pauses_for_lateness(0)
    assert not health.pauses_for_lateness(1)


def test_hedge_delay():
    """R11: three times the usual time, within bounds; a second while nothing is known."""
    health = Health()
    assert health.hedge_delay == 1.0
    health.head_came(0.01, 0)
    assert health.hedge_delay == 0.25
    assert health.stall_limit == 1.0
    for _ in range(50):
        health.head_came(0.3, 0)
    assert health.hedge_delay == pytest.approx(0.9, abs=0.01)
    health.lost(5.0, 0)
    assert health.hedge_delay == 2.0
    assert health.stall_limit == 2.0


def test_slow_bodies():
    """R11: less than a quarter of what another portal gives, to all bodies together."""
    health = Health()
    health.body_opened()
    assert health.is_slow(60 << 10, None)
    assert not health.is_slow(64 << 10, None)
    assert health.is_slow(249_000, 1e6)
    health.body_opened()
    assert not health.is_slow(249_000, 1e6)
    health.body_closed(MEASURED_BODY - 1, 0.9)
    assert health.body_rate is None
    health.body_closed(1_000_000, 2.0)
    assert health.body_rate == 500_000


def test_portal_whose_bodies_come_slowly():
    """R11: it works again when a body came in time; its heads show that after a minute only."""
    health = Health()
    health.body_opened()
    health.bytes_came(0)
    health.body_closed(10_000, 1.0)
    health.lost(1.0, 1)
    for now in (3, 30):
        health.answered(now, now)
        assert health.state(now) is State.HALF_OPEN
    health.answered(61, 61)
    assert health.state(61) is State.CLOSED
    health.lost(1.0, 61)
    health.body_opened()
    health.body_closed(1_000_000, 1.0)
    health.answered(64, 64)
    assert health.state(64) is State.CLOSED


def test_failure_rate():
    """It moves with each answer and failure."""
    health = Health()
    for _ in range(30):
        health.failed(DOWN, 0)
    assert health.failure_rate > 0.99
    for _ in range(30):
        health.answered(0)
    assert health.failure_rate < 0.01


def test_figures():
    """They are those of one moment, and hold no error with its frames."""
    health = Health()
    health.head_came(0.5, 1)
    health.failed(DOWN, 2)
    found = health.figures("http://p.test", 5, has_trials=True)
    assert (found.url, found.state) == ("http://p.test", State.HALF_OPEN)
    assert (found.latency, found.last_error, found.last_error_age) == (0.5, "down", 3)


def test_hedge_budget():
    """R11: a tenth of all requests beyond a burst of eight."""
    budget = HedgeBudget()
    assert sum(budget.take() for _ in range(20)) == 8
    for _ in range(9):
        budget.count()
    assert not budget.take()
    budget.count()
    budget.count()
    assert budget.take()
    for _ in range(1000):
        budget.count()
    assert sum(budget.take() for _ in range(20)) == 8
