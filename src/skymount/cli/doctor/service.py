"""Checks of the unit of systemd, where one is installed."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import platformdirs

from skymount.cli.doctor.finding import Finding, failure, ok, warning

_UNIT = "skymount@.service"
_TIMEOUT = 3.0  # seconds
_WITHOUT_SETUID = re.compile(
    r"^(NoNewPrivileges|RestrictSUIDSGID|PrivateDevices|SystemCallFilter|PrivateTmp"
    r"|Protect\w+)=(?!no$|false$|0$|$)",
    re.MULTILINE,
)
_PATH = re.compile(r"^Environment=\"?PATH=([^\"\n]+)", re.MULTILINE)


def unit_directories() -> list[Path]:
    """Return where the user's manager looks, the most important first."""
    own = platformdirs.user_config_path("systemd") / "user"
    return [own, *(Path(each) / "systemd/user" for each in ("/etc", "/usr/local/lib", "/usr/lib"))]


def check_unit(directories: Sequence[Path]) -> Finding:
    """Find the unit, and whether it can start a mount."""
    subject = "systemd unit"
    path = next((each / _UNIT for each in directories if (each / _UNIT).exists()), None)
    if path is None:
        return ok(subject, "not installed; docs/configuration.md says how")
    text = path.read_text(errors="replace")
    if found := _WITHOUT_SETUID.search(text):
        return failure(subject, f"{path}: {found[1]}= keeps it from mounting", "remove that line")
    search = _PATH.search(text)
    places = search[1].replace("%h", os.path.expanduser("~")) if search else os.defpath
    if shutil.which("skymount", path=places) is None:
        advice = 'link it there: `ln -s "$(command -v skymount)" ~/.local/bin/`'
        return failure(subject, f"{path}: there is no skymount on its PATH ({places})", advice)
    return ok(subject, str(path))


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
    yield check_unit(unit_directories())
    yield from check_failed()
