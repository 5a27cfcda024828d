"""Calls that need no portal: key pairs from seeds, and parsing of links."""

import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from skymount import keyring, values
from skymount.errors import MalformedError
from skymount.wire import key_pair
from skymount.wire.skylink import BASE32_LENGTH, Skylink, split_link

_ORIGIN = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:)?//")


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A key pair in hex digits."""

    public_key: str
    """64 hex digits."""
    private_key: str = field(repr=False)
    """128 hex digits."""


@dataclass(frozen=True, slots=True)
class KeyPairAndSeed(KeyPair):
    """A key pair and its seed."""

    seed: str = field(repr=False)
    """128 hex digits."""


def gen_key_pair_and_seed() -> KeyPairAndSeed:
    """Make a new key pair from a random seed."""
    pair, seed = keyring.gen_key_pair_and_seed()
    return KeyPairAndSeed(pair.public_hex, pair.private_hex, seed)


def gen_key_pair_from_seed(seed: str) -> KeyPair:
    """Derive the key pair of a seed or pass-phrase of any length.

    A short pass-phrase does not protect, as the derivation is cheap (docs/wire.md 10).
    """
    pair = key_pair.SigningKeyPair.from_seed(values.text(seed, "seed"))
    return KeyPair(pair.public_hex, pair.private_hex)


def derive_child_seed(master_seed: str, seed: str) -> str:
    """Combine a master seed with a sub-seed, such as an application's name; 64 hex digits."""
    return key_pair.derive_child_seed(
        values.text(master_seed, "master_seed"), values.text(seed, "seed")
    )


def parse_skylink(
    text: str,
    *,
    from_subdomain: bool = False,
    include_path: bool = False,
    only_path: bool = False,
) -> str | None:
    """Return the skylink of a link in any form, None when there is none.

    With `from_subdomain` only a URL whose host begins with the 55-character form counts. With
    `include_path` the path follows; with `only_path` the result is the path, empty or from ``/``.
    """
    link = values.text(text, "text")
    if values.flag(include_path, "include_path") & values.flag(only_path, "only_path"):
        raise MalformedError("include_path and only_path exclude each other")
    try:
        if values.flag(from_subdomain, "from_subdomain"):
            skylink, path = _from_subdomain(link)
        else:
            skylink, path = split_link(link)
    except MalformedError:
        return None
    if only_path:
        return path
    return f"{skylink}{path}" if include_path else str(skylink)


def _from_subdomain(link: str) -> tuple[Skylink, str]:
    try:
        parts = urlsplit(link if _ORIGIN.match(link) else f"//{link}")
        label = (parts.hostname or "").partition(".")[0]
    except ValueError:
        raise MalformedError("not a URL") from None
    if len(label) != BASE32_LENGTH:
        raise MalformedError("its host does not begin with a skylink")
    return Skylink(label), parts.path.removesuffix("/")
