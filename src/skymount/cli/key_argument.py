"""The arguments KEY and DATAKEY, which name a registry entry, and this user's keyring and ledger.

KEY is the name of a key in the keyring, or a public key of 64 hex digits.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from skymount.cli import EXIT_NOT_FOUND

if TYPE_CHECKING:
    from skymount.keyring import Keyring
    from skymount.portal.client.client import PortalClient
    from skymount.portal.registry.ledger import Ledger
    from skymount.portal.registry.revision_marks import EntryId
    from skymount.wire.key_pair import SigningKeyPair

F = TypeVar("F", bound=Callable[..., Any])


class NoSuchKeyError(click.ClickException):
    """The keyring has no key of that name."""

    exit_code = EXIT_NOT_FOUND


def hashed_option(command: F) -> F:
    """Add ``--hashed``: the data key is hashed already."""
    return click.option("--hashed", is_flag=True, help="DATAKEY is hashed already: 64 hex digits.")(
        command
    )


def entry_arguments(command: F) -> F:
    """Add KEY, DATAKEY and ``--hashed``, as the parameters `owner`, `data_key` and `hashed`."""
    with_data_key = click.argument("data_key", metavar="DATAKEY")(hashed_option(command))
    return click.argument("owner", metavar="KEY")(with_data_key)


def tweak(data_key: str, *, hashed: bool) -> bytes:
    """Return the 32 bytes that a data key stands for on the wire."""
    from skymount.wire.registry_entry import hash_data_key, parse_tweak

    return parse_tweak(data_key) if hashed else hash_data_key(data_key)


def entry_id(public_key: bytes, data_key: str, *, hashed: bool) -> "EntryId":
    """Return the id of an entry."""
    from skymount.portal.registry.revision_marks import EntryId

    return EntryId(public_key, tweak(data_key, hashed=hashed), None if hashed else data_key)


def public_key(text: str) -> bytes:
    """Return the public key that a name or a public key in hex digits stands for."""
    return _parsed(text) or keyring_with(text).get(text).public_key


def key_pair(text: str) -> "SigningKeyPair":
    """Return the key of that name or public key; NoSuchKeyError or KeyringError without one."""
    from skymount.errors import KeyringError

    public = _parsed(text)
    if public is None:
        return keyring_with(text).get(text)
    found = user_keyring().by_public_key(public)
    if found is None:
        raise KeyringError(
            f"the keyring lacks the private key of {public.hex()}, which has to sign"
        )
    return found


def _parsed(text: str) -> bytes | None:
    from skymount.errors import MalformedError
    from skymount.wire.registry_entry import parse_public_key

    try:
        return parse_public_key(text)
    except MalformedError:
        return None


def keyring_with(name: str) -> "Keyring":
    """Return the keyring; NoSuchKeyError if it has no key of that name."""
    from skymount.keyring import check_name

    keyring = user_keyring()
    if check_name(name) not in keyring.names():
        raise NoSuchKeyError(
            f"there is no key called {name}; `skymount key list` shows those there"
        )
    return keyring


def user_keyring() -> "Keyring":
    """Return the keyring of this user."""
    from skymount.keyring import Keyring, default_path

    return Keyring(default_path())


@contextmanager
def open_ledger() -> "Iterator[Ledger]":
    """Open the ledger of this user; StorageError when it cannot be used."""
    from skymount.portal.registry.ledger import Ledger

    with closing(Ledger.of_user()) as ledger:
        ledger.prepare()
        yield ledger


@asynccontextmanager
async def explaining_conflicts(
    client: "PortalClient", public_hex: str, data_key: str, *, hashed: bool, revision: int
) -> AsyncIterator[None]:
    """Say which revision the registry has when it refuses the one that the user chose."""
    from skymount.errors import PortalError, RevisionConflictError

    try:
        yield
    except RevisionConflictError as error:
        try:
            found = await client.registry.get_entry(
                public_hex, data_key, hashed_data_key_hex=hashed
            )
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
