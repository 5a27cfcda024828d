"""What is demanded of reads and writes: the words of the configuration, and what they mean."""

import pytest

from skymount.policies import WritePolicy


@pytest.mark.parametrize(
    ("policy", "needed"),
    [("any", [1, 1, 1, 1]), ("majority", [1, 2, 2, 3]), ("all", [1, 2, 3, 4])],
)
def test_needed(policy: str, needed: list[int]):
    """G19: of one to four portals that take writes."""
    assert [WritePolicy(policy).needed(count) for count in range(1, 5)] == needed
