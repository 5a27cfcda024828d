"""``skymount key``: what it prints, and that secrets go nowhere but where they were asked for."""

import json
import os
import re
from pathlib import Path

import pytest

from skymount.wire.key_pair import SigningKeyPair
from tests.cli.terminal import at_terminal
from tests.mount.namespaces import NOBODY, new_namespace
from tests.skymount_process import SKYMOUNT, Done, Sandbox, run

SEED = "insecure test seed"
PAIR = SigningKeyPair.from_seed(SEED)
MASTER = "c1197e1275fbf570d21dde01a00af83ed4a743d1884e4a09cebce0dd21ae254c"
CHILD = "6140d0d1d8f9e2b759ca7fc96ad3620cd382189f8d46339737e26a2764122b99"  # of MASTER, "seed"
CHILD_PAIR = SigningKeyPair.from_seed(CHILD)


def piped(sandbox: Sandbox, stdin: str | bytes, *args: str) -> Done:
    """Run ``skymount key`` with something on standard input."""
    return run([*SKYMOUNT, "key", *args], env=sandbox.env, cwd=sandbox.root, stdin=stdin)


def add(sandbox: Sandbox, name: str, stdin: str | bytes = SEED) -> str:
    """Import a key; return what is printed."""
    done = piped(sandbox, stdin, "import", name)
    assert done.returncode == 0
    assert done.stderr == "" or "can be guessed" in done.stderr
    return done.stdout


def keys(sandbox: Sandbox) -> Path:
    return sandbox.root / "data/skymount/keys"


# generate


def test_generate_prints_the_public_key_alone(sandbox: Sandbox) -> None:
    """The seed is not printed, and not kept; the key is."""
    public_key = sandbox.succeed("key", "generate", "home")
    assert re.fullmatch(r"[0-9a-f]{64}\n", public_key)
    assert sandbox.succeed("key", "show", "home") == public_key
    assert set(json.loads((keys(sandbox) / "home").read_text())) == {
        *("version", "public_key", "private_key", "created")
    }
    assert sandbox.succeed("key", "generate", "other") != public_key


def test_generate_shows_the_seed_when_asked(sandbox: Sandbox) -> None:
    public_key, seed = sandbox.succeed("key", "generate", "home", "--show-seed").splitlines()
    seed = seed.removeprefix("seed: ")
    assert re.fullmatch(r"[0-9a-f]{128}", seed)
    assert add(sandbox, "again", seed) == f"{public_key}\n"


def test_generate_as_json_has_the_seed_only_when_asked(sandbox: Sandbox) -> None:
    found = json.loads(sandbox.succeed("key", "generate", "a", "--json"))
    assert set(found) == {"name", "public_key", "created"}
    found = json.loads(sandbox.succeed("key", "generate", "b", "--json", "--show-seed"))
    assert SigningKeyPair.from_seed(found["seed"]).public_hex == found["public_key"]


def test_files_are_for_their_owner_alone(sandbox: Sandbox) -> None:
    sandbox.succeed("key", "generate", "home")
    assert keys(sandbox).stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in keys(sandbox).iterdir()} == {0o600}


def test_a_name_that_is_taken(sandbox: Sandbox) -> None:
    public_key = sandbox.succeed("key", "generate", "home")
    assert "called home already" in sandbox.fail("key", "generate", "home")
    for command in (("import",), ("derive", "--child", "x")):  # nothing is asked for
        said = sandbox.fail("key", *command, "home")
        assert said.startswith("there is a key called home already"), said
    assert sandbox.succeed("key", "show", "home") == public_key


@pytest.mark.parametrize("name", ["", "../home", ".home", "ab" * 32])
def test_a_name_that_is_none(sandbox: Sandbox, name: str) -> None:
    for command in ("generate", "import", "show", "remove"):
        assert sandbox.fail("key", command, name, code=2)


# import from standard input


@pytest.mark.parametrize("seed", [SEED, f"{SEED}\n"])
def test_import_of_a_seed(sandbox: Sandbox, seed: str) -> None:
    """One line feed at the end is not part of it."""
    assert add(sandbox, "work", seed) == f"{PAIR.public_hex}\n"
    assert sandbox.succeed("key", "show", "--private", "work") == f"{PAIR.private_hex}\n"


@pytest.mark.parametrize("seed", [" s ", "s\n", "a\nb", "s\r", "é", "e\u0301", "\0", "x" * 65536])
def test_a_seed_counts_as_it_is_written(sandbox: Sandbox, seed: str) -> None:
    assert add(sandbox, "work", f"{seed}\n") == f"{SigningKeyPair.from_seed(seed).public_hex}\n"


def test_a_short_pass_phrase_is_warned_of(sandbox: Sandbox) -> None:
    done = piped(sandbox, "open sesame", "import", "home")
    assert done.returncode == 0
    assert done.stderr.startswith(
        "skymount: warning: a pass-phrase of 11 characters can be guessed, and whoever guesses it "
        "has the key; use 16 or more"
    )
    assert "sesame" not in done.stdout + done.stderr


def test_a_bad_name_is_told_before_the_secret_is_read(sandbox: Sandbox) -> None:
    done = piped(sandbox, b"", "import", ".work")
    assert "a key's name" in done.stderr


@pytest.mark.parametrize("end", ["", "\n", " \r\n"])
def test_import_of_a_private_key(sandbox: Sandbox, end: str) -> None:
    done = piped(sandbox, PAIR.private_hex.upper() + end, "import", "--private-key", "work")
    assert (done.stdout, done.stderr) == (f"{PAIR.public_hex}\n", "")


@pytest.mark.parametrize(
    "text",
    [PAIR.private_hex[:-2], PAIR.private_hex[:-2] + "zz", PAIR.private_hex[:64] + "00" * 32, SEED],
)
def test_what_is_no_private_key_is_not_repeated(sandbox: Sandbox, text: str) -> None:
    done = piped(sandbox, text, "import", "--private-key", "work")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert text[:16] not in done.stderr


def test_a_copy_can_be_put_back(sandbox: Sandbox) -> None:
    """What `show --private` prints is what `import --private-key` reads."""
    public_key = sandbox.succeed("key", "generate", "home")
    copy = sandbox.succeed("key", "show", "--private", "home")
    sandbox.succeed("key", "remove", "--yes", "home")
    assert piped(sandbox, copy, "import", "--private-key", "home").stdout == public_key


def test_a_secret_in_place_of_the_name_is_not_repeated(sandbox: Sandbox) -> None:
    for secret in (PAIR.private_hex, MASTER, "correct horse battery staple"):
        for command in ("import", "show", "remove", "generate"):
            assert secret not in sandbox.fail("key", command, secret, code=2)


# derive


def test_derive_keeps_the_key_of_the_child(sandbox: Sandbox) -> None:
    """The seed of the child is not printed."""
    done = piped(sandbox, MASTER, "derive", "notes", "--child", "seed")
    assert (done.stdout, done.stderr) == (f"{CHILD_PAIR.public_hex}\n", "")
    assert sandbox.succeed("key", "show", "--private", "notes") == f"{CHILD_PAIR.private_hex}\n"


def test_derive_prints_the_seed_of_the_child_when_asked(sandbox: Sandbox) -> None:
    """Alone without a name, and then nothing is kept."""
    args = ["derive", "--child", "seed", "--show-seed"]
    assert piped(sandbox, f"{MASTER}\n", *args).stdout == f"{CHILD}\n"
    assert json.loads(piped(sandbox, MASTER, *args, "--json").stdout) == {"seed": CHILD}
    assert not keys(sandbox).exists()
    out = piped(sandbox, MASTER, *args, "notes").stdout
    assert out == f"{CHILD_PAIR.public_hex}\nseed: {CHILD}\n"


def test_derive_to_nowhere(sandbox: Sandbox) -> None:
    assert "add --show-seed" in sandbox.fail("key", "derive", "--child", "seed", code=2)


def test_derive_asks_on_a_terminal(sandbox: Sandbox) -> None:
    with at_terminal(sandbox, "key", "derive", "notes", "--child", "seed") as terminal:
        terminal.type_after("Master seed: ", f"{MASTER}\n")
        terminal.type_after("Once more: ", f"{MASTER}\n")
        assert terminal.end() == (0, f"{CHILD_PAIR.public_hex}\n")
    assert MASTER not in terminal.shown


def test_a_child_that_is_no_text(sandbox: Sandbox) -> None:
    done = piped(sandbox, MASTER, "derive", "notes", "--child", os.fsdecode(b"\xff"))
    assert done.returncode == 2
    assert "valid Unicode" in done.stderr


# list, show, remove


def test_list(sandbox: Sandbox) -> None:
    """Names and public keys, in the order of the names."""
    assert sandbox.succeed("key", "list") == ""
    assert sandbox.succeed("key", "list", "--json") == "[]\n"
    add(sandbox, "work")
    add(sandbox, "a", MASTER)
    other = SigningKeyPair.from_seed(MASTER).public_hex
    assert sandbox.succeed("key", "list") == f"a     {other}\nwork  {PAIR.public_hex}\n"
    found = json.loads(sandbox.succeed("key", "list", "--json"))
    assert [(each["name"], each["public_key"]) for each in found] == [
        ("a", other),
        ("work", PAIR.public_hex),
    ]


def test_list_tells_of_keys_that_cannot_be_used(sandbox: Sandbox) -> None:
    add(sandbox, "work")
    (keys(sandbox) / "bad\x1b~").write_text(PAIR.private_hex)
    (keys(sandbox) / "bad").write_text(PAIR.private_hex)
    (keys(sandbox) / "bad").chmod(0o600)
    done = sandbox.skymount("key", "list")
    assert (done.returncode, done.stdout) == (0, f"work  {PAIR.public_hex}\n")
    first, second = done.stderr.splitlines()
    assert first == f"skymount: warning: {keys(sandbox)}/bad: damaged: not a key file"
    assert second.endswith("/bad\\x1b~: no key has such a name")
    found = json.loads(sandbox.succeed("key", "list", "--json"))
    assert [(each["name"], "error" in each) for each in found] == [
        ("bad", True),
        ("bad\x1b~", True),
        ("work", False),
    ]
    assert PAIR.private_hex not in done.stderr


def test_show(sandbox: Sandbox) -> None:
    """The private key only when asked for."""
    add(sandbox, "work")
    assert sandbox.succeed("key", "show", "work") == f"{PAIR.public_hex}\n"
    found = json.loads(sandbox.succeed("key", "show", "--json", "work"))
    assert found.pop("created").endswith("+00:00")
    assert found == {"name": "work", "public_key": PAIR.public_hex}
    found = json.loads(sandbox.succeed("key", "show", "--json", "--private", "work"))
    assert found["private_key"] == PAIR.private_hex


def test_show_of_a_key_that_is_too_open(sandbox: Sandbox) -> None:
    add(sandbox, "work")
    (keys(sandbox) / "work").chmod(0o640)
    said = sandbox.fail("key", "show", "work")
    assert said.endswith(f"run: chmod 600 {keys(sandbox)}/work")


def test_an_absent_key_has_an_exit_code(sandbox: Sandbox) -> None:
    for command in (["show"], ["show", "--private"], ["remove", "--yes"], ["remove"]):
        said = sandbox.fail("key", *command, "absent", code=3)
        assert said.startswith("there is no key called absent; ")


def test_remove_without_a_terminal_needs_yes(sandbox: Sandbox) -> None:
    add(sandbox, "work")
    assert "add --yes" in sandbox.fail("key", "remove", "work", code=2)
    assert sandbox.succeed("key", "remove", "--yes", "work") == ""
    assert sandbox.succeed("key", "list") == ""
    add(sandbox, "work")
    out = sandbox.succeed("key", "remove", "-y", "--json", "work")
    assert json.loads(out) == {"name": "work", "removed": True}


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 1), ("", 1)])
def test_remove_asks_on_a_terminal(sandbox: Sandbox, answer: str, code: int) -> None:
    add(sandbox, "work")
    with at_terminal(sandbox, "key", "remove", "work") as terminal:
        terminal.type_after("Remove the key work?", f"{answer}\n")
        assert terminal.end() == (code, "")
    assert bool(sandbox.succeed("key", "list")) == (code != 0)


# Another user


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be someone else")
def test_a_user_without_rights(sandbox: Sandbox) -> None:
    """Has a keyring like anybody, and no way to root's."""
    add(sandbox, "work")
    with new_namespace(network=False) as namespace:
        other = sandbox.within(namespace.as_nobody(sandbox.root))
        for path in (sandbox.root / "data", sandbox.root / "data/skymount"):
            path.chmod(0o755)
        for command in (["list"], ["show", "work"], ["generate", "new"]):
            assert other.fail("key", *command) == f"{keys(sandbox)}: Permission denied"
        assert other.with_env(XDG_DATA_HOME="/nonexistent").fail("key", "generate", "new")
        sandbox.directory_of(NOBODY)
        assert other.succeed("key", "show", "work") == f"{PAIR.public_hex}\n"
        other.succeed("key", "generate", "new")
        assert (keys(sandbox) / "new").stat().st_uid == NOBODY
        said = sandbox.with_env(HOME="/").fail("key", "list")
        assert "belongs to another user (uid 65534)" in said
