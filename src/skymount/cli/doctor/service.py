"""Checks of the unit of systemd, where one is installed."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from skymount.cli.doctor.finding import Finding, failure, ok, warning
from skymount.cli.user_units import UserUnits

_UNIT = "skymount@.service"
_TIMEOUT = 3.0  # seconds
_WITHOUT_SETUID = re.compile(
    r"^(NoNewPrivileges|RestrictSUIDSGID|PrivateDevices|SystemCallFilter|PrivateTmp"
    r"|Protect\w+)=(?!no$|false$|0$|$)",
    re.MULTILINE,
)
_START = re.compile(r"^ExecStart=(.+)", re.MULTILINE)
_PATH = re.compile(r"^Environment=\"?PATH=([^\"\n]+)", re.MULTILINE)


def check_unit(path: Path | None) -> Finding:
    """Whether the unit can start a mount; None: there is no unit."""
    subject = "systemd unit"
    if path is None:
        return ok(subject, "not installed; `skymount service install NAME` does that")
    text = path.read_text(errors="replace")
    if found := _WITHOUT_SETUID.search(text):
        return failure(subject, f"{path}: {found[1]}= keeps it from mounting", "remove that line")
    search = _PATH.search(text)
    places = search[1].replace("%h", os.path.expanduser("~")) if search else os.defpath
    program = _program(text)
    if shutil.which(program, path=places) is None:
        advice = "`skymount service install NAME` writes it anew"
        return failure(subject, f"{path}: there is no {program} (PATH is {places})", advice)
    return ok(subject, str(path))


def _program(text: str) -> str:
    """Return the program that a unit starts, by its path or its name."""
    command = _START.search(text)
    try:
        words = shlex.split(command[1]) if command else []
    except ValueError:
        words = []
    words = words[1:] if words[:1] == ["/usr/bin/env"] else words
    return words[0].replace("%%", "%") if words else "skymount"


def check_failed() -> Iterator[Finding]:
    """Units that have failed; nothing where there is no manager to ask."""
    command = ["systemctl", "--user", "list-units", "--failed", "--plain", "--no-legend"]
    try:
        done = subprocess.run(
            [*command, "skymount*"], capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return
    for line in done.stdout.splitlines():
        unit = line.split(" ")[0]
        advice = f"`journalctl --user -u {unit}` says why"
        yield warning("systemd unit", f"{unit} has failed", advice)


def checks() -> Iterator[Finding]:
    """Check the unit and what became of it."""
    yield check_unit(UserUnits.of_user().place(_UNIT))
    yield from check_failed()
