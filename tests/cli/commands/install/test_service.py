"""`skymount service`, with a systemctl that only writes down what it is told."""

import os
import socket
import sys
from pathlib import Path

import pytest

from tests.skymount_process import Sandbox

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture
def home(sandbox: Sandbox) -> Sandbox:
    """A home with a mount called home, and no systemctl."""
    sandbox.directory()
    sandbox.configure(f'[mounts.home]\nmountpoint = "{sandbox.root}/mnt"\n[mounts.bare]\n')
    return sandbox.with_env(PATH=str(sandbox.directory("bin")))


def units(box: Sandbox) -> Path:
    return Path(box.env["XDG_CONFIG_HOME"]) / "systemd/user"


def with_systemctl(box: Sandbox, answer: str = "exit 0") -> Path:
    """Add a systemctl; return the file in which it writes down what it is told."""
    told = box.root / "told"
    program = box.root / "bin/systemctl"
    program.write_text(f'#!/bin/sh\necho "$*" >>{told}\n{answer}\n')
    program.chmod(0o755)
    return told


def test_systemctl_enables_and_starts_it(home: Sandbox) -> None:
    told = with_systemctl(home)
    said = home.succeed("service", "install", "home", "--now")
    unit = units(home) / "skymount@.service"
    assert said == f"unit: {unit}\nenabled and started: skymount@home.service\n"
    commands = ["--user daemon-reload", "--user enable --now skymount@home.service"]
    assert told.read_text().splitlines() == commands


def test_the_unit_runs_this_very_installation(home: Sandbox) -> None:
    with_systemctl(home)
    home.succeed("service", "install", "home")
    lines = (units(home) / "skymount@.service").read_text().splitlines()
    assert lines[0].startswith("# Written by `skymount service install`, which writes it again ")
    (command,) = [line for line in lines if line.startswith("ExecStart=")]
    program = Path(command.removeprefix("ExecStart=").split()[0])
    assert program.is_absolute()
    assert command.endswith(" mount --foreground --name %i")


@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="these tests do not run in a .venv")
def test_the_unit_names_the_path_that_was_called(home: Sandbox, tmp_path: Path) -> None:
    """`.venv` is a link, which later leads to another environment."""
    with_systemctl(home)
    link = tmp_path / "venv"
    link.symlink_to(sys.prefix)
    assert home.run(link / "bin/skymount", "service", "install", "home").returncode == 0
    unit = (units(home) / "skymount@.service").read_text()
    assert f"\nExecStart={link}/bin/skymount mount " in unit


def test_a_program_that_the_unit_finds_is_not_named(home: Sandbox) -> None:
    """So that it can be replaced by another version."""
    with_systemctl(home)
    home.succeed("service", "install", "home")
    unit = units(home) / "skymount@.service"
    program = unit.read_text().partition("ExecStart=")[2].split()[0]
    link = Path(home.env["HOME"]) / ".local/bin/skymount"
    link.parent.mkdir(parents=True)
    link.symlink_to(program)
    home.succeed("service", "install", "home")
    assert "ExecStart=/usr/bin/env skymount mount" in unit.read_text()


def test_without_systemd_it_is_enabled_by_a_link(home: Sandbox) -> None:
    done = home.skymount("service", "install", "home")
    link = units(home) / "default.target.wants/skymount@home.service"
    assert done.returncode == 0
    assert done.stdout.splitlines()[1] == f"enabled: {link}"
    assert done.stderr == (
        "skymount: warning: systemd --user cannot be reached here: systemctl is missing; "
        "skymount@home.service starts at the next login\n"
    )
    assert os.readlink(link) == str(units(home) / "skymount@.service")
    assert home.skymount("service", "status", "home").stdout.splitlines() == [
        f"unit: {units(home) / 'skymount@.service'}",
        "enabled: yes",
        "state: unknown; systemd --user cannot be reached here: systemctl is missing",
    ]


def test_it_cannot_be_started_without_systemd(home: Sandbox) -> None:
    with_systemctl(home, "echo Failed to connect to bus: No medium found >&2; exit 1")
    done = home.skymount("service", "install", "home", "--now")
    assert done.returncode == 1
    assert done.stderr == (
        "skymount: skymount@home.service is enabled, but not started: systemd --user cannot be "
        "reached here: Failed to connect to bus: No medium found; it starts at the next login\n"
    )


def test_a_start_that_fails(home: Sandbox) -> None:
    with_systemctl(home, 'case "$*" in *enable*) echo Job failed. >&2; exit 1; esac')
    said = home.fail_of_many_lines("service", "install", "home", "--now")
    assert said.startswith("skymount@home.service: Job failed.; see `journalctl --user -u ")


def test_a_socket_whose_address_is_taken(home: Sandbox) -> None:
    """By the portal of a mount, most likely."""
    failure = "echo Created symlink. >&2; echo Job failed. >&2; exit 1"
    with_systemctl(home, f'case "$*" in *enable*) {failure}; esac')
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        socket_unit = units(home) / "skymount-portal.socket"
        socket_unit.parent.mkdir(parents=True)
        socket_unit.write_text(f"[Socket]\nListenStream={address}\n")
        done = home.skymount("service", "install", "--portal", "--now")
        assert done.returncode == 1
        assert f"not started: another program listens at {address}. If that is a" in done.stderr
    done = home.skymount("service", "install", "--portal", "--now")
    assert "skymount-portal.socket: Job failed.; see `journalctl" in done.stderr


def test_remove_leaves_the_unit_to_other_mounts(home: Sandbox) -> None:
    home.configure('[mounts.home]\nmountpoint = "/"\n[mounts.work]\nmountpoint = "/"\n')
    for name in ("home", "work"):
        assert home.skymount("service", "install", name).returncode == 0
    unit = units(home) / "skymount@.service"
    assert home.succeed("service", "remove", "home") == "disabled: skymount@home.service\n"
    assert unit.exists()
    said = home.succeed("service", "remove", "work")
    assert said == f"disabled: skymount@work.service\nremoved: {unit}\n"
    assert not any(path.is_file() for path in units(home).rglob("*"))
    assert home.fail("service", "remove", "work") == "skymount@work.service is not installed"


def test_all_can_be_removed_at_once(home: Sandbox) -> None:
    """Before skymount is uninstalled; what runs is stopped, and nothing of ours stays."""
    home.configure('[mounts.home]\nmountpoint = "/"\n[mounts.work]\nmountpoint = "/"\n')
    for name in ("home", "work", "--portal"):
        assert home.skymount("service", "install", name).returncode == 0
    told = with_systemctl(home)
    said = home.succeed("service", "remove", "--all", "--now")
    enabled = ["skymount@home.service", "skymount@work.service", "skymount-portal.socket"]
    files = ["skymount@.service", "skymount-portal.socket", "skymount-portal.service"]
    assert said.splitlines() == [
        *(f"disabled: {unit}" for unit in enabled),
        *(f"removed: {units(home) / file}" for file in files),
    ]
    assert told.read_text().splitlines() == [
        *(f"--user disable --now {unit}" for unit in enabled),
        "--user daemon-reload",
    ]
    assert not any(path.is_file() for path in units(home).rglob("*"))


def test_all_may_be_none(home: Sandbox) -> None:
    """Then it is no error; a unit that is enabled for no mount goes too."""
    assert home.succeed("service", "remove", "--all") == ""
    home.skymount("service", "install", "home")
    (units(home) / "default.target.wants/skymount@home.service").unlink()
    said = home.succeed("service", "remove", "--all")
    assert said == f"removed: {units(home) / 'skymount@.service'}\n"
    assert "--portal, or --all" in home.fail("service", "remove", "home", "--all", code=2)


def test_a_unit_that_the_user_changed_stays(home: Sandbox) -> None:
    with_systemctl(home)
    unit = units(home) / "skymount@.service"
    unit.parent.mkdir(parents=True)
    unit.write_text("[Service]\nExecStart=/bin/true\n")
    home.succeed("service", "install", "home")
    home.succeed("service", "remove", "home")
    assert unit.read_text() == "[Service]\nExecStart=/bin/true\n"


def test_a_line_that_the_user_added_stays(home: Sandbox) -> None:
    with_systemctl(home)
    home.succeed("service", "install", "home")
    unit = units(home) / "skymount@.service"
    changed = unit.read_text() + "MemoryMax=3G\n"
    unit.write_text(changed)
    home.succeed("service", "install", "home")
    home.succeed("service", "remove", "home")
    assert unit.read_text() == changed


def test_a_copy_of_the_unit_from_the_checkout_is_not_a_change(home: Sandbox) -> None:
    with_systemctl(home)
    unit = units(home) / "skymount@.service"
    unit.parent.mkdir(parents=True)
    unit.write_text((ROOT / "systemd/skymount@.service").read_text())
    home.succeed("service", "remove", "home")
    assert not unit.exists()


def test_the_portal_is_started_by_its_socket(home: Sandbox) -> None:
    told = with_systemctl(home)
    home.succeed("service", "install", "--portal", "--now")
    assert told.read_text().splitlines()[1] == "--user enable --now skymount-portal.socket"
    names = {path.name for path in units(home).iterdir()}
    assert names == {"skymount-portal.socket", "skymount-portal.service"}
    home.succeed("service", "remove", "--portal", "--now")
    assert not list(units(home).iterdir())


def test_what_it_could_not_stop_and_why(home: Sandbox) -> None:
    """The reason is not what systemctl did before it failed."""
    home.skymount("service", "install", "home")
    with_systemctl(
        home,
        "echo Removed /home/me/.config/systemd/user/default.target.wants/x. >&2; "
        "echo Failed to connect to bus: No medium found >&2; exit 1",
    )
    assert home.skymount("service", "remove", "home", "--now").stderr == (
        "skymount: warning: skymount@home.service was not stopped: systemd --user cannot be "
        "reached here: Failed to connect to bus: No medium found\n"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["other"], "no table [mounts.other]"),
        (["bare"], "[mounts.bare] has no mountpoint: add a line like mountpoint = '~/sky'"),
        (["a/b"], "a/b: a service's name has 1 to 100 letters, digits, "),
        ([], "give the NAME of a table [mounts.NAME], or --portal."),
        (["home", "--portal"], "give the NAME of a table [mounts.NAME], or --portal."),
    ],
)
def test_what_cannot_be_installed(home: Sandbox, arguments: list[str], said: str) -> None:
    assert said in home.fail("service", "install", *arguments, code=2)
    assert not units(home).exists()


def test_status_of_what_is_not_installed(home: Sandbox) -> None:
    done = home.skymount("service", "status", "home")
    assert done.returncode == 3
    assert done.stdout.startswith("unit: skymount@.service is not installed\nenabled: no\nstate: ")
