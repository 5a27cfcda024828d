"""Where a file is: a skylink or a domain, and the path of a file in its tree. No IO."""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from skymount.errors import MalformedError, WrongTypeError
from skymount.wire.hns import SKYHNS_SCHEME, parse_domain, split_domain_link
from skymount.wire.skylink import SKYLINK_SCHEME, Skylink, split_link

SKYLINK = SKYLINK_SCHEME
SKYHNS = SKYHNS_SCHEME
"""The protocols: what stands before ``://``."""

_LIMIT = 64 << 10  # characters of a link
_SHOWN = 80  # characters of a refused link that a message repeats


@dataclass(frozen=True, slots=True)
class Location:
    """A skylink, or a domain in canonical form, and the names on the path below it."""

    root: Skylink | str
    names: tuple[str, ...] = ()

    @classmethod
    def parse(cls, link: object) -> "Location":
        """Parse a link; WrongTypeError for no text, MalformedError for no link.

        A path after ``skylink://`` or ``skyhns://``, or after a bare skylink, is taken as it
        stands. All other links are URLs: percent-decoded, without query and fragment.
        """
        if not isinstance(link, str):
            raise WrongTypeError(f"a link must be a text (str), not {type(link).__name__}")
        if ":" not in link.partition("/")[0]:
            return cls.parse_plain(link, SKYLINK)
        if len(link) > _LIMIT:
            raise MalformedError("a link of that length is no link")
        if (named := split_domain_link(link)) is not None:
            return cls(named[0], _names(unquote(named[1])))
        skylink, path = split_link(link)
        return cls(skylink, _names(unquote(path)))

    @classmethod
    def parse_plain(cls, path: str, protocol: str) -> "Location":
        """Parse what follows the protocol, in which nothing is encoded."""
        if len(path) > _LIMIT:
            raise MalformedError("a link of that length is no link")
        root, _, rest = path.partition("/")
        if not root:
            raise MalformedError(f"{protocol}://: it names no {_KINDS[protocol]}")
        found = Skylink(root) if protocol == SKYLINK else parse_domain(root)
        return cls(found, _names(rest))

    @property
    def protocol(self) -> str:
        return SKYLINK if isinstance(self.root, Skylink) else SKYHNS

    @property
    def path(self) -> str:
        """Root and names, as file systems of fsspec write it."""
        return "/".join((str(self.root), *self.names))

    def __str__(self) -> str:
        return f"{self.protocol}://{self.path}"

    def joined(self, names: Sequence[str]) -> "Location":
        return Location(self.root, (*self.names, *names))


_KINDS = {SKYLINK: "skylink", SKYHNS: "domain"}


def _names(path: str) -> tuple[str, ...]:
    if "\0" in path:
        raise MalformedError(f"a null character is in the path {path[:_SHOWN]!r}")
    return tuple(name for name in path.split("/") if name)
