"""``skymount mount-helper``, which mount(8) calls as /sbin/mount.skymount."""

import os
import pwd
import sys
from dataclasses import dataclass
from typing import Any

import click

from skymount.errors import ConfigError
from skymount.settings import SETTINGS

# Options of `skymount mount`, by their names here; `portal` can be repeated.
_OPTIONS = {
    option.removeprefix("--").replace("-", "_"): (option, type(each.default))
    for each in SETTINGS.values()
    for option in each.options
    if option.startswith("--") and option != "--mount-options"
}
_VALUES = {
    "config": "--config",
    "name": "--name",
    **{name: option for name, (option, kind) in _OPTIONS.items() if kind is not bool},
}
_FLAGS = {
    **{name: (option,) for name, (option, kind) in _OPTIONS.items() if kind is bool},
    "ro": ("-o", "ro"),
    "noexec": ("-o", "noexec"),
}
# What is for mount(8), for systemd, or holds (or cannot hold) for every mount of ours.
_IGNORED = frozenset(
    (
        *("defaults", "auto", "noauto", "nofail", "_netdev", "comment", "silent", "loud"),
        *("user", "nouser", "users", "owner", "group"),
        *("rw", "suid", "nosuid", "dev", "nodev", "exec", "async", "sync", "dirsync"),
        *("atime", "noatime", "diratime", "nodiratime", "relatime", "norelatime", "strictatime"),
        *("nostrictatime", "lazytime", "nolazytime", "iversion", "noiversion", "mand", "nomand"),
        *("symfollow", "nosymfollow"),  # its links lead to itself only
    )
)


@dataclass(frozen=True, slots=True)
class MountCall:
    """What mount(8) asks for."""

    arguments: tuple[str, ...]
    """For `skymount mount`."""
    user: str = ""
    """Who is to mount, if not who calls."""


def parse_call(source: str, directory: str, options: str, *, is_sloppy: bool = False) -> MountCall:
    """Translate a line of fstab; ConfigError names the options that are not known."""
    found = _of_source(source)
    user, unknown = "", []
    for option in filter(None, options.split(",")):
        key, _, value = option.partition("=")
        if key in _VALUES and value:
            found += [_VALUES[key], value]
        elif key == "setuid" and value:
            user = value
        elif option in _FLAGS:
            found += _FLAGS[option]
        elif key not in _IGNORED and not key.startswith(("x-", "X-")):
            unknown.append(option)
    if "remount" in options.split(","):
        raise ConfigError(
            "remount: options of a mount cannot be changed; unmount it and mount it again"
        )
    if unknown and not is_sloppy:
        known = ", ".join([*(f"{key}=" for key in (*_VALUES, "setuid")), *_FLAGS])
        raise ConfigError(
            f"unknown mount option {', '.join(unknown)}; known ones: {known}, and generic ones"
        )
    return MountCall((*found, "--", directory), user)


def _of_source(source: str) -> list[str]:
    if source.startswith(("http://", "https://")):
        return ["--portal", source]
    if source in ("", "none", "skymount"):
        return []
    raise ConfigError(
        f"{source}: not a source; write none, or the http or https address of a portal "
        "(the option name=NAME chooses a table [mounts.NAME] of the configuration)"
    )


@click.command()
@click.argument("source")
@click.argument("directory")
@click.option("-o", "options", multiple=True, metavar="OPTION,...", help="Mount options.")
@click.option("-t", "kind", metavar="TYPE", help="skymount or fuse.skymount; has no effect.")
@click.option("-s", "sloppy", is_flag=True, help="Ignore unknown mount options.")
@click.option("-f", "fake", is_flag=True, help="Only check the options.")
@click.option("-n", "no_table", is_flag=True, help="Has no effect.")
@click.option("-v", "verbose", is_flag=True, help="Has no effect.")
def mount_helper(
    source: str, directory: str, options: tuple[str, ...], sloppy: bool, fake: bool, **_: Any
) -> None:
    """Mount a portal for mount(8) and /etc/fstab.

    mount(8) calls this as /sbin/mount.skymount. SOURCE is none, or the address of a portal.

    Options, as of `skymount mount`: name=NAME, config=FILE, portal=URL (also several times),
    dialect=NAME, verify=POLICY, timeout=SECONDS, user_agent=TEXT, memory_cache=SIZE,
    disk_cache=SIZE, log_file=FILE, log_level=LEVEL, allow_other, no_read_ahead, ro, noexec.
    setuid=USER, for root only, mounts as that user, with that user's configuration. Generic options
    of mount(8) and those of systemd that begin with x- are understood, but for remount. Any other
    option is an error.

    \b
    Examples:
      mount -t skymount none /home/ann/sky -o setuid=ann,name=home
      mount -t fuse.skymount https://portal.example /mnt/sky -o allow_other
    Lines of /etc/fstab:
      none /home/ann/sky skymount setuid=ann,name=home,_netdev,x-systemd.automount 0 0
      none /home/ann/sky skymount user,noauto,name=home 0 0
    """
    from skymount.cli.commands.mount import mount

    call = parse_call(source, directory, ",".join(options), is_sloppy=sloppy)
    is_changed = bool(call.user) and _become(call.user, directory)
    if is_changed and not fake:  # a new program, so that the user may see which files it has open
        words = [sys.executable, "-P", "-m", "skymount", "mount", *call.arguments]
        try:
            os.execv(sys.executable, words)
        except OSError as error:
            raise ConfigError(
                f"setuid={call.user}: this user cannot run {sys.executable}: {error.strerror}; "
                "skymount must be installed where the user may read it"
            ) from None
    if not fake:
        mount.main(list(call.arguments), prog_name="skymount mount", standalone_mode=False)


def _become(name: str, directory: str) -> bool:
    """Take on the identity and the home of a user, who may mount over an automount of root's;
    return whether we were another one.
    """
    from skymount.fs.mountpoint import mounted_at, resolve

    try:
        user = pwd.getpwnam(name)
    except KeyError:
        raise ConfigError(f"setuid={name}: there is no such user") from None
    is_other = os.geteuid() != user.pw_uid
    if is_other:
        if os.geteuid() != 0:
            raise ConfigError(f"setuid={name}: only root may mount for another user")
        mounted = mounted_at(resolve(directory))
        if mounted is not None and mounted.is_automount:
            os.chown(directory, user.pw_uid, user.pw_gid)
        os.initgroups(name, user.pw_gid)
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
    for variable in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        os.environ.pop(variable, None)
    os.environ |= {"HOME": user.pw_dir, "USER": name, "LOGNAME": name}
    return is_other
