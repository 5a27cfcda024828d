"""``skymount service``: mounts and the portal as services of the user, under systemd."""

import os
import sys
from typing import TYPE_CHECKING

import click

from skymount.cli import EXIT_NOT_FOUND, completion
from skymount.cli.output import warn
from skymount.errors import ConfigError, SkymountError

if TYPE_CHECKING:
    from skymount.cli.user_units import Service

_NAME = click.argument("name", required=False, shell_complete=completion.mount_names)
_PORTAL = click.option("--portal", "is_portal", is_flag=True, help="The portal on this machine.")
_OUT_OF_REACH = "systemd --user cannot be reached here"


@click.group()
def service() -> None:
    """Mount at every login, as a service of systemd.

    \b
    Examples:
      skymount service install home --now
      skymount service status home
      skymount service remove home --now
    """


def _chosen(name: str | None, is_portal: bool) -> "Service":
    from skymount.cli.user_units import Service

    if is_portal == bool(name):
        raise click.UsageError("give the NAME of a table [mounts.NAME], or --portal")
    return Service.of_portal() if is_portal else Service.of_mount(name or "")


@service.command()
@_NAME
@_PORTAL
@click.option("--now", is_flag=True, help="Start it, too.")
def install(name: str | None, is_portal: bool, now: bool) -> None:
    """Mount [mounts.NAME] of the configuration at every login.

    Without systemd within reach (no session, as after su or in a container) the files are written
    all the same, and count from the next login on. `loginctl enable-linger` makes systemd start
    your services with the machine, without a login.

    \b
    Examples:
      skymount service install home --now
      skymount service install --portal --now
    """
    from skymount.cli.user_units import UserUnits, reason_of, systemctl

    chosen = _chosen(name, is_portal)
    if name:
        _check_mount(name)
    units = UserUnits.of_user()
    paths = [units.write(file) for file in chosen.files]
    for path in paths:
        click.echo(f"unit: {path}")
    reached = systemctl("daemon-reload")
    if reached.returncode:
        units.enable(chosen, paths[0])
        click.echo(f"enabled: {units.link(chosen)}")
        if now:
            raise SkymountError(
                f"{chosen.unit} is enabled, but not started: {_OUT_OF_REACH}: "
                f"{reason_of(reached)}; it starts at the next login"
            )
        warn(f"{_OUT_OF_REACH}: {reason_of(reached)}; {chosen.unit} starts at the next login")
        return
    done = systemctl("enable", *(["--now"] if now else []), chosen.unit)
    if done.returncode and (address := units.taken_address(chosen)):
        raise SkymountError(
            f"{chosen.unit} is enabled, but not started: another program listens at {address}. If "
            "that is a mount's own portal, unmount it, repeat this command, and mount again"
        )
    if done.returncode:
        raise SkymountError(
            f"{chosen.unit}: {reason_of(done)}; see `journalctl --user -u {chosen.unit}`"
        )
    click.echo(f"enabled{' and started' if now else ''}: {chosen.unit}")


def _check_mount(name: str) -> None:
    """ConfigError unless the configuration has what the unit needs."""
    from skymount.cli.options import load_settings

    mountpoint = os.path.expanduser(load_settings(name=name).mountpoint)
    if not mountpoint:
        raise ConfigError(
            f"[mounts.{name}] has no mountpoint: add a line like mountpoint = '~/sky'"
        )
    if not os.path.lexists(mountpoint):
        warn(f"{mountpoint}: no such directory; make it with `mkdir -p {mountpoint}`")


@service.command()
@_NAME
@_PORTAL
@click.option("--all", "is_all", is_flag=True, help="All mounts, and the portal.")
@click.option("--now", is_flag=True, help="Stop it, too.")
def remove(name: str | None, is_portal: bool, is_all: bool, now: bool) -> None:
    """Mount [mounts.NAME] at login no longer.

    \b
    Examples:
      skymount service remove home --now
      skymount service remove --all --now
    """
    from skymount.cli.user_units import ALL_FILES, UserUnits, reason_of, systemctl

    units = UserUnits.of_user()
    if is_all:
        if name or is_portal:
            raise click.UsageError("give a NAME, --portal, or --all")
        services, files = units.services(), ALL_FILES
    else:
        chosen = _chosen(name, is_portal)
        if not any(units.place(file) for file in chosen.files):
            raise click.ClickException(f"{chosen.unit} is not installed")
        services, files = [chosen], chosen.files
    for each in services:
        done = systemctl("disable", *(["--now"] if now else []), each.unit)
        if done.returncode and now:
            warn(f"{each.unit} was not stopped: {_OUT_OF_REACH}: {reason_of(done)}")
        units.disable(each)
        click.echo(f"disabled: {each.unit}")
    for path in units.remove(files):
        click.echo(f"removed: {path}")
    if services:
        systemctl("daemon-reload")


@service.command()
@_NAME
@_PORTAL
def status(name: str | None, is_portal: bool) -> None:
    """Show whether a service is installed, enabled and running.

    The exit code is 0 if it is installed, and 3 otherwise. `skymount status` says how mounts are
    doing.

    \b
    Example:
      skymount service status home
    """
    from skymount.cli.user_units import UserUnits, reason_of, systemctl

    chosen = _chosen(name, is_portal)
    units = UserUnits.of_user()
    places = [units.place(file) for file in chosen.files]
    for file, path in zip(chosen.files, places, strict=True):
        click.echo(f"unit: {path or f'{file} is not installed'}")
    click.echo(f"enabled: {'yes' if os.path.lexists(units.link(chosen)) else 'no'}")
    done = systemctl("is-active", chosen.unit)
    state = done.stdout.strip()
    click.echo(f"state: {state or f'unknown; {_OUT_OF_REACH}: {reason_of(done)}'}")
    if None in places:
        sys.exit(EXIT_NOT_FOUND)
