"""How long lookups in one directory may wait, all together."""

import pytest
import trio

from skymount.fs.skylinks.lookup_budget import LookupBudget


async def _lookup(budget: LookupBudget, wanted: float) -> float:
    """Wait as long as wanted and allowed; return how long that was."""
    begun = trio.current_time()
    with budget.waiting() as limit:
        await trio.sleep(min(wanted, limit))
    return trio.current_time() - begun


async def test_all_together(autojump_clock: object):
    """L1: all lookups in `skylinks` together wait at most that long in each second."""
    budget = LookupBudget(0.5)
    waited = [await _lookup(budget, 0.2) for _ in range(5)]
    assert waited == pytest.approx([0.2, 0.2, 0.1, 0, 0])
    await trio.sleep(0.8)  # the first one ended a second and more ago, the others did not
    assert await _lookup(budget, 1) == pytest.approx(0.2)
    await trio.sleep(1)
    assert await _lookup(budget, 1) == pytest.approx(0.5)


async def test_never_more_in_any_second(autojump_clock: object):
    """L1: in each second."""
    budget = LookupBudget(0.5)
    ended = []
    while trio.current_time() < 10:
        if waited := await _lookup(budget, 0.07):
            ended.append((trio.current_time(), waited))
        await trio.sleep(0.01)
    for until, _ in ended:
        within = (waited for at, waited in ended if until - 1 < at <= until)
        assert sum(within) <= 0.5 + 1e-6


async def test_cancelled_lookup_counts(autojump_clock: object):
    """A lookup that is given up has waited as well."""
    budget = LookupBudget(0.5)
    with trio.move_on_after(0.4), budget.waiting():
        await trio.sleep(1)
    assert await _lookup(budget, 1) == pytest.approx(0.1)
