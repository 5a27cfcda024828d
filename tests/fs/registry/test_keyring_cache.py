"""The keyring as the mounted tree sees it."""

import logging
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from skymount.fs.registry.keyring_cache import KeyringCache
from skymount.keyring import DamagedKey, Keyring, StoredKey
from skymount.wire.key_pair import SigningKeyPair

ONE, TWO = SigningKeyPair.from_seed("one"), SigningKeyPair.from_seed("two")


def seen(keys: KeyringCache) -> dict[bytes, bytes]:
    """Return the public keys by name, as the tree gets them."""
    found = {name: keys.named(name) for name in keys.names()}
    assert sorted(filter(None, found.values())) == sorted(keys.public_keys())
    assert all(keys.pair(key) for key in keys.public_keys())
    return {name: key for name, key in found.items() if key}


async def test_new_key_appears_within_a_second(tmp_path: Path, mock_clock: MockClock):
    """G1: and a symbolic link to one for each key of the keyring, a second after it is made."""
    keyring = Keyring(tmp_path / "keys")
    keys = KeyringCache(keyring)
    await keys.refresh()
    assert seen(keys) == {}
    keyring.add("one", ONE)
    await keys.refresh()
    assert seen(keys) == {}
    mock_clock.jump(1.0)
    await keys.refresh()
    assert seen(keys) == {b"one": ONE.public_key}
    keyring.add("two", TWO)
    keyring.remove("one")
    mock_clock.jump(1.0)
    await keys.refresh()
    assert seen(keys) == {b"two": TWO.public_key}
    assert keys.named(b"one") is None
    assert keys.pair(ONE.public_key) is None


class CountingKeyring(Keyring):
    """Counts how often it is read."""

    count = 0

    def read_all(self) -> tuple[StoredKey | DamagedKey, ...]:
        self.count += 1
        return super().read_all()


async def test_read_once_for_all_who_ask(tmp_path: Path):
    """However many ask at once, the keyring is read once."""
    keyring = CountingKeyring(tmp_path / "keys")
    keyring.add("one", ONE)
    keys = KeyringCache(keyring)
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(keys.refresh)
    assert (keyring.count, seen(keys)) == (1, {b"one": ONE.public_key})


async def test_damaged_key(tmp_path: Path, mock_clock: MockClock, caplog: pytest.LogCaptureFixture):
    """G1: A file that is no key hides no other, and the log names it once."""
    keyring = Keyring(tmp_path / "keys")
    keyring.add("one", ONE)
    keyring.add("two", TWO)
    [damaged] = (tmp_path / "keys").glob("one*")
    damaged.write_text("nonsense")
    keys = KeyringCache(keyring)
    await keys.refresh()
    assert seen(keys) == {b"two": TWO.public_key}
    mock_clock.jump(1.0)
    await keys.refresh()
    [message] = caplog.messages
    assert str(damaged) in message


async def test_keyring_that_cannot_be_read(
    tmp_path: Path, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
):
    """Then there are no keys, the log says why, and once it can be read they are there."""
    path = tmp_path / "keys"
    path.write_text("a file, where a directory should be")
    keys = KeyringCache(Keyring(path))
    with caplog.at_level(logging.WARNING):
        await keys.refresh()
    assert seen(keys) == {}
    assert str(path) in caplog.text
    path.unlink()
    Keyring(path).add("one", ONE)
    mock_clock.jump(1.0)
    await keys.refresh()
    assert seen(keys) == {b"one": ONE.public_key}
