"""JSON from outside is read with a limit, and fails in one way."""

import pytest

from skymount.errors import MalformedError
from skymount.wire.limited_json import decode_json


def test_limit_counts_every_byte():
    """A body at the limit is read, one byte more is refused."""
    assert decode_json(b"[1, 2]", list[int], "numbers", 6) == [1, 2]
    with pytest.raises(MalformedError, match=r"^numbers is too long$"):
        decode_json(b"[1, 2]", list[int], "numbers", 5)


@pytest.mark.parametrize("body", [b"", b"{}", b'["a"]', b"[1", b"[" * 10_000, b'["\xff"]'])
def test_other_forms_are_malformed(body: bytes):
    """Whatever is not of the form is one error that names the subject."""
    with pytest.raises(MalformedError, match=r"^numbers is not as expected"):
        decode_json(body, list[int], "numbers", 1 << 20)
