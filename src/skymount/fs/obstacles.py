"""Finds what keeps this process from mounting on any directory, and says what to do. Blocks."""

import ctypes
import errno
import fcntl
import os
import re
import shutil
import stat
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from skymount.errors import MountError, MountRefusedError
from skymount.fs.mountpoint import DEVICE, FUSERMOUNT

CONF = Path("/etc/fuse.conf")

_DEVICE_NUMBER = os.makedev(10, 229)
_STATUS = Path("/proc/self/status")
_UID_MAP = Path("/proc/self/uid_map")
_MOUNTS = Path("/proc/self/mounts")
_DEFAULT_MOUNT_MAX = 1000  # fusermount3's

# of <sys/mount.h>, <sched.h>, <linux/capability.h> and <linux/nsfs.h>
_MS_NOSUID, _MS_NODEV, _MS_REC, _MS_PRIVATE = 1 << 1, 1 << 2, 1 << 14, 1 << 18
_CLONE_NEWNS = 1 << 17
_CAP_SYS_ADMIN = 21
_NS_GET_USERNS = 0xB701

_IN_CONTAINER = "in a container pass `--device /dev/fuse --cap-add SYS_ADMIN`"
_REFUSED = re.compile(
    r"(mount|fsopen\(\w+\)|fsconfig CREATE) failed: (Operation not permitted|Permission denied)"
    r"|too many FUSE filesystems"
)


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What is wrong, and what to do about it."""

    text: str
    advice: str


FORBIDDEN = Obstacle(
    "seccomp or a security module such as AppArmor or SELinux forbids it",
    "in a container pass `--cap-add SYS_ADMIN --security-opt apparmor=unconfined`; elsewhere "
    "`sudo dmesg` may name the rule",
)


def check(*, allow_other: bool) -> None:
    """MountRefusedError if mounting need not be tried; MountError if `allow_other` is refused."""
    for subject, found in ((DEVICE, of_device()), (FUSERMOUNT, of_fusermount())):
        if found is not None:
            raise MountRefusedError(f"{subject}: {found.text}; {found.advice}")
    if allow_other and os.getuid() != 0 and not permits_allow_other():
        raise MountError(f"--allow-other needs the line user_allow_other in {CONF}")


def refusal(mountpoint: str, message: str) -> MountError:
    """Return the error for a mount that failed, with what libfuse and fusermount3 said of it."""
    if not _REFUSED.search(message):
        return MountError(f"{mountpoint}: {message}")
    found = of_right() or FORBIDDEN
    return MountRefusedError(f"{mountpoint}: {message}: {found.text}; {found.advice}")


def of_device(device: str = DEVICE) -> Obstacle | None:
    """Open it: in a container it may be there and be forbidden, or be something else."""
    try:
        descriptor = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return Obstacle("it is missing", f"`sudo modprobe fuse`, or {_IN_CONTAINER}")
    except OSError as error:
        if error.errno in (errno.ENODEV, errno.ENXIO):
            return Obstacle("the kernel has no FUSE", "`sudo modprobe fuse`")
        if not os.access(device, os.R_OK | os.W_OK):
            advice = f"let users in with `sudo chmod 666 {device}`, as most systems do"
            return Obstacle("you may not use it", advice)
        return Obstacle(f"it cannot be opened: {error.strerror}", _IN_CONTAINER)
    try:
        found = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    if stat.S_ISCHR(found.st_mode) and found.st_rdev == _DEVICE_NUMBER:
        return None
    return Obstacle(
        "something else is in its place, as where a container hides it",
        f"{_IN_CONTAINER}; elsewhere remove it and `sudo mknod -m 666 {device} c 10 229`",
    )


def of_fusermount() -> Obstacle | None:
    """It must be there; root needs it too, to unmount."""
    if shutil.which(FUSERMOUNT) is not None:
        return None
    advice = "install the package fuse3 (`sudo apt install fuse3`, `sudo dnf install fuse3`)"
    return Obstacle("it is missing", advice)


def permits_allow_other() -> bool:
    """Whether the machine lets users other than root pass allow_other."""
    return "user_allow_other" in _configuration()


def may_mount() -> bool:
    """Whether this process has the right to mount by itself, without fusermount3."""
    return _has_mount_table() and _has_capability(_text(_STATUS), "CapEff")


def of_right() -> Obstacle | None:
    """What takes the right to mount away: from this process, and from the fusermount3 it runs.

    These are fusermount3's checks, and the kernel's when it starts a setuid program. seccomp and
    security modules are not seen.
    """
    if not _has_mount_table():
        return Obstacle(
            "the mounts here belong to an outer user namespace",
            "leave this one, or take mounts along: `unshare --user --map-root-user --mount`",
        )
    status = _text(_STATUS)
    if _has_capability(status, "CapEff"):
        return None
    if not _has_capability(status, "CapBnd"):
        text = "the right to mount (CAP_SYS_ADMIN) is taken away here, from root too"
        return Obstacle(text, _IN_CONTAINER)
    if "\nNoNewPrivs:\t1\n" in status:
        return Obstacle(
            "no_new_privs keeps fusermount3 from getting its rights",
            "start this without NoNewPrivileges= (systemd) or `--security-opt no-new-privileges` "
            "(containers)",
        )
    return None if os.geteuid() == 0 else _of_setuid() or _of_mount_max()


def _of_setuid() -> Obstacle | None:
    helper = shutil.which(FUSERMOUNT)
    if helper is None:
        return None  # `of_fusermount` says so
    if not any(line.split()[0] == "0" for line in _text(_UID_MAP).splitlines()):
        return Obstacle(
            "this user namespace has no root, so fusermount3 has no more rights than you",
            "leave it, or map root: `unshare --map-root-user`",
        )
    if os.statvfs(helper).f_flag & os.ST_NOSUID:
        return Obstacle(
            f"{helper} lies on a file system that is mounted nosuid",
            "mount that one without nosuid, or mount as root",
        )
    found = os.stat(helper)
    if found.st_uid == 0 and found.st_mode & stat.S_ISUID:
        return None
    with suppress(OSError):
        if "security.capability" in os.listxattr(helper):  # which serves as well
            return None
    return Obstacle(
        f"{helper} is not setuid root, so only root can mount",
        f"`sudo chown root {helper} && sudo chmod u+s {helper}`, or install the package fuse3 "
        "again",
    )


def _of_mount_max() -> Obstacle | None:
    found = re.findall(r"^mount_max\s*=\s*(-?\d{1,9})", "\n".join(_configuration()), re.MULTILINE)
    limit = int(found[-1]) if found else _DEFAULT_MOUNT_MAX
    lines = _MOUNTS.read_bytes().split(b"\n")[:-1]  # the kernel writes a blank in a name as \040
    kinds = [line.split(b" ")[2].split(b".")[0] for line in lines]
    count = kinds.count(b"fuse")  # fusermount3 does not count fuseblk
    if limit < 0 or count < limit:
        return None
    return Obstacle(f"there are {count} FUSE mounts already", f"raise mount_max in {CONF}")


def _configuration() -> Iterable[str]:
    try:
        return [line.strip() for line in _text(CONF).splitlines()]
    except OSError:
        return []


def _text(path: Path) -> str:
    return path.read_text(errors="replace")  # the name of a process is any bytes


def _has_capability(status: str, kind: str) -> bool:
    """Whether CAP_SYS_ADMIN is in a set of /proc/self/status."""
    found = re.search(rf"^{kind}:\s+([0-9a-f]+)$", status, re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> _CAP_SYS_ADMIN & 1)


def _has_mount_table() -> bool:
    """Whether our mount namespace belongs to our user namespace: else no right counts there."""
    try:
        with open("/proc/self/ns/mnt", "rb", buffering=0) as namespace:
            os.close(fcntl.ioctl(namespace, _NS_GET_USERNS))
    except OSError as error:
        return error.errno != errno.EPERM  # a kernel without user namespaces
    return True


def try_mounting() -> bool:
    """Mount, in a mount namespace that only a thread of ours has and that ends with it.

    Returns False where there can be no such namespace; OSError when the mount is refused.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_mount_unseen).result()


def _mount_unseen() -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mount.argtypes = [*[ctypes.c_char_p] * 3, ctypes.c_ulong, ctypes.c_char_p]

    def mount(source: bytes | None, place: str, kind: bytes | None, flags: int, data: str) -> None:
        if libc.mount(source, os.fsencode(place), kind, flags, data.encode()):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    if libc.unshare(_CLONE_NEWNS):
        return False
    try:
        mount(None, "/", None, _MS_REC | _MS_PRIVATE, "")  # else the others would see it
    except OSError as error:
        if error.errno == errno.EINVAL:  # the root is no mount point: a chroot
            return False
        raise
    with open(DEVICE, "r+b", buffering=0) as device:
        owner = f"user_id={os.getuid()},group_id={os.getgid()}"
        options = f"fd={device.fileno()},rootmode=40000,{owner}"
        place = os.path.dirname(DEVICE)  # which is there
        mount(b"skymount", place, b"fuse.skymount", _MS_NOSUID | _MS_NODEV, options)
    return True
