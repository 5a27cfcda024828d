"""How many portals must take a write."""

import pytest

from skymount.errors import MalformedError
from skymount.portal.write_policy import WritePolicy


@pytest.mark.parametrize(
    ("policy", "needed"),
    [("any", [0, 1, 1, 1, 1]), ("majority", [1, 1, 2, 2, 3]), ("all", [0, 1, 2, 3, 4])],
)
def test_needed(policy: str, needed: list[int]):
    """G19: of none to four portals that take writes."""
    found = WritePolicy.parse(policy)
    assert [found.needed(count) for count in range(5)][1:] == needed[1:]


def test_unknown_policy():
    """The error names those that there are."""
    with pytest.raises(MalformedError, match="any, majority, all"):
        WritePolicy.parse("most")
