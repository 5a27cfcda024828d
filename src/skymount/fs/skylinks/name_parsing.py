"""Reads the names that are looked up in `skylinks` and `hns`."""

from skymount.errors import MalformedError
from skymount.portal.registry.name_resolver import ResolvableName
from skymount.wire.hns import parse_domain
from skymount.wire.skylink import parse_skylink


def parse_skylink_name(name: str) -> tuple[str, ResolvableName]:
    """Read a name in ``skylinks``: any form of a skylink, each a name of its own."""
    return name, parse_skylink(name)


def parse_domain_name(name: str) -> tuple[str, ResolvableName]:
    """Read a name in ``hns``: a domain, all spellings of which are the same name."""
    if name != name.strip():
        raise MalformedError(f"not a domain: {name[:80]!a}")
    domain = parse_domain(name)
    return domain, domain
