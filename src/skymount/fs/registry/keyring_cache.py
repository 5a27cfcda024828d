"""The keyring as the mount sees it, read again when it may have changed."""

import logging
from collections.abc import Iterable, Sequence

import trio

from skymount.errors import KeyringError
from skymount.keyring import DamagedKey, Keyring, StoredKey
from skymount.wire.key_pair import SigningKeyPair

log = logging.getLogger(__name__)

_MAX_AGE = 1.0  # seconds


class KeyringCache:
    """The keys of a keyring by name and by public key, as of the last `refresh`."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring
        self._by_name: dict[bytes, SigningKeyPair] = {}
        self._by_public_key: dict[bytes, SigningKeyPair] = {}
        self._read_at = -1e9
        self._reading = trio.Lock()
        self._troubles: set[str] = set()

    async def refresh(self) -> None:
        if trio.current_time() < self._read_at + _MAX_AGE:
            return
        async with self._reading:
            if trio.current_time() < self._read_at + _MAX_AGE:
                return
            found = await trio.to_thread.run_sync(self._read)
            self._by_name = {name.encode(): pair for name, pair in found.items()}
            self._by_public_key = {pair.public_key: pair for pair in found.values()}
            self._read_at = trio.current_time()

    def _read(self) -> dict[str, SigningKeyPair]:
        """Read all keys. What cannot be read is logged once, and what needs it is refused."""
        stored: Sequence[StoredKey | DamagedKey] = ()
        troubles = set()
        try:
            stored = self._keyring.read_all()
        except KeyringError as error:
            troubles.add(str(error))
        troubles |= {key.reason for key in stored if isinstance(key, DamagedKey)}
        for trouble in sorted(troubles - self._troubles):
            log.warning("%s", trouble)
        self._troubles = troubles
        return {key.name: key.pair for key in stored if isinstance(key, StoredKey)}

    def pair(self, public_key: bytes) -> SigningKeyPair | None:
        return self._by_public_key.get(public_key)

    async def latest(self, public_key: bytes) -> SigningKeyPair | None:
        await self.refresh()
        return self.pair(public_key)

    def named(self, name: bytes) -> bytes | None:
        pair = self._by_name.get(name)
        return None if pair is None else pair.public_key

    def names(self) -> Iterable[bytes]:
        return self._by_name

    def public_keys(self) -> Iterable[bytes]:
        return self._by_public_key
