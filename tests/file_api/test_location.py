"""Links, and what they lead to."""

import pytest

from skymount.errors import MalformedError, WrongTypeError
from skymount.file_api.location import Location
from tests.fakes.skyfiles import of_files, resolver

LINK = of_files({"f": b"x"}).skylink


@pytest.mark.parametrize(
    "text",
    [
        f"skylink://{LINK}/a b/c%20#?.txt",
        f"SKYLINK://{LINK}//a b/c%20#?.txt/",
        f"{LINK}/a b/c%20#?.txt",
        f"svc://{LINK}/a%20b/c%2520%23%3F.txt?attachment=true#top",
        f"https://portal.example/{LINK}/a%20b/c%2520%23%3F.txt",
        f"https://portal.example/skynet/skylink/{LINK}/a%20b/c%2520%23%3F.txt",
    ],
)
def test_forms_of_a_link(text: str) -> None:
    """P2: a path is taken as it stands, or percent-decoded where the link is a URL."""
    found = Location.parse(text)
    assert found == Location(LINK, ("a b", "c%20#?.txt"))
    assert str(found) == f"skylink://{LINK}/a b/c%20#?.txt"
    assert Location.parse(str(found)) == found


@pytest.mark.parametrize(
    "text",
    [
        *("skyhns://Example/a%20b", "hns://example/a%2520b", "HNS://EXAMPLE/a%2520b?x#y"),
        *("hns:example/a%2520b", "https://portal/hns/example/a%2520b"),
    ],
)
def test_domains(text: str) -> None:
    found = Location.parse(text)
    assert found == Location("example", ("a%20b",))
    assert str(found) == "skyhns://example/a%20b"


def test_other_spellings_of_a_skylink() -> None:
    """A v2 skylink and the base32 form are skylinks too."""
    assert Location.parse(f"skylink://{LINK.base32}/f").path == f"{LINK}/f"
    assert Location.parse(str(resolver())).root == resolver()


@pytest.mark.parametrize(
    "text",
    [
        *("", "/", "x", "skylink://", "skyhns://", "skyhns:///a", "s3://bucket/key", "file:///etc"),
        *(f"skylink://{str(LINK)[1:]}", f"skylink:{LINK}x", f"skyhns://{'a' * 300}"),
        *(f"{LINK}/a\0b", f"{LINK}/{'a/' * 40000}", f"svc://{LINK}/{'a' * 70000}"),
    ],
)
def test_what_is_no_link(text: str) -> None:
    """P2: anything else raises a `ValueError`; its message is short."""
    with pytest.raises(MalformedError) as caught:
        Location.parse(text)
    assert isinstance(caught.value, ValueError)
    assert len(str(caught.value)) < 400


def test_what_is_no_text() -> None:
    with pytest.raises(WrongTypeError, match="not int"):
        Location.parse(7)
