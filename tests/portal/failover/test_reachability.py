"""When a portal that cannot be reached gets all attempts, one, or none."""

from skymount.errors import PortalError, UnavailableError
from skymount.portal.failover.reachability import (
    AWAY_TIME,
    REST_TIME,
    SLOW_ATTEMPT,
    Attempts,
    Reachability,
)


def unreached(seconds: float) -> PortalError:
    """Return the error of an attempt to connect that took so long."""
    error = UnavailableError("cannot be reached")
    error.unreached = seconds
    return error


def test_quick_failures_count_after_the_last_round():
    """R10: until then every round has its attempt."""
    found = Reachability()
    found.record_failure(unreached(0.1), 10, is_last_round=False)
    assert found.attempts(10) is Attempts.ALL
    found.record_failure(unreached(0.1), 10, is_last_round=True)
    assert found.attempts(10) is Attempts.ONE
    assert found.attempts(10 + AWAY_TIME) is Attempts.ALL


def test_one_slow_failure_counts():
    """R10: there is no attempt for a while, then one for each request."""
    found = Reachability()
    found.record_failure(unreached(SLOW_ATTEMPT), 10, is_last_round=False)
    assert found.attempts(10) is Attempts.NONE
    assert str(found.connect_error) == "cannot be reached"
    assert found.attempts(10 + REST_TIME) is Attempts.ONE
    assert found.attempts(10 + AWAY_TIME) is Attempts.ALL


def test_portal_that_answers_is_reachable():
    """R10: also with an error over a connection, or on another connection meanwhile."""
    found = Reachability()
    found.record_failure(unreached(SLOW_ATTEMPT), 10, is_last_round=True)
    found.record_answer(11)
    assert found.attempts(11) is Attempts.ALL
    found.record_failure(unreached(5), 12, is_last_round=True)
    assert found.attempts(12) is Attempts.ALL
    found.record_failure(unreached(5), 20, is_last_round=True)
    found.record_failure(UnavailableError("reset"), 21, is_last_round=True)
    assert found.attempts(21) is Attempts.ALL


def test_a_proof_is_asked_for_once_after_failures():
    """T3: for everything else the portal stays in use."""
    found = Reachability()
    found.record_no_proof(10)
    assert found.attempts(10) is Attempts.ALL
    assert found.is_proof_paused(10)
    assert not found.is_proof_paused(10 + AWAY_TIME)
