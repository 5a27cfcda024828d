"""Checks of what mounting needs: kernel, device, fusermount3, libfuse and its limits."""

import ctypes
import errno
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from skymount.cli.doctor.finding import Finding, failure, ok, warning
from skymount.config import Config

_OLDEST_KERNEL = (5, 10)  # of the releases that are tested
_BACKGROUND = 12  # reads that libfuse asks for
_DEVICE = Path("/dev/fuse")
_CONF = Path("/etc/fuse.conf")
_MODULE = Path("/sys/module/fuse/parameters/max_user_bgreq")
_IN_CONTAINER = "in a container pass `--device /dev/fuse --cap-add SYS_ADMIN`"
_LIBRARY = re.compile(r"\S*/libfuse3\.so\S*")


def check_kernel(release: str) -> Finding:
    """Compare the release with what was tested."""
    found = re.match(r"(\d+)\.(\d+)", release)
    if found is None or (int(found[1]), int(found[2])) < _OLDEST_KERNEL:
        oldest = ".".join(map(str, _OLDEST_KERNEL))
        return warning("kernel", f"Linux {release} is older than what was tested ({oldest})")
    return ok("kernel", f"Linux {release}")


def check_device(device: Path = _DEVICE) -> Finding:
    """Open it: in a container it may be there and be forbidden."""
    subject = str(device)
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        return failure(subject, "it is missing", f"`sudo modprobe fuse`, or {_IN_CONTAINER}")
    except OSError as error:
        if error.errno in (errno.ENODEV, errno.ENXIO):
            return failure(subject, "the kernel has no FUSE", "`sudo modprobe fuse`")
        if error.errno == errno.EACCES:
            return failure(subject, "you may not use it", f"`sudo chmod 666 {device}`")
        return failure(subject, f"it cannot be opened: {error.strerror}", _IN_CONTAINER)
    return ok(subject, "it can be opened")


def check_fusermount() -> Finding:
    """It has to be root's, and setuid, for other users."""
    name = "fusermount3"
    path = shutil.which(name)
    if path is None:
        advice = "install the package fuse3 (`sudo apt install fuse3`, `sudo dnf install fuse3`)"
        return failure(name, "it is missing", advice)
    if os.geteuid() == 0:
        return ok(name, f"{path} (root needs no setuid)")
    found = os.stat(path)
    if found.st_uid != 0 or not found.st_mode & stat.S_ISUID:
        advice = f"`sudo chown root {path} && sudo chmod u+s {path}`"
        return failure(name, f"{path} is not setuid root", advice)
    if os.statvfs(path).f_flag & os.ST_NOSUID:
        return failure(name, f"{path} lies on a file system that is mounted nosuid")
    if "NoNewPrivs:\t1" in Path("/proc/self/status").read_text():
        advice = "start this without no_new_privs (NoNewPrivileges= of systemd)"
        return failure(name, "setuid programs have no effect here", advice)
    return ok(name, f"{path}, setuid root")


def check_libfuse() -> Finding:
    """Load it, as a mount does."""
    try:
        import skymount.fs.fuse  # noqa: F401  # loads it
    except ImportError as error:
        advice = "install libfuse 3 (`sudo apt install libfuse3-3`), or skymount anew"
        return failure("libfuse", f"it cannot be loaded: {error}", advice)
    match = _LIBRARY.search(Path("/proc/self/maps").read_text())
    path = match[0] if match else "libfuse3.so.3"
    version = ctypes.CDLL(path).fuse_pkgversion
    version.restype = ctypes.c_char_p
    return ok("libfuse", f"{version().decode()} ({path})")


def check_background_limit(*, is_root: bool, parameter: Path = _MODULE) -> Finding:
    """The reads that the kernel sends at once (docs/semantics.md, R8)."""
    subject = "background limit"
    if is_root:
        return ok(subject, "a mount raises it to 256 reads at once where it may")
    try:
        limit = int(parameter.read_text())
    except (OSError, ValueError):
        return ok(subject, f"{_BACKGROUND} reads at once; only root can raise it")
    if limit < _BACKGROUND:
        advice = f"`echo 64 | sudo tee {parameter}`"
        return warning(subject, f"only {limit} reads at once for users other than root", advice)
    return ok(subject, f"{_BACKGROUND} reads at once; only root can raise it")


def check_allow_other(config: Config) -> Finding:
    """Whether allow_other works for users other than root."""
    subject = "user_allow_other"
    try:
        lines = _CONF.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    is_set = "user_allow_other" in (line.strip() for line in lines)
    if is_set:
        return ok(subject, f"set in {_CONF}")
    if not config.allow_other:
        return ok(subject, f"not set in {_CONF}, and not needed without allow_other")
    if os.geteuid() == 0:
        return ok(subject, f"not set in {_CONF}, which root does not need")
    advice = f"`echo user_allow_other | sudo tee -a {_CONF}`"
    return failure(subject, f"allow_other is set, but not this in {_CONF}", advice)


def checks(config: Config) -> Iterator[Finding]:
    """Check all of them."""
    yield check_kernel(os.uname().release)
    yield check_device()
    yield check_fusermount()
    yield check_libfuse()
    yield check_background_limit(is_root=os.geteuid() == 0)
    yield check_allow_other(config)
