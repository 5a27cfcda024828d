"""Registry entries for tests: signed, posted and read over HTTP."""

import httpx

from skymount.wire.key_pair import SigningKeyPair
from skymount.wire.registry_entry import Entry, SignedEntry, entry_link, hash_data_key
from skymount.wire.skylink import Skylink

OWNER = SigningKeyPair.from_seed("the owner of entries in tests")


def signed(key: str, data: bytes = b"data", revision: int = 0, kind: int = 1) -> SignedEntry:
    """Return an entry of the owner for a data key in its text form."""
    return Entry(hash_data_key(key), data, revision, kind).sign(OWNER.private_key)


def link_of(key: str) -> Skylink:
    """Return the v2 skylink of the owner's data key."""
    return entry_link(OWNER.public_key, hash_data_key(key))


def post(client: httpx.Client, entry: SignedEntry) -> httpx.Response:
    """Post an entry in the contract's form."""
    return client.post("/svc/registry", content=entry.encode_update())


def put(client: httpx.Client, entry: SignedEntry) -> None:
    """Post an entry that must be taken."""
    answer = post(client, entry)
    assert answer.status_code == 204, answer.text


def question(key: str, **more: str) -> dict[str, str]:
    """Return the parameters that ask for the owner's entry."""
    return {
        "publickey": f"ed25519:{OWNER.public_key.hex()}",
        "datakey": hash_data_key(key).hex(),
        **more,
    }


def get(client: httpx.Client, key: str) -> SignedEntry | None:
    """Read an entry, None for 404; its signature is checked."""
    answer = client.get("/svc/registry", params=question(key))
    if answer.status_code == 404:
        return None
    assert answer.status_code == 200, answer.text
    tweak = hash_data_key(key)
    return SignedEntry.parse_answer(answer.content, OWNER.public_key, tweak).verify()
