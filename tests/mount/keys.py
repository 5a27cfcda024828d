"""Homes with a key, what is at the portal behind the files of ``registry/``, and programs that use
them step by step.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from skymount.keyring import Keyring
from skymount.portal.ledger.ledger import Ledger
from skymount.portal.ledger.outbox import Pending
from skymount.wire.key_pair import SigningKeyPair
from skymount.wire.registry_entry import Entry, SignedEntry, hash_data_key
from tests.portal.ledger.entries import unsent
from tests.server.registry_entries import put
from tests.skymount_process import LIMIT, Mount, Sandbox, end

HOME = "home"
TTL = 0.2
"""Seconds for which a stat may be old, in these tests."""

_AGENT = {"User-Agent": "skymount tests"}


def needs(*programs: str) -> pytest.MarkDecorator:
    """Skip a test where programs are not installed; in CI it is run, and fails."""
    missing = [name for name in programs if shutil.which(name) is None]
    skipped = bool(missing) and not os.environ.get("CI")
    return pytest.mark.skipif(skipped, reason=f"not installed: {', '.join(missing)}")


def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so, which is soon."""
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, "it never was so"
        time.sleep(0.02)


@dataclass(frozen=True)
class Owner:
    """A sandbox whose keyring has one key, and the portal that it uses."""

    sandbox: Sandbox
    portal: str
    pair: SigningKeyPair

    @classmethod
    def make(cls, sandbox: Sandbox, portal: str, pair: SigningKeyPair | None = None) -> "Owner":
        """Put a key into the sandbox's keyring, a new one unless it is given."""
        pair = pair or SigningKeyPair.from_seed(f"insecure {uuid4()}")
        Keyring(sandbox.root / "data/skymount/keys").add(HOME, pair)
        return cls(sandbox.with_env(SKYMOUNT_REGISTRY_TTL=str(TTL)), portal, pair)

    @contextmanager
    def mounted(self, *args: str, portal: str = "", at: Path | None = None) -> Iterator[Path]:
        """Mount; yields the key's directory."""
        with self.sandbox.mounted("--portal", portal or self.portal, *args, at=at) as mount:
            yield files(mount)

    def signed(self, name: str, data: bytes, revision: int) -> SignedEntry:
        return Entry(hash_data_key(name), data, revision).sign(self.pair.private_key)

    def held(self, name: str) -> SignedEntry | None:
        return held(self.portal, self.pair, name)

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

    def pending(self) -> list[Pending]:
        with self.ledger() as ledger:
            return unsent(ledger)

    def ledger(self) -> closing[Ledger]:
        return closing(Ledger.open(self.sandbox.root / "state/skymount/ledger.sqlite3"))


def held(portal: str, pair: SigningKeyPair, name: str) -> SignedEntry | None:
    """Return the entry that a portal has, asked directly."""
    tweak = hash_data_key(name)
    question = {"publickey": f"ed25519:{pair.public_hex}", "datakey": tweak.hex()}
    answer = httpx.get(f"{portal}/svc/registry", params=question, headers=_AGENT, timeout=30)
    if answer.status_code == 404:
        return None
    assert answer.status_code == 200, answer.text
    return SignedEntry.parse_answer(answer.content, pair.public_key, tweak).verify()


def files(mount: Mount) -> Path:
    return mount.path / "registry" / HOME


_STEPS = """
import errno, os, sys
for line in sys.stdin:
    try:
        print(repr(eval(line)), flush=True)
    except OSError as error:
        print(errno.errorcode[error.errno], flush=True)
"""


class Program:
    """A program that does one step after the other, as it is told."""

    def __init__(self, directory: Path, prefix: Sequence[str] = ()) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-IS", "-c", _STEPS],
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def begin(self, step: str) -> None:
        """Tell it a Python expression, without waiting for its end."""
        assert self.process.stdin is not None
        self.process.stdin.write(step.encode() + b"\n")
        self.process.stdin.flush()

    def do(self, step: str) -> str:
        """Return the value of an expression as text, or the name of the errno."""
        self.begin(step)
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().rstrip("\n")


@contextmanager
def program(directory: Path, prefix: Sequence[str] = ()) -> Iterator[Program]:
    found = Program(directory, prefix)
    try:
        yield found
    finally:
        end(found.process)
