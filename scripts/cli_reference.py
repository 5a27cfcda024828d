"""What scripts/cli-reference writes: docs/cli.md, made from the commands themselves, and what
docs/configuration.md and docs/config.toml say of settings, made from their declarations.
"""

import json
import re
from pathlib import Path

import click

from skymount.cli import cli
from skymount.cli.commands.config import new_file
from skymount.settings import OF_ONE_PORTAL, SETTINGS, Config, Setting

DOCS = Path(__file__).parent.parent / "docs"

HEAD = """\
# Command line

Made by `scripts/cli-reference` from the commands themselves; a test checks that it is up to date.

Results go to stdout, everything else to stderr; progress bars only to a terminal. With `--json` a
result is one line of JSON. Text from outside is shown with control characters escaped.

Commands verify content against its skylink, as a mount does ([semantics](semantics.md), T1 to
T5), and never output wrong bytes. Some content cannot be verified: that of a portal that gives no
proof of it or decrypts it, and what a domain leads to. It is output with a warning on
stderr. `--json` has the result as `verified`: `yes`, `partly` (only names and sizes) or `no`.
With `--verify require` such content is refused; with `--verify off` nothing is verified, and
there are no warnings.

A command gives up when a portal neither sends nor takes anything for `--timeout` seconds (30), and
may take as long as it takes otherwise ([semantics](semantics.md), R14). At a terminal it says after
2 s which portal it waits for.

A command that reads from a closed standard input, or writes content to a closed standard output,
fails. Results and messages for closed streams are dropped.

Exit codes: 0 done, 1 failed, 2 wrong use or configuration, 3 not found, 4 nothing can be mounted
here, 130 interrupted, 128 + N ended by signal N, 141 (without a message) when the reader of the
output has gone, as `head` does.

A file that a command writes gets its name when it is whole. Until then it lies beside, with a name
that ends in `.part` or `.new`; if the command fails, or is ended by SIGINT, SIGTERM, SIGHUP or
SIGQUIT, it is removed.

Secrets are never given on the command line, which other users can see. Seeds, private keys and
skykeys are read from standard input or from the terminal. The key of a portal's API, and headers
such as cookies, are set in the [configuration](configuration.md) or in the environment.
"""


def sections(command: click.Command, context: click.Context) -> str:
    """Return the help of a command and of those below it."""
    text = f"\n## {context.command_path}\n\n```\n{command.get_help(context).strip()}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            if not below.hidden:
                text += sections(below, click.Context(below, context, info_name=name))
    return text


def reference() -> str:
    """Return the whole page."""
    return HEAD + sections(
        cli, click.Context(cli, info_name="skymount", terminal_width=80, **cli.context_settings)
    )


def settings_table() -> str:
    """Return what there is to say of each key of the configuration file."""
    rows = (
        f"| `{key}` | {_code(setting.flag)} | {_default(setting)} | {_meaning(setting)} |\n"
        for key, setting in SETTINGS.items()
    )
    return "".join(["| key | flag | default | meaning |\n", "|---|---|---|---|\n", *rows])


def _code(text: str) -> str:
    return f"`{text.replace('|', chr(92) + '|')}`" if text else ""


def _default(setting: Setting) -> str:
    value = setting.default
    if not (value or setting.off or isinstance(value, bool)):
        return setting.unset
    written = setting.written(value)
    return _code(written if isinstance(written, str) else json.dumps(written))


def _meaning(setting: Setting) -> str:
    return f"{setting.help} {setting.more}".strip()


def tables_table() -> str:
    """Return what there is to say of each key of a table of a portal."""
    rows = (
        f"| `{key}` | {'As above, for this portal.' if key in SETTINGS else _meaning(setting)} |\n"
        for key, setting in OF_ONE_PORTAL.items()
    )
    return "".join(["| key | meaning |\n", "|---|---|\n", *rows])


def with_tables(page: str) -> str:
    """Return docs/configuration.md with its tables as they have to be."""
    for table in (settings_table(), tables_table()):
        head = re.escape(table.partition("\n")[0])
        page = re.sub(rf"{head}\n(\|.*\n)*", table.replace("\\", r"\\"), page)
    return page


if __name__ == "__main__":
    made = reference()
    page = with_tables((DOCS / "configuration.md").read_text())
    (DOCS / "cli.md").write_text(made)
    (DOCS / "configuration.md").write_text(page)
    (DOCS / "config.toml").write_text(new_file(Config()))
