"""Runs ``skymount`` with something on its standard input."""

from tests.skymount_process import Done, Sandbox


def piped(sandbox: Sandbox, stdin: str | bytes, *args: str) -> Done:
    """Run it to its end."""
    return sandbox.skymount(*args, stdin=stdin)


def piped_well(sandbox: Sandbox, stdin: str | bytes, *args: str) -> str:
    """Run it, which must have nothing to complain about; return what it prints."""
    done = piped(sandbox, stdin, *args)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def piped_badly(sandbox: Sandbox, stdin: str | bytes, *args: str, code: int = 2) -> str:
    """Run it, which must fail; return its one line on stderr."""
    done = piped(sandbox, stdin, *args)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1), done.stderr
    return done.stderr.removeprefix("skymount: ").rstrip("\n")
