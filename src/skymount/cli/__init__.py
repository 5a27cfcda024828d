"""Finds the command, imports its module, runs it, and turns errors into messages and exit codes."""

import errno
import importlib
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import click

from skymount import __version__, process_hardening
from skymount.cli import standard_streams
from skymount.errors import (
    ConfigError,
    FrozenEntryError,
    MalformedError,
    MountRefusedError,
    NotFoundError,
    SkymountError,
    WrongTypeError,
)

COMMANDS = (
    *("mount", "umount", "status", "doctor", "upload", "publish"),
    *("download", "pin", "ls", "cat", "metadata", "hns"),
    *("registry", "db", "key", "skykey", "skylink", "cache", "config", "portal"),
    *("service", "completion"),
)

_MOUNT_HELPER = "mount-helper"  # hidden: programs call it
_ALL_COMMANDS = (*COMMANDS, _MOUNT_HELPER)

# Modules of `commands` that are not named after the command.
_MODULES = {
    "umount": "mount",
    "ls": "content",
    "cat": "content",
    "metadata": "content",
    "download": "copying.download",
    "pin": "copying.pin",
    "status": "inspection.status",
    "doctor": "inspection.doctor",
    "completion": "install.completion",
    "service": "install.service",
    "mount-helper": "install.mount_helper",
}

COMPLETION_VARIABLE = "_SKYMOUNT_COMPLETE"  # set by the scripts of `skymount completion`

_SUMMARY_LIMIT = 200  # characters

_DASHED = re.compile(r"-[\w-]{45}(?![\w=-])", re.ASCII)
"""The beginning of a skylink, with or without a path."""
_NO_OPTION = "\0"  # in no argument of a process

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NOT_FOUND = 3
EXIT_NO_MOUNTS = 4  # nothing can be mounted here
EXIT_INTERRUPTED = 130
EXIT_NO_READER = 141  # of our output; what a shell shows after SIGPIPE

ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""What ends a command as an interrupt does, so that it removes its temporary files."""

# What other programs call some of our options.
_NAMES_ELSEWHERE = {
    **dict.fromkeys(("--port", "--bind", "--address", "--addr", "--host"), "--listen"),
    **dict.fromkeys(("--dir", "--directory", "--data-dir", "--path", "--root"), "--data"),
    **dict.fromkeys(("--url", "--server", "--endpoint", "--gateway"), "--portal"),
    **dict.fromkeys(("--log", "--logfile"), "--log-file"),
    "--overwrite": "--force",
}

_COMMAND_OPTIONS = frozenset(
    {
        "-v",
        "--verbose",
        "--json",
        "--portal",
        "--dialect",
        "--timeout",
        "--user-agent",
        "--config",
        "--verify",
    }
)


@contextmanager
def _exiting_without_reader() -> Iterator[None]:
    """Exit with EXIT_NO_READER on a broken pipe; click would exit with 1."""
    try:
        yield
    except BrokenPipeError:
        sys.exit(EXIT_NO_READER)


class _LazyGroup(click.Group):
    """Imports a command when it is used, so that others' imports cost it nothing."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with _exiting_without_reader():  # of --help
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _exiting_without_reader():
            return super().invoke(ctx)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in _ALL_COMMANDS and not args[0].startswith("-"):
            from skymount.wording import resembling

            meant = resembling(args[0], COMMANDS)
            advice = f" Did you mean '{meant}'?" if meant else ""
            raise click.UsageError(f"No such command '{args[0]}'.{advice}", ctx)
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _ALL_COMMANDS:
            return None
        from skymount.cli.verbose_option import with_verbose

        name = _MODULES.get(cmd_name, cmd_name)
        module = importlib.import_module(f"skymount.cli.commands.{name}")
        found = getattr(module, cmd_name.replace("-", "_"))
        assert isinstance(found, click.Command)
        return _with_skylinks(_with_whole_summary(with_verbose(found)))


def _with_whole_summary(command: click.Command) -> click.Command:
    """Keep click from cutting off what completion says of a command."""
    command.short_help = command.get_short_help_str(limit=_SUMMARY_LIMIT)
    if isinstance(command, click.Group):
        for each in command.commands.values():
            _with_whole_summary(each)
    return command


def _with_skylinks(command: click.Command) -> click.Command:
    """Take what looks like a skylink as an argument, not as options, if it begins with a dash."""
    if isinstance(command, click.Group):
        for each in command.commands.values():
            _with_skylinks(each)
        return command
    make_parser = command.make_parser

    def make(context: click.Context) -> Any:
        parser = make_parser(context)
        parse = parser.parse_args

        def parse_args(args: list[str]) -> Any:
            found = parse([f"{_NO_OPTION}{arg}" if _DASHED.match(arg) else arg for arg in args])
            options, rest, order = found
            return (
                {name: _unmarked(value) for name, value in options.items()},
                _unmarked(rest),
                order,
            )

        parser.parse_args = parse_args  # type: ignore[method-assign]
        return parser

    command.make_parser = make  # type: ignore[assignment, method-assign]
    return command


def _unmarked(value: Any) -> Any:
    if isinstance(value, str):
        return value.removeprefix(_NO_OPTION)
    if isinstance(value, list | tuple):
        return type(value)(_unmarked(each) for each in value)
    return value


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="skymount", message="%(prog)s %(version)s")
def cli() -> None:
    """Mount a content portal as a directory.

    \b
    Examples:
      skymount config init --portal URL   name a portal, for all commands
      skymount mount ~/sky                mount; with a portal if none is there
      skymount upload site/               upload a directory, print its skylink
      ls ~/sky/skylinks/SKYLINK/          look at it
      skymount umount ~/sky               unmount

    Other users can see the command line, so it never takes secrets: set the key of a portal's API
    as api_key in the configuration file, or in SKYMOUNT_API_KEY.
    """
    _warn_of_foreign_home()


def _warn_of_foreign_home() -> None:
    """Warn root of using another user's home: files that root makes there lock that user out."""
    home = os.environ.get("HOME", "")
    with suppress(OSError):
        owner = os.stat(home).st_uid
        if os.geteuid() == 0 and owner != 0:
            from skymount.cli.output import warn

            warn(
                f"{home}: this home directory belongs to another user (uid {owner}), and root uses "
                "its configuration, keys and registry; with sudo use `sudo -H`"
            )


def main() -> None:
    """Run the command line; exit codes are listed in docs/cli.md."""
    standard_streams.open_closed()
    process_hardening.disable_core_dumps()
    for number in ENDING_SIGNALS:
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP
            signal.signal(number, _exit_on_signal)
    try:
        if os.environ.get(COMPLETION_VARIABLE, "").endswith("_complete"):
            _complete()
        _run()
    finally:
        standard_streams.flush_or_discard()


def _complete() -> NoReturn:
    """Print completions, and nothing else: all else would go into the line that is typed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    with suppress(Exception):
        cli.main([], "skymount", complete_var=COMPLETION_VARIABLE, standalone_mode=False)
    sys.exit()


def _exit_on_signal(number: int, _: object) -> None:
    """Raise SystemExit. What runs on trio handles signals itself, or is ended by them."""
    trio: Any = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_run():
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
    for each in ENDING_SIGNALS:  # a terminal's end and a shell may both send one
        signal.signal(each, signal.SIG_IGN)
    if not os.isatty(1):  # which may be full, and nobody reads
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(128 + number)


def _arguments() -> list[str]:
    """Return our arguments; those of mount(8) as those of the command that understands them.

    It calls /sbin/mount.skymount, a link to us, or through mount.fuse3 ``skymount SOURCE DIR -o
    OPTIONS``.
    """
    name, given = os.path.basename(sys.argv[0]), sys.argv[1:]
    as_by_fuse = given[2:3] == ["-o"] and given[0] not in COMMANDS and os.path.isabs(given[1])
    is_helper = name in ("mount.skymount", "mount.fuse.skymount") or as_by_fuse
    return [_MOUNT_HELPER, *given] if is_helper else given


def _run() -> None:
    try:
        arguments = _arguments()
        name = "skymount" if arguments[:1] == [_MOUNT_HELPER] else None  # not that of the link
        cli.main(arguments, name, complete_var=COMPLETION_VARIABLE, standalone_mode=False)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(EXIT_INTERRUPTED)
    except click.UsageError as error:
        _refuse(error)
    except click.ClickException as error:
        _fail(error.format_message(), error.exit_code)
    except SkymountError as error:
        _fail(str(error), _exit_code(error))
    except OSError as error:
        place = error.filename or ("standard output" if error.errno == errno.ENOSPC else "")
        _fail(": ".join(filter(None, (place, error.strerror or str(error)))), EXIT_FAILED)


def _refuse(error: click.UsageError) -> NoReturn:
    text = error.format_message()
    if isinstance(error, click.exceptions.NoArgsIsHelpError):  # of a group without a command
        error.show()
        sys.exit(error.exit_code)
    command = error.ctx.command_path if error.ctx else "skymount"
    in_group = error.ctx is not None and isinstance(error.ctx.command, click.Group)
    if isinstance(error, click.NoSuchOption) and in_group and error.option_name in _COMMAND_OPTIONS:
        text = f"{error.option_name} goes after the command"
    elif isinstance(error, click.NoSuchOption) and error.ctx:
        known = {name for parameter in error.ctx.command.params for name in parameter.opts}
        if (ours := _NAMES_ELSEWHERE.get(error.option_name)) in known:
            text = f"{error.message} Did you mean '{ours}'?"  # not only what is spelt alike
    stop = "" if text.endswith(("?", ".")) else "."
    _fail(f"{text}{stop} See `{command} --help`.", error.exit_code)


def _exit_code(error: SkymountError) -> int:
    wrong_use = isinstance(error, ConfigError | MalformedError | WrongTypeError)
    if wrong_use and not isinstance(error, FrozenEntryError):
        return EXIT_USAGE
    if isinstance(error, MountRefusedError):
        return EXIT_NO_MOUNTS
    return EXIT_NOT_FOUND if isinstance(error, NotFoundError) else EXIT_FAILED


def _fail(text: str, code: int) -> NoReturn:
    from skymount.wording import visible  # the text may be a portal's

    line = " ".join(text.split())
    with suppress(OSError):
        if _wants_json():
            import json

            click.echo(json.dumps({"error": line, "exit_code": code}), err=True)
        else:
            click.echo(f"skymount: {visible(line)}", err=True)
    sys.exit(code)


def _wants_json() -> bool:
    """Whether --json was given; also to a command that was not understood."""
    options = sys.argv[1:]
    return "--json" in (options[: options.index("--")] if "--" in options else options)
