"""Which names stand for something, and under which spelling they are kept."""

import pytest

from skymount.errors import MalformedError
from skymount.fs.skylinks.name_parsing import parse_domain_name, parse_skylink_name
from skymount.wire.skylink import Skylink

LINK = Skylink.v1(bytes(range(32)), 100)


@pytest.mark.parametrize("name", [str(LINK), LINK.base32, LINK.base32.upper(), f"svc:{LINK}"])
def test_forms_of_a_skylink(name: str):
    """S2: each spelling of a skylink is a name of its own."""
    assert parse_skylink_name(name) == (name, LINK)


@pytest.mark.parametrize("name", ["example", "EXAMPLE", "example."])
def test_spellings_of_a_domain(name: str):
    """H1: case and a trailing dot do not matter."""
    assert parse_domain_name(name) == ("example", "example")


@pytest.mark.parametrize("name", ["", " example", "example ", "a b", "a..b"])
def test_no_domain(name: str):
    """H1: what is no domain is malformed, and so is one with space around it."""
    with pytest.raises(MalformedError):
        parse_domain_name(name)


@pytest.mark.parametrize("name", ["", "x", str(LINK)[1:], "w" * 55])
def test_no_skylink(name: str):
    """S3: any other name is malformed."""
    with pytest.raises(MalformedError):
        parse_skylink_name(name)
