"""The names of the policies of verification."""

import pytest

from skymount.errors import MalformedError
from skymount.portal.verify_policy import VerifyPolicy


def test_names():
    """Each policy is known by its name, in lower case."""
    for policy in VerifyPolicy:
        assert VerifyPolicy.parse(policy.value) is policy


@pytest.mark.parametrize("text", ["", "Require", " off", "yes"])
def test_no_name(text: str):
    """The error lists the names."""
    expected = f"verify must be one of require, available, off, not {text!r}"
    with pytest.raises(MalformedError, match=f"^{expected}$"):
        VerifyPolicy.parse(text)
