"""The arguments KEY and DATAKEY, which name a registry entry, and this user's keyring."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from skymount.cli import EXIT_NOT_FOUND, completion
from skymount.errors import KeyringError, MalformedError
from skymount.wording import did_you_mean

if TYPE_CHECKING:
    from skymount.keyring import Keyring
    from skymount.portal.ledger.entries import EntryId
    from skymount.portal.ledger.ledger import Ledger
    from skymount.wire.key_pair import SigningKeyPair

F = TypeVar("F", bound=Callable[..., Any])


class NoSuchKeyError(click.ClickException):
    """The keyring has no key of that name."""

    exit_code = EXIT_NOT_FOUND


hashed_option = click.option(
    "--hashed", is_flag=True, help="DATAKEY is hashed already: 64 hex digits."
)


@dataclass(frozen=True, slots=True)
class EntryArgument:
    """KEY, DATAKEY and ``--hashed`` as the user gave them."""

    owner: str
    data_key: str
    hashed: bool

    @property
    def public_key(self) -> bytes:
        return _parsed(self.owner) or keyring_with(self.owner).get(self.owner).public_key

    def key_pair(self) -> "SigningKeyPair":
        return key_pair(self.owner)

    @property
    def tweak(self) -> bytes:
        from skymount.wire.registry_entry import hash_data_key, parse_tweak

        return parse_tweak(self.data_key) if self.hashed else hash_data_key(self.data_key)

    @property
    def id(self) -> "EntryId":
        from skymount.portal.ledger.entries import EntryId

        return EntryId(self.public_key, self.tweak, None if self.hashed else self.data_key)


def entry_arguments(command: F) -> F:
    """Add KEY, DATAKEY and ``--hashed``, as the parameter `entry`."""

    @wraps(command)
    def with_entry(owner: str, data_key: str, hashed: bool, **parameters: Any) -> Any:
        return command(entry=EntryArgument(owner, data_key, hashed), **parameters)

    with_data_key = click.argument("data_key", metavar="DATAKEY")(hashed_option(with_entry))
    return cast(
        "F",
        click.argument("owner", metavar="KEY", shell_complete=completion.key_names)(with_data_key),
    )


def key_pair(text: str) -> "SigningKeyPair":
    """Return the key of that name or public key."""
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
    from skymount.wire.registry_entry import parse_public_key

    try:
        return parse_public_key(text)
    except MalformedError:
        return None


def keyring_with(name: str) -> "Keyring":
    """Return the keyring; NoSuchKeyError if it has no key of that name."""
    from skymount.keyring import check_name

    keyring = user_keyring()
    names = list(keyring.names())
    if check_name(name) not in names:
        others = did_you_mean(name, names) or "; `skymount key list` shows the keys you have"
        made = f"; you have none yet, `skymount key generate {name}` makes it"
        raise NoSuchKeyError(f"there is no key called {name}{others if names else made}")
    return keyring


def user_keyring() -> "Keyring":
    """Return the keyring of this user."""
    from skymount.keyring import Keyring, default_path

    return Keyring(default_path())


@contextmanager
def open_ledger() -> "Iterator[Ledger]":
    """Open the ledger of this user; StorageError when it cannot be used."""
    from skymount.portal.ledger.ledger import Ledger

    with closing(Ledger.of_user()) as ledger:
        ledger.prepare()
        yield ledger
