"""Owns ``/hns``: the trees that domains lead to, read-only. Which tree that is at any time is
decided in `slots`, how a domain is resolved in `portal.registry.name_resolver`.
"""

from skymount.errors import MalformedError
from skymount.fs.skylinks.directory import SkylinksDirectory
from skymount.fs.static_tree import HNS
from skymount.portal.registry.name_resolver import ResolvableName
from skymount.wire.hns import parse_domain

SPACE = 1
"""Of its inode numbers: see `points.space_of`."""


class HnsDirectory(SkylinksDirectory):
    """The directory ``hns``, and the trees of the domains in it."""

    directory = HNS


def parse_name(name: str) -> tuple[str, ResolvableName]:
    """Read a name in ``/hns``: a domain, all spellings of which are the same name."""
    if name != name.strip():
        raise MalformedError(f"not a domain: {name[:80]!a}")
    domain = parse_domain(name)
    return domain, domain
