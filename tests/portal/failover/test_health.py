"""What follows from how a portal has done: rank, pauses, attempts, and what is late."""

import pytest

from skymount.errors import DisprovedError, PortalTimeoutError, UnavailableError
from skymount.portal.failover.health import (
    BreakerState,
    HealthConfig,
    HedgeBudget,
    PortalHealth,
    Rank,
)
from skymount.portal.failover.reachability import Attempts

DOWN = UnavailableError("down", status=503)
SILENT = PortalTimeoutError("no answer")
CONFIG = HealthConfig()


def test_pauses_grow():
    """R12: from a second to a minute, while each probe fails."""
    health, now = PortalHealth(), 0.0
    pauses = []
    for _ in range(9):
        health.record_failure(DOWN, now)
        begun = now
        while health.state(now) is BreakerState.OPEN:
            now += 0.5
        pauses.append(now - begun)
        assert health.state(now) is BreakerState.HALF_OPEN
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_failures_of_one_moment_count_once():
    """R12: requests that were under way together make no longer pause."""
    health = PortalHealth()
    for _ in range(20):
        health.record_failure(DOWN, 0)
    assert health.state(0.9) is BreakerState.OPEN
    assert health.state(1.0) is BreakerState.HALF_OPEN


def test_pauses_are_short_again():
    """R12: after two minutes without a failure; a success alone does not shorten them."""
    health = PortalHealth()
    health.record_failure(DOWN, 0)
    health.record_failure(DOWN, 1)
    health.record_success(3)
    assert health.state(3) is BreakerState.CLOSED
    health.record_failure(DOWN, 4)
    assert health.state(7.9) is BreakerState.OPEN
    health.record_success(8)
    health.record_failure(DOWN, 4.1 + CONFIG.forgiven_after)
    assert health.state(5.1 + CONFIG.forgiven_after) is BreakerState.HALF_OPEN


def test_rank():
    """R12: healthy, failing, lying; after its pause a portal that is not probed comes first."""
    health = PortalHealth()
    assert health.rank(0, is_probed=True) is Rank.HEALTHY
    health.record_failure(DOWN, 0)
    assert health.rank(0, is_probed=False) is Rank.FAILING
    assert health.rank(1, is_probed=True) is Rank.FAILING
    assert health.rank(1, is_probed=False) is Rank.HEALTHY
    health.record_failure(DisprovedError("a lie"), 2)
    health.record_success(3)
    assert health.rank(3, is_probed=True) is Rank.LYING
    assert health.rank(2 + CONFIG.lie_memory, is_probed=True) is Rank.HEALTHY


def test_a_silent_portal_is_not_asked():
    """R12: while it pauses, and while a probe is under way; then once."""
    health = PortalHealth()
    health.record_failure(SILENT, 10, waited=1.0)
    assert health.attempts(10, is_alone=False) is Attempts.NONE
    assert health.attempts(10, is_alone=True) is Attempts.ALL
    assert health.attempts(11, is_alone=False) is Attempts.ONE
    health.is_probed = True
    assert health.attempts(11, is_alone=False) is Attempts.NONE
    health.record_answer(12)
    assert health.state(12) is BreakerState.CLOSED
    assert health.attempts(12, is_alone=False) is Attempts.ALL


def test_a_refusal_is_an_answer():
    """R12: after the pause it shows that a portal works again, also if that lacks something."""
    health = PortalHealth()
    health.record_failure(DOWN, 10)
    health.record_answer(10.5)
    assert health.state(10.5) is BreakerState.OPEN
    health.record_answer(11)
    assert health.state(11) is BreakerState.CLOSED


@pytest.mark.parametrize("error", [DOWN, SILENT])
def test_a_portal_that_fails_quickly_is_not_silent(error: UnavailableError):
    """R12: it is asked if no other one has a good answer."""
    health = PortalHealth()
    health.record_failure(error, 10, waited=0.5)
    assert health.attempts(10, is_alone=False) is Attempts.ALL


def test_a_portal_that_gave_signs_of_life_is_not_silent():
    """R12: whatever it does with one request."""
    health = PortalHealth()
    health.head_came(0.1, 9.5)
    health.record_failure(SILENT, 10, waited=1.0)
    assert health.attempts(10, is_alone=False) is Attempts.ALL


def test_retry_after():
    """R12: up to a minute."""
    health, busy = PortalHealth(), UnavailableError("slow down", status=429)
    busy.retry_after = 30.0
    health.record_failure(busy, 0)
    assert health.attempts(29, is_alone=False) is Attempts.NONE
    assert not health.may_be_tried(29)
    assert health.attempts(30, is_alone=False) is Attempts.ALL
    busy.retry_after = 1e9
    health.record_failure(busy, 40)
    assert health.state(99) is BreakerState.OPEN
    assert health.state(100) is BreakerState.HALF_OPEN


def test_all_pause():
    """R12: a silent portal is tried again 2 s after its last failure."""
    health = PortalHealth()
    for now in (0, 1, 3, 7):
        health.record_failure(SILENT, now, waited=1.0)
    assert not health.may_be_tried(8.9)
    assert health.may_be_tried(9)
    assert str(health.known_error) == "no answer"


def test_late_portals_are_not_asked_for_proofs():
    """T3: until their pause is over."""
    health = PortalHealth()
    health.record_lost_hedge(1.0, 0)
    assert health.attempts(0, is_alone=False) is Attempts.ALL
    assert health.proof_attempts(0) is Attempts.NONE
    assert health.proof_attempts(1) is Attempts.ALL
    health.reachability.record_no_proof(1)
    assert health.proof_attempts(1) is Attempts.ONE


def test_hedge_delay():
    """R11: three times the usual time, within bounds; a second while nothing is known."""
    health = PortalHealth()
    assert health.hedge_delay == 1.0
    health.head_came(0.01, 0)
    assert health.hedge_delay == 0.25
    assert health.stall_limit == 1.0
    for _ in range(50):
        health.head_came(0.3, 0)
    assert health.hedge_delay == pytest.approx(0.9, abs=0.01)
    health.record_lost_hedge(5.0, 0)
    assert health.hedge_delay == 2.0
    assert health.stall_limit == 2.0


def test_slow_bodies():
    """R11: less than a quarter of what another portal gives, to all bodies together."""
    health = PortalHealth()
    health.body_opened()
    assert health.is_slow(60 << 10, None)
    assert not health.is_slow(64 << 10, None)
    assert health.is_slow(249_000, 1e6)
    health.body_opened()
    assert not health.is_slow(249_000, 1e6)
    health.body_closed(CONFIG.measured_body - 1, 1.0)
    assert health.body_rate is None
    health.body_closed(1_000_000, 2.0)
    assert health.body_rate == 500_000


def test_failure_rate():
    """It moves with each answer and failure."""
    health = PortalHealth()
    for _ in range(30):
        health.record_failure(DOWN, 0)
    assert health.failure_rate > 0.99
    for _ in range(30):
        health.record_answer(0)
    assert health.failure_rate < 0.01


def test_figures():
    """They are those of one moment, and hold no error with its frames."""
    health = PortalHealth()
    health.head_came(0.5, 1)
    health.record_failure(DOWN, 2)
    found = health.figures("http://p.test", 5, is_probed=True)
    assert (found.url, found.state) == ("http://p.test", BreakerState.HALF_OPEN)
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
