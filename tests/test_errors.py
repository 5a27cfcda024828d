"""What errors say of themselves, and how they are related."""

import pytest

from skymount import errors
from skymount.errors import MalformedError, NotFoundError, SkymountError, WrongTypeError


def test_each_is_ours():
    """Whoever catches SkymountError catches all of them."""
    found = [each for each in vars(errors).values() if isinstance(each, type)]
    assert len(found) > 20
    assert [each for each in found if not issubclass(each, SkymountError)] == []


def test_arguments_raise_what_python_does():
    """A caller need not know ours to catch a wrong value or type."""
    assert issubclass(MalformedError, ValueError)
    assert issubclass(WrongTypeError, TypeError)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "not here"),
        ({"url": "http://p"}, "not here (http://p)"),
        ({"method": "GET", "url": "http://p"}, "not here (GET http://p)"),
    ],
)
def test_text_of_a_portal_error(given: dict[str, str], text: str):
    """It has the request behind the message, as far as it is known."""
    error = NotFoundError("not here", status=404, **given)
    assert str(error) == text
    assert (error.message, error.status, error.attempts) == ("not here", 404, 1)
