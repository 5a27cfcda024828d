"""The command line: help, version, exit codes, what goes to stdout and what to stderr."""

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest

from skymount import __version__
from skymount.cli import cli
from tests.cli.helpers import leaves
from tests.portal_process import SOURCE
from tests.skymount_process import SKYMOUNT, Sandbox

LEAVES = [name for name, _ in leaves(cli)]
GROUPS = sorted({name.rpartition(" ")[0] for name in LEAVES})
COMMANDS = [*GROUPS, *LEAVES]


def test_the_short_form_of_help(sandbox: Sandbox) -> None:
    assert sandbox.succeed("mount", "-h") == sandbox.succeed("mount", "--help")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_goes_to_stdout_and_has_an_example(sandbox: Sandbox, command: str) -> None:
    said = sandbox.succeed(*command.split(), "--help")
    assert said.startswith(f"Usage: python -m skymount {command}".rstrip())
    assert "\x08" not in said
    assert max(map(len, said.splitlines())) <= 80
    lines = [line.strip() for line in said.splitlines()]
    heading = next(i for i, line in enumerate(lines) if line in ("Example:", "Examples:"))
    assert f"skymount {command}".rstrip() in lines[heading + 1]


def test_each_option_has_a_help_text() -> None:
    for name, command in leaves(cli):
        for option in command.params:
            if isinstance(option, click.Option):
                assert option.help or option.hidden, (name, option.name)


def test_each_command_can_say_what_it_does() -> None:
    for name, command in leaves(cli):
        names = [name for option in command.params for name in option.opts]
        assert {"-v", "--verbose"} & set(names), name


def test_verbose_shows_each_request(sandbox: Sandbox) -> None:
    """On stderr, with its address and what came of it; the result is the same."""
    done = sandbox.skymount("ls", "-v", "--portal", "http://127.0.0.1:1", "A" * 46)
    assert done.returncode == 1
    *lines, message = done.stderr.splitlines()
    assert message.startswith("skymount: ")
    assert lines
    assert all(" DEBUG " in line and " http://127.0.0.1:1/" in line for line in lines)
    assert all("cannot be reached" in line for line in lines)


def test_verbose_goes_after_the_command(sandbox: Sandbox) -> None:
    done = sandbox.skymount("-v", "ls", "x")
    assert done.returncode == 2
    assert "-v goes after the command" in done.stderr


def test_version(sandbox: Sandbox) -> None:
    assert sandbox.succeed("--version") == f"skymount {__version__}\n"


def test_help_and_version_need_no_home(sandbox: Sandbox) -> None:
    bare = sandbox.with_env(HOME="/nonexistent", XDG_CONFIG_HOME="/nonexistent")
    assert bare.succeed("--version")
    assert bare.succeed("mount", "--help")


def test_help_and_version_are_quick_to_load() -> None:
    """They import neither trio nor the libraries of HTTP and FUSE."""
    code = (
        "import sys; sys.argv = ['skymount', '--help']\n"
        "import skymount.cli\n"
        "try:\n    skymount.cli.main()\nexcept SystemExit: pass\n"
        "print(*sorted({'trio', 'httpx', 'pyfuse3', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(SOURCE), "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert done.stdout.splitlines()[-1] == ""


def test_no_command_shows_help_and_is_wrong_usage(sandbox: Sandbox) -> None:
    for group in GROUPS:
        done = sandbox.skymount(*group.split())
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("Usage: ")


@pytest.mark.parametrize(
    "arguments",
    [["bogus"], ["--bogus"], ["mount", "--bogus"], ["umount"], ["upload"], ["portal", "bogus"]],
)
def test_wrong_usage_is_one_line_and_exit_code_2(sandbox: Sandbox, arguments: list[str]) -> None:
    said = sandbox.fail(*arguments, code=2)
    assert "--help`" in said


@pytest.mark.parametrize("arguments", [["--json", "ls"], ["registry", "--json", "get"]])
def test_an_option_before_its_command(sandbox: Sandbox, arguments: list[str]) -> None:
    assert sandbox.fail(*arguments, code=2).startswith("--json goes after the command. See `")


def test_a_question_ends_with_its_mark(sandbox: Sandbox) -> None:
    said = sandbox.fail("ls", "--jso", code=2)
    assert "Did you mean '--json'? See `" in said


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["mont"], "mount"),
        (["unmount", "/x"], "umount"),
        (["portal", "serv"], "serve"),
        (["portal", "serve", "--port", "80"], "--listen"),
        (["portal", "serve", "--bind", "::1"], "--listen"),
        (["portal", "serve", "--lisen", "::1"], "--listen"),
        (["ls", "--url", "http://x"], "--portal"),
    ],
)
def test_a_name_that_is_not_quite_ours(sandbox: Sandbox, arguments: list[str], meant: str) -> None:
    """A misspelt command or option, or what another program calls it."""
    assert f" Did you mean '{meant}'? See `" in sandbox.fail(*arguments, code=2)


def test_a_name_that_resembles_nothing(sandbox: Sandbox) -> None:
    assert "mean" not in sandbox.fail("frobnicate", code=2)
    assert "mean" not in sandbox.fail("ls", "--bind", code=2)  # it has no --listen


def test_summaries_of_commands_are_not_cut_off(sandbox: Sandbox) -> None:
    for group in ("", *GROUPS):
        assert "..." not in sandbox.succeed(*group.split(), "--help").partition("Commands:")[2]


def test_a_reader_that_goes_away_is_no_traceback(sandbox: Sandbox) -> None:
    script = '"$@" | true; echo "${PIPESTATUS[0]}"'
    done = sandbox.run("bash", "-c", script, "-", *SKYMOUNT, "mount", "--help")
    assert done.stderr == ""


def test_a_config_file_that_is_wrong_stops_each_command(sandbox: Sandbox, tmp_path: Path) -> None:
    file = sandbox.configure("bogus = 1\n")
    (tmp_path / "file").touch()
    for command, path in (("mount", sandbox.directory()), ("upload", tmp_path / "file")):
        assert sandbox.fail(command, path, code=2).startswith(
            f"{file}: line 1: unknown key 'bogus'"
        )


def test_a_config_file_with_secrets_that_others_can_read(sandbox: Sandbox, portal: str) -> None:
    """It is warned of in one line, and used."""
    file = sandbox.configure(f'portals = ["{portal}"]\napi_key = "secret"\n')
    assert sandbox.succeed("skykey", "list") == ""
    file.chmod(0o644)
    done = sandbox.skymount("skykey", "list")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith(f"skymount: warning: {file}: others can read or change it")
    assert f"`chmod 600 {file}`" in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_error_is_json_where_that_was_asked_for(sandbox: Sandbox) -> None:
    for args, code in ((["ls", "--json", "x"], 2), (["key", "show", "x", "--json"], 3)):
        done = sandbox.skymount(*args)
        assert (done.returncode, done.stdout) == (code, "")
        found = json.loads(done.stderr)
        assert found["exit_code"] == code
        assert found["error"]
    assert sandbox.skymount("ls", "--", "--json").stderr.startswith("skymount: ")


_DASHED = "-" + "A" * 45


@pytest.mark.parametrize(
    "command",
    [
        *(f"{name} {_DASHED} --portal http://127.0.0.1:1" for name in ("ls", "cat", "metadata")),
        f"ls --portal http://127.0.0.1:1 {_DASHED}/a/b",
        f"download --portal http://127.0.0.1:1 {_DASHED} x",
        f"pin {_DASHED} --from http://127.0.0.1:2 --to http://127.0.0.1:1",
    ],
)
def test_a_skylink_that_begins_with_a_dash(sandbox: Sandbox, command: str) -> None:
    """It is no option: the portal is asked for it."""
    assert "127.0.0.1:1 cannot be reached" in sandbox.fail(*command.split())


def test_what_only_begins_like_such_a_skylink(sandbox: Sandbox) -> None:
    """It stays an option, and a value stays what it is; completion goes on behind a skylink."""
    assert sandbox.succeed("skylink", "parse", _DASHED) == f"{_DASHED}\n"
    for word in ("-" + "A" * 44, "-" + "A" * 46):
        assert "No such option '-A'" in sandbox.fail("ls", word, code=2)
    assert f"extra argument ({_DASHED})" in sandbox.fail("skylink", "parse", "a", _DASHED, code=2)
    sandbox.succeed("key", "generate", "home")
    portal = ("--portal", "http://127.0.0.1:1")
    sandbox.fail("registry", "set", "home", "x", _DASHED, *portal)
    assert _DASHED in sandbox.succeed("registry", "pending")
    words = f"skymount ls {_DASHED} --verif"
    completing = {"_SKYMOUNT_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "3"}
    assert "--verify" in sandbox.with_env(**completing).succeed()
