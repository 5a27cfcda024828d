"""Checks a mount point, finds out what is mounted there, and unmounts. Blocks."""

import errno
import fcntl
import hashlib
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from skymount import file_permissions
from skymount.errors import MountError, StorageError
from skymount.user_directories import user_directory

DEVICE = "/dev/fuse"
FUSERMOUNT = "fusermount3"
FUSE_TYPE = "fuse.skymount"  # which indexers can be told to skip (PRUNEFS)

_TURN_LIMIT = 10.0  # seconds to wait for others that mount
_TURN_POLL = 0.02  # seconds
_STATFS_TIMEOUT = 2.0  # seconds that a daemon may take to answer
_MAX_SYMLINKS = 40  # the kernel's limit

_USER_ID = re.compile(r"\buser_id=(\d+)")
_UIDS = re.compile(r"^Uid:\s+(.+)$", re.MULTILINE)
_CONNECTION = re.compile(r"^fuse_connection:\s+(\d+)$", re.MULTILINE)
_OCTAL = re.compile(r"\\([0-7]{3})")  # mountinfo's escapes
_TABLE = "/proc/self/mountinfo"


@dataclass(frozen=True, slots=True)
class MountInfo:
    """A mount, by its line in mountinfo."""

    kind: str
    source: str
    user_id: int | None = None  # known for FUSE mounts
    connection: str = field(default="", compare=False)  # its number, which is the device number

    @property
    def is_ours(self) -> bool:
        return self.kind == FUSE_TYPE

    @property
    def is_automount(self) -> bool:
        """Whether it waits for what is to be mounted over it (x-systemd.automount)."""
        return self.kind == "autofs"

    def check_owner(self, path: str) -> None:
        """MountError when it is another user's, unless we are root."""
        if self.user_id is not None and os.geteuid() not in (0, self.user_id):
            raise MountError(f"{path}: the user with id {self.user_id} has mounted there, not you")


def mounted_at(path: str, table: str = _TABLE) -> MountInfo | None:
    """Return what is mounted at exactly this absolute path, the topmost if several are.

    Read from the kernel's table: `os.path.ismount` cannot tell once the daemon is dead.
    """
    return _mount_table(table).get(path)


def mount_around(path: str, table: str = _TABLE) -> tuple[str, MountInfo] | None:
    """Return where the mount of ours is that an absolute path leads into, below its root.

    Stats nothing in it.
    """
    mounts = _mount_table(table)
    for place in reversed(Path(path).parents):
        found = resolve(str(place))
        if found in mounts and mounts[found].is_ours:
            return found, mounts[found]
    return None


def mounts_of(user_id: int, table: str = _TABLE) -> dict[str, MountInfo]:
    """Return the mounts of skymount by a user, by their paths."""
    mounts = _mount_table(table).items()
    return {path: each for path, each in mounts if each.is_ours and each.user_id == user_id}


def _mount_table(path: str) -> dict[str, MountInfo]:
    """Return the topmost mount at each path."""
    found = {}
    with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as table:
        for line in table:
            fields = line.split(" ")
            place = _OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[4])
            kind, source, options = fields[fields.index("-") + 1 :][:3]
            user = _USER_ID.search(options)
            number = fields[2].partition(":")[2]
            found[place] = MountInfo(kind, source, int(user[1]) if user else None, number)
    return found


@dataclass(frozen=True, slots=True)
class OtherMount:
    """A further mount of a file system: a bind mount, or a copy in another mount namespace."""

    path: str
    pid: int = 0  # a process of that mount namespace; 0 for our own

    def __str__(self) -> str:
        if not self.pid:
            return f"at {self.path}"
        return f"in the mount namespace of process {self.pid}"


def all_mounts_of(mounted: MountInfo) -> set[OtherMount]:
    """Return where else, and where, a mount is: in all visible mount namespaces."""
    return {place for place, each in all_mounts() if each.connection == mounted.connection}


def all_mounts() -> Iterator[tuple[OtherMount, MountInfo]]:
    """Yield the mounts of ours in our mount namespace, and in those of all visible processes."""
    seen = set[int]()
    for pid in (0, *sorted(int(each) for each in os.listdir("/proc") if each.isdecimal())):
        process = f"/proc/{pid or 'self'}"
        with suppress(OSError):  # it has ended
            namespace = _namespace_of(process)
            if namespace in seen:
                continue
            if namespace is not None:
                seen.add(namespace)
            for path, each in _mount_table(f"{process}/mountinfo").items():
                if each.is_ours:
                    yield OtherMount(path, pid), each


def _namespace_of(process: str) -> int | None:
    """Return the number of a process's mount namespace; None if we may not know it."""
    try:
        return os.stat(f"{process}/ns/mnt").st_ino
    except PermissionError:
        return None


def is_in_our_namespace(pid: int) -> bool:
    """Whether a process has the same mount namespace as this one."""
    return _namespace_of(f"/proc/{pid}") == _namespace_of("/proc/self")


def is_connected(mounted: MountInfo) -> bool:
    """Whether the kernel still has a connection to the daemon: somebody has it mounted, who may be
    invisible here. Tells nothing without the file system of the kernel's connections.
    """
    return os.path.isdir(f"/sys/fs/fuse/connections/{mounted.connection}")


def daemons_of(mounted: MountInfo) -> list[int]:
    """Return the processes that serve a mount. Before Linux 6.17 also those that serve another
    mount of the same user.
    """
    pids = [int(each) for each in os.listdir("/proc") if each.isdecimal()]
    return [pid for pid in pids if is_served_by(mounted, pid)]


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped, by a signal or a debugger."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] in ("T", "t")


def is_served_by(mounted: MountInfo, pid: int) -> bool:
    """Whether a process has all user ids of the one who mounted, and serves the mount.

    Linux before 6.17 does not say which connection a descriptor is for; then any counts.
    """
    process = Path(f"/proc/{pid}")
    try:
        users = _UIDS.search((process / "status").read_text(errors="replace"))
        if users is None or set(users[1].split()) != {str(mounted.user_id)}:
            return False
        descriptors = os.listdir(process / "fd")
    except OSError:
        return False
    return any(_is_connection(process, each, mounted.connection) for each in descriptors)


def _is_connection(process: Path, descriptor: str, number: str) -> bool:
    """Whether a descriptor of a process is the daemon's end of a FUSE connection.

    Does not stat the file behind it, which may be on a mount that does not answer.
    """
    try:
        if os.readlink(process / "fd" / descriptor) != DEVICE:
            return False
        found = _CONNECTION.search((process / "fdinfo" / descriptor).read_text())
    except OSError:
        return False
    return found is None or found[1] == number


def resolve(text: str) -> str:
    """Return the absolute path of a mount point.

    Does not stat the last element: if that is a mount that does not answer, stat never returns.
    """
    path = Path(os.path.expanduser(text))
    for _ in range(_MAX_SYMLINKS):
        if path.name in ("", ".."):
            return str(path.resolve())
        path = path.parent.resolve() / path.name
        try:
            path = path.parent / os.readlink(path)
        except OSError:
            break
    return str(path)


def is_stale(path: str) -> bool:
    """Whether the daemon of a mount is gone; a busy one that does not answer counts as there.

    Uses statfs, which always reaches the daemon; stat is answered from the kernel's cache.
    """
    errors: list[int | None] = []

    def ask() -> None:
        try:
            os.statvfs(path)
        except OSError as error:
            errors.append(error.errno)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_STATFS_TIMEOUT)
    return bool({errno.ENOTCONN, errno.ECONNABORTED}.intersection(errors))


@contextmanager
def turn(path: str) -> Iterator[Callable[[], None]]:
    """Let one process at a time find a mount point free and mount there; yields what ends the turn.

    It is a lock of a file of this user: what is at the mount point itself may not answer, and a
    lock of the directory above may be somebody else's. Without a place for the file nobody waits.
    """
    lock = -1
    with suppress(OSError, StorageError):
        lock = _open_lock(path)
        deadline = time.monotonic() + _TURN_LIMIT
        while time.monotonic() < deadline:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(_TURN_POLL)

    def end() -> None:
        nonlocal lock
        if lock >= 0:
            os.close(lock)
            lock = -1

    try:
        yield end
    finally:
        end()


def _open_lock(path: str) -> int:
    directory = user_directory("state", StorageError)
    for each in (directory, directory / "mounting"):
        file_permissions.make_directory(each)
    name = hashlib.blake2b(os.fsencode(path), digest_size=16).hexdigest()
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(directory / "mounting" / name, flags, 0o600)


def check(path: str, table: str = _TABLE, *, clear: bool = True) -> bool:
    """MountError unless one can mount there; returns whether a stale mount was cleared.

    Without `clear` a stale mount is left where it is. Only whose turn it is may clear one: it
    might be another process's new mount by then.
    """
    mounted = mounted_at(path, table)
    cleared = False
    if mounted is not None and not mounted.is_automount:
        if not mounted.is_ours:
            raise MountError(
                f"{path}: {mounted.kind} ({mounted.source}) is mounted there; "
                "choose another directory, or unmount that first"
            )
        mounted.check_owner(path)
        if not is_stale(path):
            raise MountError(
                f"{path}: skymount is mounted there already; see it with `ls {path}`, "
                f"end it with `skymount umount {path}`"
            )
        if not clear:
            return False
        unmount(path, lazy=True)
        cleared = True
    _check_directory(path)
    return cleared


def _check_directory(path: str) -> None:
    try:
        with os.scandir(path) as entries:
            occupied = any(True for _ in entries)
    except FileNotFoundError:
        raise MountError(f"{path}: no such directory; make it with `mkdir -p {path}`") from None
    except NotADirectoryError:
        raise MountError(f"{path}: not a directory") from None
    except OSError as error:
        raise MountError(f"{path}: {error.strerror}") from None
    if occupied:
        raise MountError(f"{path}: the directory is not empty; choose or make an empty one")
    if not os.access(path, os.W_OK):
        raise MountError(f"{path}: a mount point must be writable by you; choose one of your own")


def unmount(path: str, *, lazy: bool = False) -> None:
    """Unmount; MountError when that is refused."""
    command = [FUSERMOUNT, "-uz" if lazy else "-u", "--", path]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except FileNotFoundError:
        raise MountError(f"{FUSERMOUNT} is missing: install the package fuse3") from None
    except subprocess.TimeoutExpired:
        raise MountError(f"{path}: unmounting did not end in 30 s") from None
    if done.returncode == 0 or mounted_at(path) is None:
        return
    message = done.stderr.strip()
    if "busy" in message:
        raise MountError(
            f"{path}: it is in use; close what uses it (`fuser -vm {path}` lists it), "
            f"or detach it with `skymount umount --lazy {path}`"
        )
    raise MountError(f"{path}: {message or 'unmounting failed'}")
