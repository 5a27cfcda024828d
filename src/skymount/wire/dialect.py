"""The names that differ between families of portals. The contract writes ``svc`` for them."""

from dataclasses import dataclass

from skymount.errors import MalformedError


class _Header:
    """A header whose name begins with the dialect's prefix."""

    def __init__(self, suffix: str) -> None:
        self._suffix = suffix

    def __get__(self, dialect: "Dialect", owner: type) -> str:
        return f"{dialect.header_prefix}-{self._suffix}"


@dataclass(frozen=True, slots=True)
class Dialect:
    """The names that one family of portals uses. Header names compare case-insensitively."""

    name: str
    prefix: str  # first segment of the service's own paths: ``/<prefix>/skyfile``
    scheme: str  # URI scheme of content links: ``<scheme>://<skylink>``
    entry_scheme: str  # URI scheme of a TXT record that names a registry entry (docs/wire.md 8)
    agent: str  # what a portal may demand to find in the User-Agent header
    metadata_header: str  # carries the metadata JSON of a download
    header_prefix: str  # starts the other headers of the service, as in ``<header_prefix>-Skylink``

    skylink_header = _Header("Skylink")  # the v1 skylink of what was served or stored
    requested_skylink_header = _Header("Requested-Skylink")  # the v2 skylink that was asked for
    proof_header = _Header("Proof")  # the registry entries that lead from the v2 to the v1 skylink
    layout_header = _Header("File-Layout")  # the base sector's layout as 198 hex digits, on request
    portal_api_header = _Header("Portal-Api")  # the address at which the portal was reached
    server_api_header = _Header("Server-Api")  # the address of the portal's server that answered
    disable_force_header = _Header("Disable-Force")  # refuse the ``force`` parameter of an upload

    @property
    def answer_headers(self) -> tuple[str, ...]:
        return (
            self.skylink_header,
            self.requested_skylink_header,
            self.proof_header,
            self.metadata_header,
            self.layout_header,
            self.portal_api_header,
            self.server_api_header,
        )

    def path(self, *segments: str) -> str:
        return "/" + "/".join((self.prefix, *segments))

    def link(self, skylink: object) -> str:
        return f"{self.scheme}://{skylink}"


SVC = Dialect(
    name="svc",
    prefix="svc",
    scheme="svc",
    entry_scheme="svcns",
    agent="svc-agent",
    metadata_header="svc-metadata",
    header_prefix="Svc",
)
SKYNET = Dialect(
    name="skynet",
    prefix="skynet",
    scheme="sia",
    entry_scheme="skyns",
    agent="Sia-Agent",
    metadata_header="Skynet-File-Metadata",
    header_prefix="Skynet",
)

REALM = "SiaAPI"  # the realm of a portal's password, in every dialect
PRESETS: dict[str, Dialect] = {dialect.name: dialect for dialect in (SVC, SKYNET)}


def dialect_named(name: str) -> Dialect:
    """Return the preset of that name; MalformedError lists the known ones."""
    try:
        return PRESETS[name]
    except KeyError:
        known = ", ".join(sorted(PRESETS))
        raise MalformedError(f"unknown dialect {name!r}, known ones: {known}") from None
