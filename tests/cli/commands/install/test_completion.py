"""`skymount completion`, in the real shells."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.skymount_process import SKYMOUNT, Sandbox

ASK = {
    "bash": 'source "$1"; COMP_WORDS=(skymount key show ho); COMP_CWORD=3; '
    '_skymount_completion skymount ho show; printf "%s\\n" "${COMPREPLY[@]}"',
    "zsh": 'compdef() { :; }; compadd() { print -rl -- "${@[-1]}" $completions; }; '
    "_describe() { print -rl -- ${(P)3:-${(P)4}}; }; "
    'source "$1"; words=(skymount key show ho); CURRENT=4; _skymount_completion; '
    'print -rl -- "${completions[@]}" "${completions_with_descriptions[@]}"',
    "fish": 'source $argv[1]; complete --do-complete "skymount key show ho"',
}


@pytest.mark.parametrize("shell", ASK)
def test_a_shell_completes_the_name_of_a_key(sandbox: Sandbox, tmp_path: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    for name in ("home", "holiday"):
        sandbox.succeed("key", "generate", name)
    program = tmp_path / "bin/skymount"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {" ".join(SKYMOUNT)} "$@"\n')
    program.chmod(0o755)
    script = tmp_path / "script"
    script.write_text(sandbox.succeed("completion", shell))
    options = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    name = [] if shell == "fish" else [shell]
    done = subprocess.run(
        [shell, *options, "-c", ASK[shell], *name, str(script)],
        env={**sandbox.env, "PATH": f"{program.parent}:{sandbox.env['PATH']}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    offered = {line.partition("\t")[0] for line in done.stdout.splitlines()}
    assert {"home", "holiday"} <= offered, (done.stdout, done.stderr)


def test_an_unknown_shell_is_wrong_usage(sandbox: Sandbox) -> None:
    said = sandbox.fail("completion", "tcsh", code=2)
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in said
