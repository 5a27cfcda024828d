"""``skymount completion``: prints what makes a shell complete skymount's command line."""

import click

PLACES = {
    "bash": "share/bash-completion/completions/skymount",
    "zsh": "share/zsh/site-functions/_skymount",
    "fish": "share/fish/vendor_completions.d/skymount.fish",
}
"""The shells, and where packages put the script of each, below their prefix."""


def script(shell: str) -> str:
    """Return the script for a shell."""
    from click.shell_completion import ShellComplete, get_completion_class

    from skymount.cli import COMPLETION_VARIABLE, cli

    kind = get_completion_class(shell)
    assert kind is not None
    # Not that of the class for bash, which starts one to look at its version.
    return ShellComplete.source(kind(cli, {}, "skymount", COMPLETION_VARIABLE)).strip() + "\n"


@click.command(short_help="Print a script that completes commands in SHELL.")
@click.argument("shell", type=click.Choice(list(PLACES)))
def completion(shell: str) -> None:
    """Print a script that lets SHELL complete commands, options, names of keys and mounts.

    Packages install it. Otherwise put it where the shell looks for it, and start a new shell.

    \b
    Examples:
      skymount completion bash > \\
          ~/.local/share/bash-completion/completions/skymount
      skymount completion zsh > ~/.zfunc/_skymount        # a directory in $fpath
      skymount completion fish > ~/.config/fish/completions/skymount.fish
    """
    click.echo(script(shell), nl=False)
