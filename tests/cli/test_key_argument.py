"""KEY and DATAKEY: which entry they name, and which key signs."""

from skymount.wire.registry_entry import hash_data_key
from tests.cli.helpers import STRANGER
from tests.skymount_process import Sandbox


def test_a_data_key_that_is_hashed_already(box: Sandbox, owner: str) -> None:
    hashed = hash_data_key("key").hex()
    box.succeed("registry", "set", "--hashed", "home", hashed, "x")
    assert box.succeed("registry", "get", "home", "key") == "x\n"
    assert box.succeed("registry", "link", "--hashed", "home", hashed) == box.succeed(
        "registry", "link", "home", "key"
    )
    box.fail("registry", "get", "--hashed", "home", "key", code=2)


def test_a_key_is_found_by_its_public_key(box: Sandbox, owner: str) -> None:
    assert box.succeed("registry", "set", owner, "key", "x") == "revision 0\n"
    assert box.succeed("registry", "get", "home", "key") == "x\n"


def test_a_name_that_the_keyring_lacks(box: Sandbox, owner: str) -> None:
    for command in (["get", "absent", "key"], ["set", "absent", "key", "x"]):
        said = box.fail("registry", *command, code=3)
        assert said == "there is no key called absent; `skymount key list` shows the keys you have"
    said = box.fail("registry", "set", "hom", "key", "x", code=3)
    assert said == "there is no key called hom; did you mean home?"


def test_a_keyring_without_keys(sandbox: Sandbox) -> None:
    said = sandbox.fail("key", "show", "home", code=3)
    advice = "you have none yet, `skymount key generate home` makes it"
    assert said == f"there is no key called home; {advice}"


def test_a_public_key_cannot_sign(box: Sandbox, owner: str) -> None:
    said = box.fail("registry", "set", STRANGER.public_hex, "key", "x")
    assert said.startswith(f"the keyring lacks the private key of {STRANGER.public_hex}")
