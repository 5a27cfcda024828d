"""Malformed input as an answer."""

import pytest

from skymount.errors import MalformedError, StorageError
from skymount.server.http_error import HttpError, refuse_malformed


def test_malformed_input_is_refused() -> None:
    """With the given status, and what was being read before the reason."""
    with (
        pytest.raises(HttpError, match="bad link: too short") as refused,
        refuse_malformed(400, "bad link: "),
    ):
        raise MalformedError("too short")
    assert refused.value.status == 400


def test_other_errors_pass() -> None:
    """Of what is not the client's fault nothing is made."""
    with pytest.raises(StorageError), refuse_malformed(400):
        raise StorageError("disk full")
