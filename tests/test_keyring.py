"""The keyring: what is kept on disk, who may read it, and what happens to files that are not as
they should be.
"""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skymount import keyring
from skymount.errors import KeyringError, MalformedError
from skymount.keyring import DamagedKey, Keyring, StoredKey, check_name, gen_key_pair_and_seed
from skymount.wire.key_pair import SigningKeyPair
from tests.portal_process import SOURCE

ONE, TWO = SigningKeyPair.from_seed("one"), SigningKeyPair.from_seed("two")
AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")


@pytest.fixture
def keys(tmp_path: Path) -> Keyring:
    return Keyring(tmp_path / "skymount" / "keys")


def spoil(keys: Keyring, name: str, **changes: object) -> None:
    """Change members of a key file; None takes them out."""
    path = keys.path / name
    found = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in found.items() if value is not None}))


# What is kept


def test_what_was_added_is_found(keys: Keyring) -> None:
    keys.add("two", TWO)
    keys.add("one", ONE)
    assert keys.names() == ("one", "two")
    assert keys.public_keys() == {"one": ONE.public_key, "two": TWO.public_key}
    assert keys.get("one") == ONE
    assert keys.by_public_key(TWO.public_key) == TWO
    assert keys.by_public_key(bytes(32)) is None


def test_the_file_is_as_documented(keys: Keyring) -> None:
    stored = keys.add("one", ONE)
    found = json.loads((keys.path / "one").read_text())
    assert found == {
        "version": 1,
        "public_key": ONE.public_hex,
        "private_key": ONE.private_hex,
        "created": stored.created.isoformat().replace("+00:00", "Z"),
    }
    assert keys.read("one") == stored


@pytest.mark.parametrize("umask", [0, 0o77, 0o277])
def test_modes_do_not_depend_on_the_umask(tmp_path: Path, umask: int) -> None:
    """Directory 0700, files 0600."""
    code = (
        "import os, sys, pathlib; from skymount.keyring import *\n"
        "path = pathlib.Path(sys.argv[1]); path.mkdir(0o700); os.umask(int(sys.argv[2]))\n"
        "Keyring(path).add('one', gen_key_pair_and_seed()[0])"
    )
    subprocess.run(
        [sys.executable, "-c", code, tmp_path / "keys", str(umask)],
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        check=True,
        timeout=60,
    )
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "keys/one").stat().st_mode & 0o777 == 0o600


def test_the_directory_is_made_private(keys: Keyring) -> None:
    old = os.umask(0)
    try:
        keys.add("one", ONE)
    finally:
        os.umask(old)
    assert keys.path.stat().st_mode & 0o777 == 0o700


def test_an_absent_directory_is_an_empty_keyring(keys: Keyring) -> None:
    """And reading does not make it."""
    assert keys.names() == ()
    assert keys.public_keys() == {}
    assert keys.by_public_key(ONE.public_key) is None
    for use in (keys.get, keys.remove):
        with pytest.raises(KeyringError, match="no key called one"):
            use("one")
    assert not keys.path.exists()


def test_a_name_that_is_taken(keys: Keyring) -> None:
    """Refused, unless it is to be replaced."""
    keys.add("one", ONE)
    with pytest.raises(KeyringError, match="already"):
        keys.add("one", TWO)
    assert keys.get("one") == ONE
    keys.add("one", TWO, replace=True)
    assert keys.get("one") == TWO


def test_a_removed_key_is_gone(keys: Keyring) -> None:
    keys.add("one", ONE)
    keys.add("two", TWO)
    keys.remove("one")
    assert keys.names() == ("two",)
    with pytest.raises(KeyringError, match="no key called one"):
        keys.get("one")


def test_what_a_killed_writer_left_is_cleared(keys: Keyring) -> None:
    """And is no key in the meantime."""
    keys.add("one", ONE)
    (keys.path / ".new").write_text("half")
    assert keys.names() == ("one",)
    assert len(keys.read_all()) == 1
    keys.add("two", TWO)
    assert sorted(os.listdir(keys.path)) == [".lock", "one", "two"]


def test_nothing_is_left_of_a_key_that_cannot_be_written(
    keys: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys.add("one", ONE)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(KeyringError, match="No space left on device"):
        keys.add("two", TWO)
    assert sorted(os.listdir(keys.path)) == [".lock", "one"]


def test_of_many_writers_of_one_name_one_wins(keys: Keyring) -> None:
    pairs = [SigningKeyPair.from_seed(str(number)) for number in range(8)]
    won, lost = [], []

    def write(pair: SigningKeyPair) -> None:
        try:
            keys.add("one", pair)
            won.append(pair)
        except KeyringError:
            lost.append(pair)

    threads = [threading.Thread(target=write, args=[pair]) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [keys.get("one")] == won
    assert len(lost) == 7


def test_there_is_a_limit(tmp_path: Path) -> None:
    keys = Keyring(tmp_path / "keys", limit=2)
    keys.add("one", ONE)
    keys.add("two", TWO)
    with pytest.raises(KeyringError, match="more than 2 keys are not kept"):
        keys.add("three", ONE)
    keys.add("two", ONE, replace=True)
    (keys.path / "three").touch()
    with pytest.raises(KeyringError, match="more than 2 files"):
        keys.names()


# Names


@pytest.mark.parametrize("name", ["a", "_", "A.b-c_9", "x" * 64, "ab" * 31, "0" * 63])
def test_names(keys: Keyring, name: str) -> None:
    keys.add(name, ONE)
    assert keys.names() == (name,)


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", ".hidden", "-dash", "a/b", "../a", "two words", "ä", "new\nline"),
        *("end\n", "nul\0", "x" * 65, "ab" * 32, "AB" * 32, "\udcff"),
    ],
)
def test_what_is_no_name(keys: Keyring, name: str) -> None:
    """Each method refuses it, and does not repeat it: it may be a secret at the wrong place."""
    for use in (keys.get, keys.read, keys.remove, lambda name: keys.add(name, ONE)):
        with pytest.raises(MalformedError) as caught:
            use(name)
        assert len(name) < 8 or name not in str(caught.value)
    assert not keys.path.exists()


@given(st.text())
def test_a_name_never_leads_out_of_the_directory(name: str) -> None:
    """Whatever is a name is one path element that is not hidden and begins no option."""
    try:
        check_name(name)
    except MalformedError:
        return
    assert name == os.path.basename(name)
    assert name[0] not in ".-"
    assert name.isascii()


# Who may read it


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o777])
def test_a_file_that_others_may_open_is_refused(keys: Keyring, mode: int) -> None:
    """The message says what to run."""
    keys.add("one", ONE)
    keys.add("two", TWO)
    (keys.path / "one").chmod(mode)
    with pytest.raises(KeyringError, match=f"run: chmod 600 {keys.path}/one"):
        keys.get("one")
    assert keys.public_keys() == {"two": TWO.public_key}
    assert keys.by_public_key(ONE.public_key) is None


@pytest.mark.parametrize("mode", [0o750, 0o705, 0o701])
def test_a_directory_that_others_may_open_is_refused(keys: Keyring, mode: int) -> None:
    keys.add("one", ONE)
    keys.path.chmod(mode)
    for use in (keys.names, keys.public_keys, lambda: keys.get("one"), lambda: keys.remove("one")):
        with pytest.raises(KeyringError, match=f"run: chmod 700 {keys.path}"):
            use()
    with pytest.raises(KeyringError, match="run: chmod 700"):
        keys.add("two", TWO)


def test_the_advice_can_be_pasted(tmp_path: Path) -> None:
    keys = Keyring(tmp_path / "my keys; true")
    keys.add("one", ONE)
    (keys.path / "one").chmod(0o644)
    with pytest.raises(KeyringError) as caught:
        keys.get("one")
    subprocess.run(["sh", "-c", str(caught.value).partition("run: ")[2]], check=True, timeout=60)
    assert keys.get("one") == ONE


@AS_ROOT
def test_what_belongs_to_somebody_else_is_refused(keys: Keyring) -> None:
    keys.add("one", ONE)
    os.chown(keys.path / "one", 65534, 65534)
    with pytest.raises(KeyringError, match="one: it belongs to another user \\(uid 65534\\)"):
        keys.get("one")
    os.chown(keys.path, 65534, 65534)
    with pytest.raises(KeyringError, match="keys: it belongs to another user \\(uid 65534\\)"):
        keys.names()


def test_links_are_not_followed(keys: Keyring, tmp_path: Path) -> None:
    keys.add("one", ONE)
    (keys.path / "one").rename(tmp_path / "elsewhere")
    (keys.path / "one").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(KeyringError, match="one: a link, not a file"):
        keys.get("one")
    linked = Keyring(tmp_path / "link")
    linked.path.symlink_to(keys.path)
    for use in (linked.names, lambda: linked.add("two", TWO)):
        with pytest.raises(KeyringError, match="not a directory, or a link to one"):
            use()
    keys.add("one", TWO, replace=True)
    assert keys.get("one") == TWO
    assert json.loads((tmp_path / "elsewhere").read_text())["public_key"] == ONE.public_hex


def test_a_lock_that_is_a_link_is_not_followed(keys: Keyring, tmp_path: Path) -> None:
    keys.add("one", ONE)
    (keys.path / ".lock").unlink()
    (keys.path / ".lock").symlink_to(tmp_path / "made")
    with pytest.raises(KeyringError):
        keys.add("two", TWO)
    assert not (tmp_path / "made").exists()


# What is not as it should be


def test_a_pipe_does_not_make_us_wait(keys: Keyring) -> None:
    keys.add("one", ONE)
    os.mkfifo(keys.path / "pipe", 0o600)
    with pytest.raises(KeyringError, match="pipe: not a file"):
        keys.get("pipe")
    assert keys.public_keys() == {"one": ONE.public_key}


def test_a_directory_is_no_key(keys: Keyring) -> None:
    keys.add("one", ONE)
    (keys.path / "directory").mkdir(0o700)
    with pytest.raises(KeyringError, match="directory: not a file"):
        keys.get("directory")
    with pytest.raises(KeyringError):
        keys.remove("directory")


def test_the_place_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "keys").touch()
    for use in (Keyring(tmp_path / "keys").names, lambda: Keyring(tmp_path / "keys").add("a", ONE)):
        with pytest.raises(KeyringError):
            use()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": 2}, "of version 2, which this skymount does not know"),
        ({"version": "1"}, "not a key file"),
        ({"version": None}, "not a key file"),
        ({"private_key": None}, "not a key file"),
        ({"public_key": TWO.public_hex}, "the public key is not that of the private key"),
        ({"public_key": ONE.public_hex.upper()}, "the public key is not that of the private key"),
        ({"private_key": ONE.private_hex[:-2]}, "128 hex digits"),
        ({"private_key": "x" * 128}, "hex digits"),
        ({"private_key": "00" * 32 + ONE.public_hex}, "do not belong together"),
        ({"created": "yesterday"}, "not a key file"),
    ],
)
def test_a_damaged_key_says_why_and_hides_no_other(
    keys: Keyring, changes: dict[str, object], reason: str
) -> None:
    """Its name stays taken, and it can be removed or replaced."""
    keys.add("one", ONE)
    keys.add("two", TWO)
    spoil(keys, "one", **changes)
    damaged, whole = keys.read_all()
    assert isinstance(damaged, DamagedKey)
    assert reason in damaged.reason
    assert isinstance(whole, StoredKey)
    assert keys.names() == ("one", "two")
    with pytest.raises(KeyringError, match="one: ") as caught:
        keys.get("one")
    assert ONE.private_hex[:32] not in str(caught.value)
    with pytest.raises(KeyringError, match="already"):
        keys.add("one", ONE)
    keys.add("one", ONE, replace=True)
    assert keys.get("one") == ONE
    spoil(keys, "one", **changes)
    keys.remove("one")
    assert keys.names() == ("two",)


def test_a_file_of_another_name_is_told_of(keys: Keyring) -> None:
    """An editor's copy of a key holds the key."""
    keys.add("one", ONE)
    (keys.path / "one~").write_text((keys.path / "one").read_text())
    (keys.path / os.fsdecode(b"\xff")).touch()
    found = [key.name for key in keys.read_all() if isinstance(key, DamagedKey)]
    assert found == ["one~", "\udcff"]
    assert keys.names() == ("one",)


def test_a_long_file_is_not_read(keys: Keyring) -> None:
    keys.add("one", ONE)
    with (keys.path / "one").open("a") as file:
        file.write(" " * 4096)
    with pytest.raises(KeyringError, match="too long"):
        keys.get("one")


@given(st.binary(max_size=400))
def test_no_file_is_taken_for_a_key_by_chance(body: bytes) -> None:
    with pytest.raises(MalformedError):
        keyring._parse("one", body)


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(keys: Keyring) -> None:
    keys.add("one", ONE)
    (keys.path / "one").chmod(0)
    with pytest.raises(KeyringError, match="Permission denied"):
        keys.get("one")


# At random


def test_generated_keys() -> None:
    """The seed is 64 random bytes in hex, and gives the key again."""
    pair, seed = gen_key_pair_and_seed()
    assert len(bytes.fromhex(seed)) == 64
    assert SigningKeyPair.from_seed(seed) == pair
    assert gen_key_pair_and_seed()[1] != seed


def test_nothing_shows_a_private_key_by_accident(keys: Keyring) -> None:
    stored = keys.add("one", ONE)
    for shown in (repr(stored), repr(keys), repr(keys.read_all()), repr(ONE)):
        assert ONE.private_hex[:16] not in shown
        assert repr(ONE.private_key)[2:20] not in shown


def test_an_empty_keyring_does_not_load_pynacl(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from skymount.keyring import Keyring\n"
        "assert Keyring(pathlib.Path(sys.argv[1])).public_keys() == {}\n"
        "print('nacl' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "keys"],
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "False\n"
