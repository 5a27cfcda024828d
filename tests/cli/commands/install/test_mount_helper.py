"""How a line of fstab becomes a call of `skymount mount`."""

import os
import pwd
import subprocess
import sys

import pytest

from skymount.cli.commands.install.mount_helper import parse_call
from skymount.errors import ConfigError
from tests.skymount_process import Sandbox

GENERIC = "defaults,rw,suid,nodev,noauto,user=ann,nofail,_netdev,comment=systemd,x-a.b=c,X-mount.d"


def test_options_of_ours() -> None:
    call = parse_call("none", "/mnt", "name=home,portal=http://a,portal=http://b,allow_other")
    flags = ("--name", "home", "--portal", "http://a", "--portal", "http://b", "--allow-other")
    assert call.arguments == (*flags, "--", "/mnt")
    assert call.user == ""


def test_generic_options_are_understood() -> None:
    assert parse_call("skymount", "/mnt", GENERIC).arguments == ("--", "/mnt")
    assert parse_call("", "/mnt", "ro,noexec").arguments == (
        "-o",
        "ro",
        "-o",
        "noexec",
        "--",
        "/mnt",
    )


def test_every_option_for_all_file_systems_is_understood() -> None:
    """Those of mount(8), but for remount."""
    pairs = (
        "atime auto dev diratime exec iversion lazytime mand relatime strictatime suid symfollow"
    )
    both = [name for each in pairs.split() for name in (each, f"no{each}") if name != "noexec"]
    others = ["async", "sync", "dirsync", "group", "owner", "users", "silent", "loud"]
    assert parse_call("none", "/mnt", ",".join(both + others)).arguments == ("--", "/mnt")
    for sloppy in (False, True):
        with pytest.raises(ConfigError, match=r"remount: .* mount it again"):
            parse_call("none", "/mnt", "remount,ro", is_sloppy=sloppy)


def test_a_source_can_be_a_portal() -> None:
    assert parse_call("https://a", "/mnt", "").arguments == ("--portal", "https://a", "--", "/mnt")
    with pytest.raises(ConfigError, match="home: not a source; write none, or"):
        parse_call("home", "/mnt", "")


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(ConfigError, match="unknown mount option nmae=home, allow_other=1; known"):
        parse_call("none", "/mnt", "rw,nmae=home,allow_other=1")
    with pytest.raises(ConfigError, match="unknown mount option name=; known ones: config="):
        parse_call("none", "/mnt", "name=")
    assert parse_call("none", "/mnt", "nmae=home", is_sloppy=True).arguments == ("--", "/mnt")


def test_the_user_to_mount_as() -> None:
    assert parse_call("none", "/mnt", "setuid=ann").user == "ann"


def test_who_may_be_mounted_for(sandbox: Sandbox) -> None:
    said = sandbox.fail("mount-helper", "none", "mnt", "-o", "setuid=no one", code=2)
    assert said == "setuid=no one: there is no such user"


def test_a_check_mounts_nothing(sandbox: Sandbox) -> None:
    sandbox.succeed("mount-helper", "-f", "none", "/absent", "-o", "rw")
    said = sandbox.fail("mount-helper", "-f", "none", "/absent", "-o", "rw,bogus", code=2)
    assert said.startswith("unknown mount option bogus;")


def test_its_messages_name_a_command_that_works(sandbox: Sandbox) -> None:
    """Also when mount(8) calls it by its own name."""
    helper = sandbox.root / "mount.skymount"
    helper.write_text(
        f"#!{sys.executable}\nimport sys\nsys.argv[0] = __file__\n"
        "from skymount.__main__ import main\nmain()\n"
    )
    helper.chmod(0o755)
    done = sandbox.run(helper, "none")
    assert done.stderr == (
        "skymount: Missing argument 'DIRECTORY'. See `skymount mount-helper --help`.\n"
    )
    assert sandbox.run(helper, "--help").stdout.startswith("Usage: skymount mount-helper [OPTIONS]")


def test_a_user_who_cannot_run_the_interpreter(sandbox: Sandbox) -> None:
    """As where skymount is installed below /root."""
    if os.geteuid():
        pytest.skip("only root may mount for another user")
    nobody = pwd.getpwnam("nobody")
    try:
        subprocess.run(
            [sys.executable, "-c", ""], user=nobody.pw_uid, group=nobody.pw_gid, check=False
        )
    except PermissionError:
        pass
    else:
        pytest.skip("every user can run the interpreter")
    said = sandbox.fail("mount-helper", "none", "mnt", "-o", "setuid=nobody", code=2)
    assert said.startswith("setuid=nobody: this user cannot run /")
    assert said.endswith("skymount must be installed where the user may read it")
