"""What completion offers, asked for as a shell does."""

import os
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from skymount.cli import cli
from tests.cli.helpers import leaves
from tests.skymount_process import Sandbox

GROUPS = sorted({name.rpartition(" ")[0] for name, _ in leaves(cli)} - {""})

NOTHING_TO_OFFER = {
    "data",
    "data_key",
    "domain",
    "name",
    "numbers",
    "skylink",
    "skylinks",
    "value",
}
"""Arguments whose values only the user knows: numbers, new names, domains and data."""


def complete(sandbox: Sandbox, line: str, word: str = "") -> list[str]:
    """Return what is offered for the last word of a command line."""
    told = sandbox.with_env(
        _SKYMOUNT_COMPLETE="bash_complete",
        COMP_WORDS=f"skymount {line} {word}",
        COMP_CWORD=str(1 + len(line.split())),
    )
    done = told.skymount()
    assert (done.returncode, done.stderr) == (0, "")
    return list(filter(None, done.stdout.split("\n")))


@pytest.mark.parametrize("group", ["", *GROUPS])
def test_what_a_command_does_is_not_cut_off(group: str) -> None:
    offered = ShellComplete(cli, {}, "skymount", "X").get_completions(group.split(), "")
    assert offered
    assert [each.help for each in offered if str(each.help)[-1] != "."] == []
    assert [each.help for each in offered if str(each.help).endswith("...")] == []


def test_commands(sandbox: Sandbox) -> None:
    assert complete(sandbox, "", "um") == ["plain,umount"]
    assert "plain,generate" in complete(sandbox, "key")


def test_options(sandbox: Sandbox) -> None:
    assert complete(sandbox, "mount", "--mem") == ["plain,--memory-cache"]


def test_names_of_keys(sandbox: Sandbox) -> None:
    assert complete(sandbox, "key show") == []
    for name in ("home", "holiday", "work"):
        sandbox.succeed("key", "generate", name)
    both = ["plain,holiday", "plain,home"]
    assert complete(sandbox, "key show", "ho") == both
    assert complete(sandbox, "key remove", "ho") == both
    assert complete(sandbox, "registry get", "ho") == both
    assert complete(sandbox, "publish site --key", "ho") == both


def test_names_of_mounts(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.configure('[mounts.home]\n[mounts.work]\n[mounts."\\u001b[31m"]\n[mounts."a\\nb"]\n')
    assert complete(sandbox, "mount --name") == ["plain,home", "plain,work"]
    other = tmp_path / "other.toml"
    other.write_text("[mounts.elsewhere]\n")
    assert complete(sandbox, f"mount --config {other} --name") == ["plain,elsewhere"]


@pytest.mark.parametrize(
    "text",
    ["", 'portals = ["https://portal.example"]\n', "no toml", "mounts = 1", "mounts = [1]", "\0"],
)
def test_a_configuration_without_mounts_offers_nothing(sandbox: Sandbox, text: str) -> None:
    """Nothing is printed of what is wrong with it."""
    sandbox.configure(text)
    for line in ("mount --name", "umount --name", "service install"):
        assert complete(sandbox, line) == []


def test_failures_print_nothing(sandbox: Sandbox) -> None:
    """Of files that cannot be read, and of what can have no value."""
    os.mkfifo(sandbox.configure("").with_name("pipe"))
    sandbox.succeed("key", "generate", "home")
    keys = sandbox.root / "data/skymount/keys"
    keys.rename(keys.with_name("elsewhere"))
    keys.write_text("no directory")
    assert complete(sandbox, "key show") == []
    pipe = sandbox.root / "config/skymount/pipe"
    assert complete(sandbox, f"mount --config {pipe} --name") == []
    assert complete(sandbox, "mount --config /proc/self/mem --name") == []
    assert complete(sandbox.with_env(SKYMOUNT_PORTAL="misspelt"), "key list", "--j") == [
        "plain,--json"
    ]
    assert complete(sandbox, "no such command") == []


def test_a_completer_that_fails_prints_nothing(sandbox: Sandbox) -> None:
    """Whatever it fails with."""
    done = sandbox.run(sys.executable, "-c", _FAILING)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


_FAILING = """
import os
from skymount import cli
from skymount.cli.commands import key
def fail(*_):
    print("no completion", file=__import__("sys").stderr)
    raise ZeroDivisionError
key.show.params[0]._custom_shell_complete = fail
os.environ |= dict(
    _SKYMOUNT_COMPLETE="bash_complete", COMP_WORDS="skymount key show ", COMP_CWORD="3"
)
cli.main()
"""


def test_paths_are_left_to_the_shell(sandbox: Sandbox) -> None:
    assert complete(sandbox, "upload", "si") == ["file,si"]
    assert complete(sandbox, "mount", "sk") == ["dir,sk"]
    assert complete(sandbox, "umount", "~/no-mount") == ["dir,~/no-mount"]


def test_each_argument_offers_something_or_is_known_not_to() -> None:
    for name, command in leaves(cli):
        for parameter in command.params:
            if isinstance(parameter, click.Argument) and parameter.name not in NOTHING_TO_OFFER:
                context = click.Context(command)
                with context:
                    offers = parameter.shell_complete(context, "")
                assert offers or parameter.name == "owner" or name.startswith("skylink "), name
