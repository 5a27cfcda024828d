"""The option --verbose, which all commands have."""

import click


def with_verbose(command: click.Command) -> click.Command:
    """Add ``--verbose`` to a command, or to all of a group, unless it has one of its own."""
    if isinstance(command, click.Group):
        for each in command.commands.values():
            with_verbose(each)
    elif not any("-v" in option.opts for option in command.params):
        text = "Log to standard error, also each request to a portal."
        names = ("-v", "--verbose")
        option = click.Option(
            names, is_flag=True, expose_value=False, callback=_begin_log, help=text
        )
        command.params.append(option)
    return command


def _begin_log(context: click.Context, parameter: click.Parameter, is_verbose: bool) -> None:
    if is_verbose:
        from skymount.daemon import log

        log.log_to_stderr("debug")
