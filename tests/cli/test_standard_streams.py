"""Commands whose standard streams are closed, as of services and cron jobs; secrets are read from a
terminal or from standard input, and are never shown.
"""

import shlex
import signal
from pathlib import Path

import pytest

from skymount.wire.key_pair import SigningKeyPair
from tests.cli.helpers import piped
from tests.cli.terminal import at_terminal
from tests.portal_process import portal_process
from tests.skymount_process import SKYMOUNT, Sandbox

SEED = "insecure test seed"
PAIR = SigningKeyPair.from_seed(SEED)


@pytest.mark.parametrize("controlling", [True, False])
def test_a_seed_is_asked_for_twice_and_not_shown(sandbox: Sandbox, controlling: bool) -> None:
    """Nor is it in the command line that every user may see."""
    with at_terminal(sandbox, "key", "import", "work", controlling=controlling) as terminal:
        terminal.type_after("Seed or pass-phrase: ", f"{SEED}\n")
        terminal.type_after("Once more: ", f"{SEED}\n")
        seen = Path(f"/proc/{terminal.process.pid}/cmdline").read_bytes()
        code, out = terminal.end()
    assert (code, out) == (0, f"{PAIR.public_hex}\n")
    assert SEED not in terminal.shown
    assert SEED.encode() not in seen


def test_blanks_that_were_typed_count(sandbox: Sandbox) -> None:
    with at_terminal(sandbox, "key", "import", "work") as terminal:
        terminal.type_after("phrase: ", " ä \n")
        terminal.type_after("more: ", " ä \n")
        assert terminal.end() == (0, f"{SigningKeyPair.from_seed(' ä ').public_hex}\n")


def test_two_different_secrets(sandbox: Sandbox) -> None:
    with at_terminal(sandbox, "key", "import", "work") as terminal:
        terminal.type_after("phrase: ", f"{SEED}\n")
        terminal.type_after("more: ", "insecure test seeds\n")
        assert terminal.end() == (1, "")
    assert "the two are different" in terminal.shown
    assert "insecure" not in terminal.shown
    assert sandbox.succeed("key", "list") == ""


def test_nothing_typed(sandbox: Sandbox) -> None:
    with at_terminal(sandbox, "key", "import", "work") as terminal:
        terminal.type_after("phrase: ", "\n")
        terminal.type_after("more: ", "\n")
        assert terminal.end() == (2, "")
    assert "nothing was given" in terminal.shown


@pytest.mark.parametrize("key", ["\x03", "\x04"])
def test_interrupted(sandbox: Sandbox, key: str) -> None:
    with at_terminal(sandbox, "key", "import", "work") as terminal:
        terminal.type_after("phrase: ", key)
        assert terminal.end() == (130, "")
    assert "Traceback" not in terminal.shown


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP", "QUIT"])
def test_a_signal_leaves_a_terminal_with_echo(sandbox: Sandbox, name: str) -> None:
    number = signal.Signals[f"SIG{name}"]
    with at_terminal(sandbox, "key", "import", "work", controlling=False) as terminal:
        terminal.type_after("phrase: ", "")
        assert not terminal.has_echo
        terminal.process.send_signal(number)
        assert terminal.end() == (128 + number, "")
        assert terminal.has_echo


def test_a_stopped_prompt_leaves_the_terminal_as_it_was(sandbox: Sandbox) -> None:
    """And asks again when the command goes on."""
    command = shlex.join([*SKYMOUNT, "key", "import", "work"])
    script = f"{command}; stty -a | grep -qw -- -echo || echo it shows; fg"
    with at_terminal(sandbox, command=["bash", "-mc", script]) as terminal:
        terminal.type_after("phrase: ", "\x1a")
        terminal.type_after("phrase: ", f"{SEED}\n")
        terminal.type_after("more: ", f"{SEED}\n")
        code, out = terminal.end()
    assert (code, out.splitlines()[0], out.splitlines()[-1]) == (0, "it shows", PAIR.public_hex)
    assert SEED not in terminal.shown


@pytest.mark.parametrize(("length", "code"), [(4093, 0), (4094, 2), (4095, 2), (5000, 2)])
def test_a_line_that_a_terminal_may_have_cut(sandbox: Sandbox, length: int, code: int) -> None:
    """Better none than the key of a shorter pass-phrase."""
    seed = "x" * length
    with at_terminal(sandbox, "key", "import", "work") as terminal:
        terminal.type_after("phrase: ", f"{seed}\n")
        terminal.type_after("more: ", f"{seed}\n")
        expected = f"{SigningKeyPair.from_seed(seed).public_hex}\n" if code == 0 else ""
        assert terminal.end() == (code, expected)


def test_a_private_key_is_asked_for_once(sandbox: Sandbox) -> None:
    """It is checked by itself."""
    with at_terminal(sandbox, "key", "import", "--private-key", "work") as terminal:
        terminal.type_after("Private key: ", f"{PAIR.private_hex}\n")
        assert terminal.end() == (0, f"{PAIR.public_hex}\n")
    assert PAIR.private_hex not in terminal.shown


@pytest.mark.parametrize(
    "args", [["import", "work", "hunter2"], ["derive", "work", "hunter2", "--child", "a"]]
)
def test_a_secret_on_the_command_line_is_refused_and_not_repeated(
    sandbox: Sandbox, args: list[str]
) -> None:
    said = sandbox.fail("key", *args, code=2)
    assert "secrets are read from standard input" in said
    assert "hunter2" not in said
    for name in ("--seed=hunter2", "-phunter2"):
        assert "hunter2" not in sandbox.fail("key", *args[:2], name, code=2)


@pytest.mark.parametrize(
    ("stdin", "reason"),
    [
        (b"", "nothing was given"),
        (b"\n", "nothing was given"),
        (b"secret\xff", "not valid UTF-8"),
        (b"secret" + bytes(65536), "longer than 64 KiB"),
    ],
)
def test_what_is_no_secret(sandbox: Sandbox, stdin: bytes, reason: str) -> None:
    done = piped(sandbox, stdin, "key", "import", "work")
    assert (done.returncode, done.stdout) == (2, "")
    assert reason in done.stderr
    assert "secret" not in done.stderr
    assert sandbox.succeed("key", "list") == ""


@pytest.mark.parametrize(
    "arguments",
    [
        "registry set home key",
        "registry set home key -",
        "db set home key -",
        "upload - --name name",
        "portal import -",
        "key import new",
        "skykey add",
    ],
)
def test_a_closed_standard_input_is_an_error(sandbox: Sandbox, arguments: str) -> None:
    """Nothing is stored for it, and nothing published."""
    sandbox.succeed("key", "generate", "home")
    done = sandbox.run("sh", "-c", '"$@" <&-', "-", *SKYMOUNT, *arguments.split())
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "skymount: standard input is closed\n"


def test_content_for_a_closed_standard_output_is_an_error(
    sandbox: Sandbox, portal: str, tmp_path: Path
) -> None:
    box = sandbox.with_env(SKYMOUNT_PORTALS=portal)
    file, data = tmp_path / "file", tmp_path / "data"
    file.write_bytes(bytes(100))
    link = box.succeed("upload", file).strip()
    box.succeed("key", "generate", "home")
    box.succeed("registry", "set", "home", "key", "value")
    with portal_process(data):
        pass
    for arguments in (
        f"cat {link}",
        f"download {link} -",
        "registry get --raw home key",
        f"portal export - --data {data}",
    ):
        done = box.run("sh", "-c", '"$@" >&-', "-", *SKYMOUNT, *arguments.split())
        assert (done.returncode, done.stderr) == (1, "skymount: standard output is closed\n")


def test_no_file_takes_the_place_of_a_closed_stream(sandbox: Sandbox, tmp_path: Path) -> None:
    """What goes to standard output and error is not written into a file that a command opened."""
    sandbox.configure('portals = ["http://127.0.0.1:9"]\n').chmod(0o644)
    sandbox.succeed("key", "generate", "home")
    before = {path: path.read_bytes() for path in sandbox.root.rglob("*") if path.is_file()}
    for arguments in ("key list", "config show", "registry get home key"):
        sandbox.run("sh", "-c", '"$@" <&- >&- 2>&-', "-", *SKYMOUNT, *arguments.split())
    after = {path: path.read_bytes() for path in before}
    assert after == before
