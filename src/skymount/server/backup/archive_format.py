"""What is in the archive of a portal. No IO.

portal.json                       the version; the first member
entries/<number>.jsonl            registry entries, one in a line
hns.zone                          if there is one
skykeys.json                      only if asked for: whoever has it can decrypt
skyfiles/<skylink>/<part>         as on disk: base, then extension, roots and payload
pins/<number>.jsonl               pins, one in a line, after what they pin
end.json                          the last member: without it the archive is cut off
"""

import msgspec

from skymount.wire.registry_entry import Entry, SignedEntry

HEAD, ZONE, SKYKEYS, END = "portal.json", "hns.zone", "skykeys.json", "end.json"
ENTRIES, SKYFILES, PINS = "entries/", "skyfiles/", "pins/"
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
