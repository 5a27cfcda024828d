"""Owns every spelled name of the protocol: path prefix, headers, URI scheme, agent token.

The contract writes ``svc`` where a deployed portal writes its own word. Nothing else in skymount
spells one of these names.
"""

from dataclasses import dataclass

from skymount.errors import MalformedError


@dataclass(frozen=True, slots=True)
class Dialect:
    """The names that one family of portals uses. Header names compare case-insensitively."""

    name: str
    prefix: str
    """First segment of the service's own paths: ``/<prefix>/skyfile``."""
    scheme: str
    """URI scheme of content links: ``<scheme>://<skylink>``."""
    entry_scheme: str
    """URI scheme of a TXT record that names a registry entry (wire notes 8)."""
    agent: str
    """What a portal may demand to find in the User-Agent header."""
    metadata_header: str
    """Carries the metadata JSON of a download."""
    header_prefix: str
    """Starts the other headers of the service, as in ``<header_prefix>-Skylink``."""

    @property
    def skylink_header(self) -> str:
        """Names the v1 skylink of what was served or stored."""
        return f"{self.header_prefix}-Skylink"

    @property
    def requested_skylink_header(self) -> str:
        """Repeats the v2 skylink that was asked for."""
        return f"{self.header_prefix}-Requested-Skylink"

    @property
    def proof_header(self) -> str:
        """Carries the registry entries that lead from the v2 skylink to the v1 one."""
        return f"{self.header_prefix}-Proof"

    @property
    def portal_api_header(self) -> str:
        """On every answer of a portal: the address at which it was reached."""
        return f"{self.header_prefix}-Portal-Api"

    @property
    def server_api_header(self) -> str:
        """On every answer of a portal: the address of the server of it that answered."""
        return f"{self.header_prefix}-Server-Api"

    @property
    def answer_headers(self) -> tuple[str, ...]:
        """All headers of this dialect that an answer may have."""
        return (
            self.skylink_header,
            self.requested_skylink_header,
            self.proof_header,
            self.metadata_header,
            self.layout_header,
            self.portal_api_header,
            self.server_api_header,
        )

    @property
    def layout_header(self) -> str:
        """Carries the base sector's layout as 198 hex digits, on request."""
        return f"{self.header_prefix}-File-Layout"

    @property
    def disable_force_header(self) -> str:
        """Asks the portal to refuse the ``force`` parameter of an upload."""
        return f"{self.header_prefix}-Disable-Force"

    def path(self, *segments: str) -> str:
        """Return the absolute path of a service endpoint; segments are taken as they are."""
        return "/" + "/".join((self.prefix, *segments))

    def link(self, skylink: object) -> str:
        """Return the content link ``<scheme>://<skylink>``."""
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

REALM = "SiaAPI"
"""What a portal asks a password for; the same in every dialect, as there is one password."""

PRESETS: dict[str, Dialect] = {dialect.name: dialect for dialect in (SVC, SKYNET)}


def dialect_named(name: str) -> Dialect:
    """Return the preset of that name; MalformedError lists the known ones."""
    try:
        return PRESETS[name]
    except KeyError:
        known = ", ".join(sorted(PRESETS))
        raise MalformedError(f"unknown dialect {name!r}, known ones: {known}") from None
