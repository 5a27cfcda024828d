"""What scripts/man-pages DIR writes: the man pages, made from the help of the commands."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from scripts.cli_reference import HEAD
from skymount import __version__
from skymount.cli import cli

# Commands with a page that is called otherwise: section 8 has what mount(8) runs.
_PAGES = {"mount-helper": ("mount.skymount", 8)}


def pages() -> dict[str, str]:
    """Return the text of each page by its file name, such as skymount-mount.1."""
    context = click.Context(cli, info_name="skymount", terminal_width=80)
    found = {"skymount.1": _main_page(context)}
    for name in [*cli.list_commands(context), *_PAGES]:
        command = cli.get_command(context, name)
        assert command is not None
        title, section = _PAGES.get(name, (f"skymount-{name}", 1))
        below = click.Context(command, context, info_name=name, terminal_width=80)
        lines = [_head(title, section, command), *_body(command, below, "SH")]
        if isinstance(command, click.Group):
            lines += _commands_below(command, below)
        lines += [".SH SEE ALSO", ".BR skymount (1)"]
        found[f"{title}.{section}"] = "\n".join(lines) + "\n"
    return found


def _main_page(context: click.Context) -> str:
    lines = [_head("skymount", 1, cli), *_body(cli, context, "SH"), ".SH COMMANDS"]
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        lines += [".TP", f".BR skymount\\-{_roff(name)} (1)", _roff(_summary(command))]
    lines += [".SH NOTES", *_notes()]
    return "\n".join(lines) + "\n"


def _notes() -> Iterator[str]:
    """Yield what docs/cli.md says of all commands."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", HEAD).replace("`", "")
    for paragraph in text.strip().split("\n\n")[2:]:  # after the title and how the page is made
        yield from (".PP", _roff(" ".join(paragraph.split())))


def _commands_below(group: click.Group, context: click.Context) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if command.hidden:
            continue
        below = click.Context(command, context, info_name=name, terminal_width=80)
        yield f".SH {_roff(below.command_path.upper())}"
        yield from _body(command, below, "SS")
        if isinstance(command, click.Group):
            yield from _commands_below(command, below)


def _head(title: str, section: int, command: click.Command) -> str:
    # Without a date: the same source makes the same page.
    return "\n".join(
        [
            f'.TH {_roff(title.upper())} {section} "" "skymount {_roff(__version__)}" "skymount"',
            ".SH NAME",
            f"{_roff(title)} \\- {_roff(_summary(command).rstrip('.'))}",
        ]
    )


def _body(command: click.Command, context: click.Context, level: str) -> Iterator[str]:
    """Yield synopsis, description and options; `level` is the macro of their headings."""
    yield f".{level} SYNOPSIS"
    name = "mount.skymount" if context.info_name in _PAGES else context.command_path
    yield f".B {_roff(name)}"
    yield _roff(" ".join(command.collect_usage_pieces(context)))
    yield f".{level} DESCRIPTION"
    yield from _description(command.help or "")
    records = [each.get_help_record(context) for each in command.get_params(context)]
    options = [record for record in records if record is not None and record[1]]
    if options:
        yield f".{level} OPTIONS"
    for names, text in options:
        yield from (".TP", f".B {_roff(names)}", _roff(text))


def _description(text: str) -> Iterator[str]:
    """Yield paragraphs; click's mark for what must not be wrapped is a line with a backspace."""
    for paragraph in text.strip().split("\n\n"):
        lines = [line.rstrip() for line in paragraph.split("\n")]
        if lines[0].strip() == "\b":
            yield from (".PP", ".nf", *map(_roff, lines[1:]), ".fi")
        else:
            yield from (".PP", _roff(" ".join(" ".join(lines).split())))


def _summary(command: click.Command) -> str:
    return " ".join((command.help or "").strip().split("\n\n")[0].split())


def _roff(text: str) -> str:
    """Return text that roff prints as it is."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("~", "\\(ti").replace("^", "\\(ha")
    text = text.replace("`", "\\(ga").replace("'", "\\(aq")
    return f"\\&{text}" if text.startswith((".", "\\(aq")) else text


def write(directory: Path) -> list[Path]:
    """Write the pages; return their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, text in pages().items():
        paths.append(directory / name)
        paths[-1].write_text(text)
    return paths


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: scripts/man-pages DIRECTORY")
    write(Path(sys.argv[1]))
