"""``skymount doctor``: what on this machine keeps mounts from working."""

import sys

import click

from skymount.cli.options import config_option
from skymount.cli.output import emit, json_option


@click.command(short_help="Check this machine for what keeps mounts from working.")
@json_option
@config_option
@click.option("--name", metavar="NAME", help="Check with the table [mounts.NAME] too.")
def doctor(as_json: bool, config_file: str | None, name: str | None) -> None:
    """Check this machine: each line is ok, a warning or a failure with what to do.

    It checks the kernel, FUSE, the configuration, keys, proxies, portals (two requests to each),
    the cache, the ledger, mounts and the unit of systemd. Nothing is changed. Exit code 1 on a
    failure.

    \b
    Examples:
      skymount doctor
      skymount doctor --json | jq '.[] | select(.level != "ok")'
    """
    from dataclasses import asdict

    from skymount.cli.doctor.examination import examine
    from skymount.cli.doctor.finding import Level

    found = examine(config_file or "", name or "")
    emit([asdict(each) for each in found], as_json, [each.line for each in found])
    if any(each.level is Level.FAILURE for each in found):
        sys.exit(1)
