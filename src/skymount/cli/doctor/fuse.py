"""Checks of what mounting needs: kernel, device, fusermount3, the right to, libfuse, limits."""

import ctypes
import errno
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from skymount.cli.doctor.finding import Finding, failure, ok, warning
from skymount.fs import obstacles
from skymount.fs.mountpoint import DEVICE, FUSERMOUNT
from skymount.fs.obstacles import CONF
from skymount.settings import Config

_OLDEST_KERNEL = (5, 10)  # of the releases that are tested
_BACKGROUND = 12  # reads that libfuse asks for
_MODULE = Path("/sys/module/fuse/parameters/max_user_bgreq")
_LIBRARY = re.compile(r"\S*/libfuse3\.so\S*")


def check_kernel(release: str) -> Finding:
    """Compare the release with what was tested."""
    found = re.match(r"(\d+)\.(\d+)", release)
    if found is None or (int(found[1]), int(found[2])) < _OLDEST_KERNEL:
        oldest = ".".join(map(str, _OLDEST_KERNEL))
        return warning("kernel", f"Linux {release} is older than what was tested ({oldest})")
    return ok("kernel", f"Linux {release}")


def check_device() -> Finding:
    """Open it, as a mount does."""
    return _found(DEVICE, obstacles.of_device()) or ok(DEVICE, "it can be opened")


def check_fusermount() -> Finding:
    """Whether it is there; `check_right` looks for what it may."""
    found = _found(FUSERMOUNT, obstacles.of_fusermount())
    return found or ok(FUSERMOUNT, shutil.which(FUSERMOUNT) or "")


def check_right() -> Finding:
    """Mount where nobody sees it; without the right to, look for what fusermount3 needs."""
    subject = "right to mount"
    if found := _found(subject, obstacles.of_right()):
        return found
    if obstacles.of_device() or obstacles.of_fusermount():
        return warning(subject, "not tried, because of what is said above")
    if not obstacles.may_mount():
        return ok(subject, "fusermount3 has it")
    try:
        is_tried = obstacles.try_mounting()
    except OSError as error:
        text = f"a mount to try it failed: {error.strerror}"
        if error.errno not in (errno.EPERM, errno.EACCES):
            return failure(subject, text)
        forbidden = obstacles.FORBIDDEN
        return failure(subject, f"{text}: {forbidden.text}", forbidden.advice)
    return ok(subject, "tried, where nobody sees it" if is_tried else "there, but not tried")


def _found(subject: str, obstacle: obstacles.Obstacle | None) -> Finding | None:
    return failure(subject, obstacle.text, obstacle.advice) if obstacle else None


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
    if obstacles.permits_allow_other():
        return ok(subject, f"set in {CONF}")
    if not config.allow_other:
        return ok(subject, f"not set in {CONF}, and not needed without allow_other")
    if os.geteuid() == 0:
        return ok(subject, f"not set in {CONF}, which root does not need")
    advice = f"`echo user_allow_other | sudo tee -a {CONF}`"
    return failure(subject, f"allow_other is set, but not this in {CONF}", advice)


def checks(config: Config) -> Iterator[Finding]:
    """Check all of them."""
    yield check_kernel(os.uname().release)
    yield check_device()
    yield check_fusermount()
    yield check_right()
    yield check_libfuse()
    yield check_background_limit(is_root=os.geteuid() == 0)
    yield check_allow_other(config)
