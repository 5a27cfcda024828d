"""When a portal gets all attempts, one, or none."""

from skymount.errors import PortalError, UnavailableError
from skymount.portal.circuit_breaker import (
    FAILURE_MEMORY,
    HALF_OPEN_TIME,
    OPEN_TIME,
    SLOW_ATTEMPT,
    BreakerState,
    CircuitBreaker,
)


def unreached(seconds: float) -> PortalError:
    """Return the error of an attempt to connect that took so long."""
    error = UnavailableError("cannot be reached")
    error.unreached = seconds
    return error


def test_quick_failures_open_it_half_after_the_last_round():
    """R10: until then every round has its attempt."""
    breaker = CircuitBreaker()
    breaker.record_failure(unreached(0.1), 10, is_last_round=False)
    assert breaker.state(10) is BreakerState.CLOSED
    breaker.record_failure(unreached(0.1), 10, is_last_round=True)
    assert breaker.state(10) is BreakerState.HALF_OPEN
    assert breaker.state(10 + HALF_OPEN_TIME) is BreakerState.CLOSED


def test_one_slow_failure_opens_it():
    """R10: then it is half open for the rest of the time."""
    breaker = CircuitBreaker()
    breaker.record_failure(unreached(SLOW_ATTEMPT), 10, is_last_round=False)
    assert breaker.state(10) is BreakerState.OPEN
    assert str(breaker.connect_error) == "cannot be reached"
    assert breaker.state(10 + OPEN_TIME) is BreakerState.HALF_OPEN
    assert breaker.state(10 + HALF_OPEN_TIME) is BreakerState.CLOSED


def test_any_answer_closes_it():
    """R10: also an error that came over a connection, and an answer on another one meanwhile."""
    breaker = CircuitBreaker()
    breaker.record_failure(unreached(SLOW_ATTEMPT), 10, is_last_round=True)
    breaker.record_answer(11)
    assert breaker.state(11) is BreakerState.CLOSED
    breaker.record_failure(unreached(5), 12, is_last_round=True)
    assert breaker.state(12) is BreakerState.CLOSED
    breaker.record_failure(unreached(5), 20, is_last_round=True)
    breaker.record_failure(UnavailableError("reset"), 21, is_last_round=True)
    assert breaker.state(21) is BreakerState.CLOSED


def test_a_proof_is_asked_for_once_after_failures():
    """T3: for everything else the portal stays in use."""
    breaker = CircuitBreaker()
    breaker.record_no_proof(10)
    assert (breaker.state(10), breaker.proof_state(10)) == (
        BreakerState.CLOSED,
        BreakerState.HALF_OPEN,
    )
    assert breaker.proof_state(10 + HALF_OPEN_TIME) is BreakerState.CLOSED


def test_failures_are_forgotten():
    """The more there were in a row the later; a good answer ends the row."""
    breaker = CircuitBreaker()
    for _ in range(2):
        breaker.record_failure(UnavailableError("down"), 0, is_last_round=True)
    assert breaker.failures_at(2 * FAILURE_MEMORY - 1) == 2
    assert breaker.failures_at(2 * FAILURE_MEMORY) == 0
    breaker.record_success(1)
    assert breaker.failures_at(1) == 0
