"""What is in the archive of a portal. No IO.

portal.json                       the version; the first member
skyfiles/<skylink>/<part>         as on disk: base, then extension, roots and payload
entries/<number>.jsonl            registry entries, one in a line
pins.jsonl, hns.zone              as far as there are any
skykeys.json                      only if asked for: whoever has it can decrypt
"""

import msgspec

from skymount.wire.registry_entry import Entry, SignedEntry

HEAD, PINS, ZONE, SKYKEYS = "portal.json", "pins.jsonl", "hns.zone", "skykeys.json"
ENTRIES, SKYFILES = "entries/", "skyfiles/"
VERSION = 1


class Head(msgspec.Struct):
    """The first member."""

    portal_archive: int


class EntryLine(msgspec.Struct):
    """A registry entry: what its owner signed, and the signature."""

    public_key: bytes
    tweak: bytes
    data: bytes
    revision: int
    kind: int
    signature: bytes

    @classmethod
    def of(cls, signed: SignedEntry) -> "EntryLine":
        """Return the line of an entry."""
        entry = signed.entry
        return cls(
            signed.public_key, entry.tweak, entry.data, entry.revision, entry.kind, signed.signature
        )

    def parse(self) -> SignedEntry:
        """Return the entry, not verified; MalformedError."""
        entry = Entry(self.tweak, self.data, self.revision, self.kind)
        return SignedEntry(self.public_key, entry, self.signature)


class PinLine(msgspec.Struct):
    """A pin."""

    skylink: str
    reason: str
    pinned: float


class SkykeyList(msgspec.Struct):
    """The skykeys, in their text form."""

    skykeys: list[str]
