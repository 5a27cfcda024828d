"""Owns how a command names whose registry entry it is about, a key of the keyring or a public key
of 64 hex digits, and what is said when the owner's other programs were faster.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import click

from skymount.cli import EXIT_NOT_FOUND

if TYPE_CHECKING:
    from skymount.keyring import Keyring
    from skymount.portal.client.client import PortalClient
    from skymount.portal.registry.revision_marks import EntryId
    from skymount.wire.key_pair import KeyPair


class NoSuchKeyError(click.ClickException):
    """The keyring has no key of that name."""

    exit_code = EXIT_NOT_FOUND


def public_key(text: str) -> str:
    """Return the public key, 64 hex digits, that a name or a public key stands for."""
    return _parsed(text) or _named(text).public_hex


def key_pair(text: str) -> "KeyPair":
    """Return the key of that name or public key; NoSuchKeyError or KeyringError without one."""
    from skymount.errors import KeyringError

    public = _parsed(text)
    if public is None:
        return _named(text)
    found = _keyring().by_public_key(bytes.fromhex(public))
    if found is None:
        raise KeyringError(f"the keyring lacks the private key of {public}, which has to sign")
    return found


def entry_of(pair: "KeyPair", data_key: str, *, hashed: bool) -> "EntryId":
    """Return what names an entry of that owner's."""
    from skymount.portal.client import arguments
    from skymount.portal.registry.revision_marks import EntryId

    tweak = arguments.tweak(data_key, hashed)
    return EntryId(pair.public_key, tweak, None if hashed else data_key)


def _parsed(text: str) -> str | None:
    from skymount.errors import MalformedError
    from skymount.wire.registry_entry import parse_public_key

    try:
        return parse_public_key(text).hex()
    except MalformedError:
        return None


def _named(name: str) -> "KeyPair":
    return keyring_with(name).get(name)


def keyring_with(name: str) -> "Keyring":
    """Return the keyring, which must have that key; its absence has an exit code of its own."""
    from skymount.keyring import check_name

    keyring = _keyring()
    if check_name(name) not in keyring.names():
        raise NoSuchKeyError(
            f"there is no key called {name}; `skymount key list` shows those there"
        )
    return keyring


def _keyring() -> "Keyring":
    from skymount.keyring import Keyring, default_path

    return Keyring(default_path())


@asynccontextmanager
async def explaining_conflicts(
    client: "PortalClient", public: str, data_key: str, *, hashed: bool, revision: int
) -> AsyncIterator[None]:
    """Say what the registry has when it refuses an entry of the revision that the user wanted."""
    from skymount.errors import PortalError, RevisionConflictError

    try:
        yield
    except RevisionConflictError as error:
        try:
            found = await client.registry.get_entry(public, data_key, hashed_data_key_hex=hashed)
        except PortalError:
            raise error from None
        if found.entry is None:
            raise
        raise RevisionConflictError(
            f"{data_key!r}: the registry has revision {found.entry.revision}, and refuses "
            f"{revision}; without --revision the entry gets the next one",
            status=error.status,
            method=error.method,
            url=error.url,
        ) from None
