"""The units of systemd for a user: where they come from, where they go, and what is enabled."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import skymount
from skymount.default_portal import listener_uid
from skymount.errors import ConfigError, SkymountError
from skymount.storage import atomic_file
from skymount.user_directories import user_directory

_MARK = "# Written by `skymount service install`, which writes it again unless it is changed: {}\n"
"""The first line of a file of ours, with a digest of the rest."""

_MOUNT_FILES = ("skymount@.service",)
_PORTAL_FILES = ("skymount-portal.socket", "skymount-portal.service")
ALL_FILES: tuple[str, ...] = (*_MOUNT_FILES, *_PORTAL_FILES)

_PACKAGED = ("/etc/systemd/user", "/usr/local/lib/systemd/user", "/usr/lib/systemd/user")
_COMMAND = "/usr/bin/env skymount"  # in the units: whatever their PATH has
_NAME = re.compile(r"[A-Za-z0-9_.:][A-Za-z0-9_.:-]{0,99}")
_DONE = ("Created symlink", "Removed ")  # what it did by itself, before it failed
_TIMEOUT = 60.0  # seconds that systemctl may take; it waits for units that it starts


@dataclass(frozen=True, slots=True)
class Service:
    """Units that belong together. `unit` is the one that is enabled and started."""

    unit: str
    files: tuple[str, ...]
    wanted_by: str

    @classmethod
    def of_mount(cls, name: str) -> "Service":
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"{name}: a service's name has 1 to 100 letters, digits, '.', '_', ':' and '-'; "
                "give the mount such a name in the configuration"
            )
        return cls(f"skymount@{name}.service", _MOUNT_FILES, "default.target")

    @classmethod
    def of_portal(cls) -> "Service":
        """Return the service of the portal, which is started by its socket."""
        return cls("skymount-portal.socket", _PORTAL_FILES, "sockets.target")


@dataclass(frozen=True, slots=True)
class UserUnits:
    """The directory of a user's units."""

    directory: Path

    @classmethod
    def of_user(cls) -> "UserUnits":
        return cls(user_directory("config", ConfigError, "systemd") / "user")

    def link(self, service: Service) -> Path:
        """Return the link that enables a service."""
        return self.directory / f"{service.wanted_by}.wants" / service.unit

    def place(self, file: str) -> Path | None:
        """Return where a unit file is installed, None if it is not."""
        for directory in (self.directory, *map(Path, _PACKAGED)):
            if (directory / file).exists():
                return directory / file
        return None

    def write(self, file: str) -> Path:
        """Install a unit file, unless a package or the user did; return where it is."""
        text = unit_text(file)
        own = self.directory / file
        if not own.exists() and text == _source(file):
            for directory in map(Path, _PACKAGED):
                if (directory / file).exists():
                    return directory / file
        if not own.exists() or self._is_ours(own, file):
            own.parent.mkdir(parents=True, exist_ok=True)
            atomic_file.replace(own.resolve(), _marked(text).encode(), mode=0o644)
        return own

    def enable(self, service: Service, unit: Path) -> None:
        """Enable a service by its link, as systemctl would."""
        link = self.link(service)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(unit)

    def taken_address(self, service: Service) -> str:
        """Return the address of a service's socket if some program listens there, or else ""."""
        path = self.place(service.unit)
        text = path.read_text(errors="replace") if path is not None else ""
        found = re.search(r"^ListenStream=(([0-9.]+):([0-9]{1,5}))$", text, re.MULTILINE)
        return found[1] if found and listener_uid(found[2], int(found[3])) is not None else ""

    def disable(self, service: Service) -> None:
        self.link(service).unlink(missing_ok=True)

    def enabled_mounts(self) -> list[Service]:
        links = sorted(self.directory.glob("default.target.wants/skymount@*.service"))
        return [Service(link.name, _MOUNT_FILES, "default.target") for link in links]

    def services(self) -> list[Service]:
        """Return the mounts that are enabled, and the portal if it is installed for this user."""
        portal = Service.of_portal()
        is_there = os.path.lexists(self.link(portal)) or (self.directory / portal.unit).exists()
        return [*self.enabled_mounts(), *([portal] if is_there else [])]

    def remove(self, files: Sequence[str]) -> list[Path]:
        """Remove those of our files that no enabled mount needs; return what was removed."""
        needed = _MOUNT_FILES if self.enabled_mounts() else ()
        found = [self.directory / file for file in files if file not in needed]
        found = [path for path in found if path.exists() and self._is_ours(path, path.name)]
        for path in found:
            path.unlink()
        return found

    @staticmethod
    def _is_ours(path: Path, file: str) -> bool:
        """Whether a file is as it was written or copied, not changed by the user."""
        text = path.read_text(errors="replace")
        return text in (_source(file), _marked(text.partition("\n")[2]))


def _marked(text: str) -> str:
    return _MARK.format(hashlib.sha256(text.encode()).hexdigest()[:16]) + text


def unit_text(file: str) -> str:
    """Return a unit that runs this installation of skymount."""
    text = _source(file)
    if _COMMAND not in text:
        return text
    program = _program()
    path = re.search(r"^Environment=PATH=(.*)$", text, re.MULTILINE)
    search = path[1].replace("%h", os.path.expanduser("~")) if path else os.defpath
    found = shutil.which("skymount", path=search)
    if found is not None and os.path.realpath(found) == os.path.realpath(program):
        return text
    quoted = str(program).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return text.replace(_COMMAND, f'"{quoted}"' if re.search(r"[\s'\"\\;]", quoted) else quoted)


def _program() -> Path:
    """Return the path of this installation by which it was called, as a later one has it too."""
    installed, called = Path(sys.prefix) / "bin/skymount", Path(sys.argv[0]).absolute()
    return called if os.path.realpath(called) == os.path.realpath(installed) else installed


def _source(file: str) -> str:
    """Return a unit as it is in the checkout or in the wheel."""
    checkout = Path(skymount.__file__).parents[2] / "systemd"
    installed = Path(sys.prefix) / "share/systemd/user"
    for directory in (checkout, installed):
        if (directory / file).is_file():
            return (directory / file).read_text()
    raise SkymountError(f"{installed / file} is missing: install skymount again")


def systemctl(*words: str) -> "subprocess.CompletedProcess[str]":
    """Run ``systemctl --user``; with exit code 127 if that cannot be done."""
    command = ["systemctl", "--user", *words]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_TIMEOUT
        )
    except FileNotFoundError:
        reason = "systemctl is missing"
    except subprocess.TimeoutExpired:
        reason = f"`{' '.join(command)}` did not end in {_TIMEOUT:.0f} s"
    return subprocess.CompletedProcess(command, 127, "", reason)


def reason_of(done: "subprocess.CompletedProcess[str]") -> str:
    """Return why a systemctl failed, on one line."""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(_DONE)]
    return lines[0] if lines else f"exit code {done.returncode}"
