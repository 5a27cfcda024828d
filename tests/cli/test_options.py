"""What all commands that ask a portal have in common: options, exit codes, interrupts, patience."""

import base64
import os
import signal
import subprocess
import threading
from collections import Counter
from pathlib import Path

import click
import pytest

from skymount.cli import cli
from skymount.wire.skykey import Kind, Skykey
from tests.cli.helpers import asking, leaves
from tests.cli.terminal import at_terminal
from tests.fakes import portal as faults
from tests.fakes.portal import FakePortal, Reply, Request, in_thread
from tests.fakes.skyfiles import of_files
from tests.mount.namespaces import new_namespace
from tests.skymount_process import LIMIT, SKYMOUNT, Sandbox, end

A = "AABsdvY0MzM9fsdHVWdqiw1Rj4Kp9KAZwYNbHO-ksMFHkg"
LONG = of_files({"long": bytes(1280 << 10)})
SKYKEY = Skykey(Kind.PRIVATE, bytes(32), bytes(24), "given").text

ASKING = {
    "upload": ["{root}/file"],
    "publish": ["{root}/file", "--key", "home", "--as", "key"],
    "download": [A],
    "ls": [A],
    "cat": [A],
    "metadata": [A],
    "hns resolve": ["example"],
    "registry get": ["home", "key"],
    "registry set": ["home", "key", "text"],
    "db get": ["home", "key"],
    "db set": ["home", "key", "{root}/doc.json"],
    "db delete": ["home", "key"],
    "skykey create": ["name"],
    "skykey add": [],
    "skykey get": ["name"],
    "skykey list": [],
    "skykey delete": ["name"],
}
# These know portals, but ask none before they return, or not without a reason.
SILENT = {"registry url", "registry link", "registry retry", "mount"}
WITHOUT_JSON = {"cat", "mount"}


def words(box: Sandbox, command: str) -> list[str]:
    """Return a command with arguments that are right."""
    return [*command.split(), *(word.format(root=box.root) for word in ASKING[command])]


@pytest.fixture
def home(sandbox: Sandbox) -> Sandbox:
    """A sandbox with all that the commands need."""
    (sandbox.root / "file").write_text("content")
    (sandbox.root / "doc.json").write_text("{}")
    sandbox.succeed("key", "generate", "home")
    return sandbox


def ask(box: Sandbox, command: str, *more: str) -> tuple[int, str, str]:
    """Run one of the commands; return its exit code, stdout and stderr."""
    done = box.skymount(*words(box, command), *more, stdin=SKYKEY)
    return done.returncode, done.stdout, done.stderr


OTHERS = {"config init", "service install", "service remove", "service status"}
"""Their --portal is for something else than a portal to ask."""


def options(command: click.Command) -> set[str]:
    """Return all names of a command's options."""
    return {name for parameter in command.params for name in parameter.opts}


def test_no_command_is_forgotten_here() -> None:
    found = {name for name, command in leaves(cli) if "--portal" in options(command)}
    assert found == set(ASKING) | SILENT | OTHERS


def test_they_have_the_same_options() -> None:
    for name, command in leaves(cli):
        if "--portal" in options(command) and name not in OTHERS:
            shared = {"--dialect", "--timeout", "--user-agent", "--config"}
            assert shared <= options(command), name
            assert ("--json" in options(command)) is (name not in WITHOUT_JSON), name
        assert not {"--api-key", "--header", "--password"} & options(command), name


@pytest.mark.parametrize("command", ASKING)
def test_without_a_portal_the_advice_is_to_start_one(home: Sandbox, command: str) -> None:
    with new_namespace(network=True) as place:
        code, out, said = ask(home.within(place.prefix), command)
    assert (code, out) == (1, "")
    assert said.startswith("skymount: 127.0.0.1:4280 cannot be reached: ")
    assert said.endswith(
        "start a portal with `skymount portal serve` or `skymount mount`, or name one with "
        "--portal URL\n"
    )
    assert said.count("\n") == 1


INTERRUPTED = {
    "upload": "no portal has confirmed {root}/file: upload it again",
    "publish": "the entry is as it was",
    "download": "nothing was saved",
    "registry set": "the change is kept, see `skymount registry pending`",
    "db set": "the entry is as it was",
    "db delete": "the entry is as it was",
    **dict.fromkeys(
        ("skykey create", "skykey add", "skykey delete"),
        "the portal may have done it, see `skymount skykey list`",
    ),
}
"""What commands say that a signal ends; those that only read say nothing."""


@pytest.mark.parametrize("command", ASKING)
def test_an_interrupt(home: Sandbox, fake: FakePortal, command: str) -> None:
    """Exit code 130, while the portal is silent, and what was and was not done; nothing is left
    behind.
    """
    asked = threading.Event()
    silence = faults.stalls_after(-1)

    def stall(request: Request, reply: Reply) -> Reply:
        asked.set()
        return silence(request, reply)

    fake.fault(stall)
    before = set(home.root.iterdir())
    process = subprocess.Popen(
        [*SKYMOUNT, *words(home, command), "--portal", fake.url],
        env=home.env,
        cwd=home.root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdin is not None
        process.stdin.write(SKYKEY.encode())
        process.stdin.close()
        process.stdin = None
        assert asked.wait(LIMIT)
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=LIMIT)
    finally:
        end(process)
    outcome = INTERRUPTED.get(command, "").format(root=home.root)
    assert (process.returncode, out) == (130, b"")
    assert said.decode().strip() == (f"skymount: interrupted: {outcome}" if outcome else "")
    assert set(home.root.iterdir()) == before


@pytest.fixture
def silent(fake: FakePortal) -> FakePortal:
    fake.fault(faults.stalls_after(-1))
    return fake


def times_asked(fake: FakePortal) -> dict[str, int]:
    """Return how often each thing was asked for."""
    return Counter(
        f"{each.method} {each.target.partition('/skymount/')[0]}" for each in fake.asked()
    )


@pytest.mark.parametrize("command", ASKING)
def test_a_silent_portal_is_asked_once(home: Sandbox, silent: FakePortal, command: str) -> None:
    """R14: and whoever has no terminal is told at the end whom it waited for, and how long."""
    looks = command.startswith(("registry", "db get", "db delete"))  # for 5 s more
    done = asking(home, silent).skymount(*words(home, command), "--timeout", "1", stdin=SKYKEY)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert silent.url in done.stderr
    assert f"no answer in time: silent for {6 if looks else 1} s" in done.stderr
    assert set(times_asked(silent).values()) == {1}


def test_a_portal_that_stalls_in_a_body(sandbox: Sandbox, fake: FakePortal) -> None:
    """R14: it is asked for the rest again, as long as part of it comes, three times at most."""
    fake.add(LONG)
    box, content = asking(sandbox, fake), "^GET /[^/]*[?/]"
    fake.fault(faults.stalls_after(100), content)
    said = box.fail("cat", LONG.name, "--timeout", "1", code=1)
    assert "no answer in time: silent for 1 s" in said
    assert len(fake.asked(content)) == 3
    fake.heal()
    fake.fault(faults.stalls_after(100_000), content, 1)
    assert box.succeed("cat", f"{LONG.name}/long", "--timeout", "1").encode() == LONG.payload
    fake.heal()
    fake.fault(faults.stalls_after(-1), content)
    fake.requests.clear()
    box.fail("cat", LONG.name, "--timeout", "1", code=1)
    assert len(fake.asked(content)) == 1


def test_bytes_of_a_head_are_no_progress(sandbox: Sandbox, fake: FakePortal) -> None:
    fake.fault(faults.drips_head(0.1))
    said = asking(sandbox, fake).fail("ls", LONG.name, "--timeout", "1", code=1)
    assert "no answer in time: only " in said
    assert set(times_asked(fake).values()) == {1}


def test_a_download_may_take_longer(sandbox: Sandbox, fake: FakePortal) -> None:
    fake.add(LONG)
    fake.fault(faults.drips(64 << 10, 0.2), "^GET /[^/]*[?/]")
    box = asking(sandbox, fake)
    assert box.succeed("cat", f"{LONG.name}/long", "--timeout", "3").encode() == LONG.payload


def test_an_upload_may_take_longer(sandbox: Sandbox, fake: FakePortal) -> None:
    """Nobody is told that the portal is silent."""
    large = of_files({"file": bytes(12 << 20)})
    fake.add(large)
    fake.takes = 256 << 10, 0.1
    file = sandbox.root / "file"
    file.write_bytes(large.payload)
    with at_terminal(asking(sandbox, fake), "upload", str(file), "--timeout", "3") as terminal:
        assert terminal.end() == (0, f"{large.name}\n")
    assert "waiting" not in terminal.shown


@pytest.mark.parametrize(
    "command", ["ls", "hns resolve", "upload", "registry get", "skykey create"]
)
def test_who_is_waited_for_and_until_when(home: Sandbox, silent: FakePortal, command: str) -> None:
    """R14: it is said at a terminal, long before the time-out."""
    given = *words(home, command), "--timeout", "300"
    with at_terminal(asking(home, silent), *given) as terminal:
        terminal.wait_for(f"waiting for {silent.url}, which sends nothing, for ")
        terminal.wait_for("s more at most (see --timeout)")


@pytest.mark.parametrize("command", ["ls", "upload"])
def test_another_portal_works(home: Sandbox, silent: FakePortal, command: str) -> None:
    with in_thread(FakePortal()) as good:
        good.add(LONG, of_files({"file": b"content"}))
        given = ["ls", LONG.name] if command == "ls" else words(home, command)
        done = asking(home, silent, good).skymount(*given, "--timeout", "300")
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--timeout", "soon"),
        ("--timeout", "0"),
        ("--portal", "bogus"),
        ("--dialect", "klingon"),
        ("--user-agent", "a\nb"),
        ("--config", "absent"),
    ],
)
def test_options_that_are_wrong(home: Sandbox, option: str, value: str) -> None:
    for command in ("upload", "ls", "registry url"):
        arguments = (
            words(home, command) if command in ASKING else ["registry", "url", "home", "key"]
        )
        home.fail(*arguments, option, value, code=2)


@pytest.mark.parametrize("command", ["upload", "ls", "hns resolve", "registry get", "skykey list"])
def test_what_is_sent_with_each_request(home: Sandbox, fake: FakePortal, command: str) -> None:
    fake.fault(faults.status(404))
    box = home.with_env(
        SKYMOUNT_PORTALS=fake.url,
        SKYMOUNT_API_KEY="secret",
        SKYMOUNT_HEADERS="Cookie: a=b\nX-Token: t",
    )
    code, out, said = ask(box, command, "--user-agent", "Agent/1")
    assert (code, out) == (3, ""), said
    assert fake.requests
    for request in fake.requests:
        assert request.headers["user-agent"] == "Agent/1"
        assert request.headers["cookie"] == "a=b"
        assert request.headers["x-token"] == "t"
        assert request.headers["authorization"] == "Basic " + base64.b64encode(b":secret").decode()


def test_the_user_agent_is_the_dialects_unless_set(home: Sandbox, fake: FakePortal) -> None:
    fake.fault(faults.status(404))
    for dialect, agent in (("svc", "svc-agent"), ("skynet", "Sia-Agent")):
        ask(home, "hns resolve", "--portal", fake.url, "--dialect", dialect)
        assert fake.requests[-1].headers["user-agent"].startswith(agent)


@pytest.mark.parametrize("command", ["upload", "registry set", "publish", "skykey list"])
def test_a_password_that_is_missing_or_wrong(home: Sandbox, fake: FakePortal, command: str) -> None:
    """The advice is what to do about it."""
    fake.fault(faults.status(401, "API authentication failed."))
    code, _, said = ask(home, command, "--portal", fake.url)
    assert code == 1
    assert said.startswith("skymount: API authentication failed")
    assert "set api_key in the configuration, or SKYMOUNT_API_KEY, for this portal" in said
    _, _, said = ask(home.with_env(SKYMOUNT_API_KEY="guess"), command, "--portal", fake.url)
    assert said.endswith("; the api_key is wrong\n")
    assert "guess" not in said


@pytest.mark.parametrize("command", ["hns resolve", "skykey list", "registry set"])
def test_what_a_portal_says_cannot_write_to_the_terminal(
    home: Sandbox, fake: FakePortal, command: str
) -> None:
    fake.fault(faults.status(400, "no\x1b[2J\r\nskymount: all is well"))
    code, out, said = ask(home, command, "--portal", fake.url)
    assert (code, out) == (1, "")
    assert "\x1b" not in said
    assert said.count("\n") == 1


def test_what_is_typed_cannot_write_to_the_terminal_either(home: Sandbox, portal: str) -> None:
    box = home.with_env(SKYMOUNT_PORTALS=portal)
    said = box.fail("registry", "get", "home", "\x1b[2J", code=3)
    assert said == "'\\x1b[2J': there is no such registry entry"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["key", "list"],
        ["registry", "get", "--raw", "home", "key"],
        ["registry", "get", "--json", "home", "key"],
        ["skykey", "list", "--json"],
    ],
    ids=" ".join,
)
def test_output_that_cannot_be_written(home: Sandbox, portal: str, arguments: list[str]) -> None:
    """A full disk is exit code 1 and one line; a reader that has gone is 141 without a word."""
    box = home.with_env(SKYMOUNT_PORTALS=portal)
    box.succeed("registry", "set", "home", "key", "text")
    with Path("/dev/full").open("wb") as full:
        code, said = written_to(box, full.fileno(), arguments)
        assert code == 1
        assert b"No space left on device" in said
        assert said.count(b"\n") == 1
    reading, writing = os.pipe()
    os.close(reading)
    try:
        assert written_to(box, writing, arguments) == (141, b"")
    finally:
        os.close(writing)


def written_to(box: Sandbox, stdout: int, arguments: list[str]) -> tuple[int, bytes]:
    """Run a command with that stdout; return its exit code and stderr."""
    done = subprocess.run(
        [*SKYMOUNT, *arguments],
        env=box.env,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        check=False,
        timeout=LIMIT,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        *("ls --config= link", "config check --config=", "doctor --config="),
        *("mount --config= mnt", "mount --log-file= mnt", "upload", "umount", "status"),
        *("portal serve --data=", "portal list --data=", "portal serve --password-file="),
        *("portal hns list --data=", "portal export", "portal import", "db set home key"),
        "portal serve --store=s3://bucket --key-file=",
    ],
)
def test_an_empty_path_is_refused(home: Sandbox, arguments: str) -> None:
    """It would be the working directory, or nothing: an unset variable of a script."""
    words = arguments.split()
    if not any(word.endswith("=") for word in words):
        words.append("")
    assert "the path is empty" in home.fail(*words, code=2)


@pytest.mark.parametrize(("command", "code"), [("serve", 1), ("list", 2)])
def test_an_empty_store_is_refused(home: Sandbox, command: str, code: int) -> None:
    """It would be the user's own portal."""
    assert "'' is not s3://BUCKET" in home.fail("portal", command, "--store=", code=code)


def test_an_empty_portal_is_as_none(home: Sandbox, portal: str) -> None:
    """And an empty user agent is the usual one."""
    box = home.with_env(SKYMOUNT_PORTALS=portal)
    assert "hns" not in box.fail("registry", "get", "--portal", "", "home", "nothing", code=3)
    box.fail("registry", "get", "--user-agent", "", "home", "nothing", code=3)
