"""Homes with a key, and what is at the portal behind the files of ``registry/``."""

from dataclasses import dataclass
from pathlib import Path

import httpx

from skymount.portal.ledger import Ledger, Pending
from skymount.wire.keys import KeyPair
from skymount.wire.registry import Entry, SignedEntry, hash_data_key
from tests.server.registry import put
from tests.skymount_process import Mount, Sandbox

HOME = "home"


@dataclass(frozen=True)
class Owner:
    """A sandbox whose keyring has one key, and the portal that it uses."""

    sandbox: Sandbox
    portal: str
    pair: KeyPair

    @classmethod
    def make(cls, sandbox: Sandbox, portal: str) -> "Owner":
        """Make a key in the sandbox's keyring."""
        made = sandbox.succeed("key", "generate", HOME).strip()
        exported = sandbox.root / "home.key"
        sandbox.succeed("key", "export", HOME, exported)
        pair = KeyPair.from_private(bytes.fromhex(exported.read_text().strip()))
        assert pair.public_hex in made
        return cls(sandbox, portal, pair)

    def signed(self, name: str, data: bytes, revision: int) -> SignedEntry:
        """Sign an entry."""
        return Entry(hash_data_key(name), data, revision).sign(self.pair.private_key)

    def held(self, name: str) -> SignedEntry | None:
        """Return the entry that the portal has."""
        tweak = hash_data_key(name)
        question = {"publickey": f"ed25519:{self.pair.public_hex}", "datakey": tweak.hex()}
        answer = httpx.get(f"{self.portal}/svc/registry", params=question, headers=_AGENT)
        if answer.status_code == 404:
            return None
        assert answer.status_code == 200, answer.text
        return SignedEntry.parse_answer(answer.content, self.pair.public_key, tweak).verify()

    def data(self, name: str) -> bytes | None:
        """Return the content that the portal has; None when the entry is absent or deleted."""
        found = self.held(name)
        return None if found is None or found.entry.is_deleted else found.entry.data

    def revision(self, name: str) -> int:
        """Return the portal's revision; -1 when there never was such an entry."""
        found = self.held(name)
        return -1 if found is None else found.entry.revision

    def put(self, name: str, data: bytes) -> None:
        """Change an entry behind the mount's back."""
        with httpx.Client(base_url=self.portal, headers=_AGENT) as client:
            put(client, self.signed(name, data, self.revision(name) + 1))

    def files(self, mount: Mount) -> Path:
        """Return the directory of the key in a mount."""
        return mount.path / "registry" / HOME

    def pending(self) -> list[Pending]:
        """Return what is in the spool."""
        ledger = Ledger.open(self.sandbox.root / "state/skymount/ledger.sqlite3")
        try:
            return ledger.pending()
        finally:
            ledger.close()


_AGENT = {"User-Agent": "skymount tests"}
