"""What is demanded of reads and writes: the words of the configuration, and what they mean."""

import pytest

from skymount.errors import MalformedError
from skymount.portal.policies import VerifyPolicy, WritePolicy


def test_names():
    """Each policy is known by its name, in lower case."""
    for policy in VerifyPolicy:
        assert VerifyPolicy.parse(policy.value, "verify") is policy
    for number in WritePolicy:
        assert WritePolicy.parse(number.value, "registry_writes") is number


@pytest.mark.parametrize("text", ["", "Require", " off", "yes"])
def test_no_name(text: str):
    """The error names the setting and its values."""
    expected = f"verify must be one of require, available, off, not {text!r}"
    with pytest.raises(MalformedError, match=f"^{expected}$"):
        VerifyPolicy.parse(text, "verify")


@pytest.mark.parametrize(
    ("policy", "needed"),
    [("any", [1, 1, 1, 1]), ("majority", [1, 2, 2, 3]), ("all", [1, 2, 3, 4])],
)
def test_needed(policy: str, needed: list[int]):
    """G19: of one to four portals that take writes."""
    assert [WritePolicy(policy).needed(count) for count in range(1, 5)] == needed
