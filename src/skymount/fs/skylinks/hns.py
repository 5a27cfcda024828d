"""The names in `/hns`. `portal.registry.name_resolver` resolves them."""

from skymount.errors import MalformedError
from skymount.portal.registry.name_resolver import ResolvableName
from skymount.wire.hns import parse_domain


def parse_name(name: str) -> tuple[str, ResolvableName]:
    """Read a name in ``/hns``: a domain, all spellings of which are the same name."""
    if name != name.strip():
        raise MalformedError(f"not a domain: {name[:80]!a}")
    domain = parse_domain(name)
    return domain, domain
