"""The calls that need no portal: key pairs from seeds, and links taken apart."""

import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skymount.errors import MalformedError, WrongTypeError
from skymount.portal import (
    derive_child_seed,
    gen_key_pair_and_seed,
    gen_key_pair_from_seed,
    parse_skylink,
)
from tests.wire.vectors import cases

LINK = "XABvi7JtJbQSMAcDwnUnmp2FKDPjg8_tTTFP4BwMSxVdEg"
LABEL = "bg06v2tidkir84hg0s1s4t97jaeoaa1jse1svrad657u070c9calq4g"


@pytest.mark.parametrize("case", cases("seed_to_keys"))
def test_known_key_pairs(case: SimpleNamespace):
    """A seed gives the reference SDKs' key pair, whatever its length and letters."""
    pair = gen_key_pair_from_seed(case.seed)
    assert (pair.public_key, pair.private_key) == (case.publicKey, case.privateKey)


@pytest.mark.parametrize("case", cases("child_seed"))
def test_known_child_seeds(case: SimpleNamespace):
    """A child seed is the reference SDKs'."""
    assert derive_child_seed(case.masterSeed, case.seed) == case.child


def test_new_key_pairs():
    """A new pair is in hex digits, comes again from its seed, and never comes by chance."""
    made, other = gen_key_pair_and_seed(), gen_key_pair_and_seed()
    assert re.fullmatch("[0-9a-f]{64}", made.public_key)
    assert re.fullmatch("[0-9a-f]{128}", made.private_key)
    assert re.fullmatch("[0-9a-f]{128}", made.seed)
    again = gen_key_pair_from_seed(made.seed)
    assert (again.public_key, again.private_key) == (made.public_key, made.private_key)
    assert made.seed != other.seed


def test_secrets_are_not_shown():
    """C6: The repr of a pair shows its public key alone."""
    made = gen_key_pair_and_seed()
    for shown in (repr(made), repr(gen_key_pair_from_seed(made.seed))):
        assert made.public_key in shown
        assert made.private_key[:64] not in shown
        assert made.seed not in shown


@pytest.mark.parametrize("value", [None, 5, b"seed", ["seed"]])
def test_seeds_of_another_type(value: object):
    """C3: A seed is a text, and nothing else is taken for one."""
    with pytest.raises(WrongTypeError):
        gen_key_pair_from_seed(value)  # type: ignore[arg-type]
    with pytest.raises(WrongTypeError):
        derive_child_seed(value, "sub")  # type: ignore[arg-type]
    with pytest.raises(WrongTypeError):
        derive_child_seed("master", value)  # type: ignore[arg-type]


def test_seeds_that_are_no_text():
    """C3: Half a surrogate pair is a MalformedError that does not repeat the seed."""
    for make in (
        lambda: gen_key_pair_from_seed("secret\ud800"),
        lambda: derive_child_seed("secret\ud800", ""),
        lambda: derive_child_seed("", "secret\ud800"),
    ):
        with pytest.raises(MalformedError) as caught:
            make()
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        LINK,
        f"svc:{LINK}",
        f"svc://{LINK}",
        f"sia:{LINK}",
        f"sia://{LINK}",
        f"https://portal.example/{LINK}",
        f"https://portal.example/{LINK}/",
        f"https://portal.example/{LINK}/foo/bar?foo=bar&bar=baz",
        f"https://portal.example/{LINK}?download=true#hash",
        f"{LINK}/foo/bar",
        f"/{LINK}",
    ],
)
def test_links(text: str):
    """The bare skylink is found in every form of the contract and of the reference SDKs."""
    assert parse_skylink(text) == LINK


@pytest.mark.parametrize(
    "text",
    ["", "x", f"{LINK}xxx", f"{LINK}foo/bar", LINK[:-1], "https://portal.example/", "é" * 46],
)
def test_no_links(text: str):
    """Where there is none, the result is None."""
    assert parse_skylink(text) is None


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (LINK, ""),
        (f"{LINK}/", ""),
        (f"svc://{LINK}/foo/bar", "/foo/bar"),
        (f"https://portal.example/{LINK}/foo%3Fbar?foo=bar", "/foo%3Fbar"),
    ],
)
def test_paths(text: str, path: str):
    """The path comes with the skylink or alone, as it was written."""
    assert parse_skylink(text, include_path=True) == f"{LINK}{path}"
    assert parse_skylink(text, only_path=True) == path


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (f"https://{LABEL}.portal.example", ""),
        (f"https://{LABEL}.portal.example/", ""),
        (f"https://{LABEL.upper()}.portal.example:8080/a/b?x=y", "/a/b"),
        (f"{LABEL}.portal.example/a//b", "/a//b"),
        (f"{LABEL}.portal.example/a?u=https://elsewhere.example/", "/a"),
        (f"//{LABEL}.portal.example/a", "/a"),
        (LABEL, ""),
    ],
)
def test_subdomains(text: str, path: str):
    """From a subdomain the skylink comes in its base64 form."""
    assert parse_skylink(text, from_subdomain=True) == LINK
    assert parse_skylink(text, from_subdomain=True, include_path=True) == f"{LINK}{path}"
    assert parse_skylink(text, from_subdomain=True, only_path=True) == path


@pytest.mark.parametrize(
    "text",
    [
        f"https://portal.example/{LINK}",
        f"https://x{LABEL}.portal.example",
        f"https://{LABEL[1:]}.portal.example",
        f"https://{'v' * 55}.portal.example",
        "http://[::1",
        "",
    ],
)
def test_no_subdomains(text: str):
    """With from_subdomain, a link in the path does not count."""
    assert parse_skylink(text, from_subdomain=True) is None


def test_wrong_arguments():
    """C3: Types are checked, and the two ways to ask for a path exclude each other."""
    for call in (
        lambda: parse_skylink(5),  # type: ignore[arg-type]
        lambda: parse_skylink(LINK, include_path=1),  # type: ignore[arg-type]
        lambda: parse_skylink(LINK, only_path="yes"),  # type: ignore[arg-type]
        lambda: parse_skylink(LINK, from_subdomain=None),  # type: ignore[arg-type]
    ):
        with pytest.raises(WrongTypeError):
            call()
    with pytest.raises(MalformedError):
        parse_skylink(LINK, include_path=True, only_path=True)


@given(st.text(max_size=200), st.booleans())
def test_any_text(text: str, from_subdomain: bool):
    """Any text gives a skylink or None."""
    found = parse_skylink(text, from_subdomain=from_subdomain)
    assert found is None or len(found) == 46
