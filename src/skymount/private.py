"""Owns what keeps other users of the machine out: directories and files that are one user's alone,
whether one that was found is, and what a process of ours lets nobody see.

The umask, which a service may have from anybody, takes bits away and never gives one.
"""

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # every command loads this module, and few have paths
    from pathlib import Path

ANY_USE = 0o077
"""Permissions of others: to read, to write, to look for names."""

WRITING = 0o022
"""Of these, those that change something."""

_OPEN = os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


def make_directory(path: "Path") -> None:
    """Make a directory, and each one above it that is missing, for this user alone.

    Something else that is in the way is left to who uses the directory.
    """
    for each in (*reversed(path.parents), path):
        if not each.is_dir():
            with suppress(FileExistsError):
                each.mkdir(mode=0o700)


def close_directory(path: "Path") -> None:
    """Make a directory that is there this user's alone, if it is the user's own."""
    found = path.stat()
    if found.st_uid == os.geteuid() and found.st_mode & ANY_USE:
        path.chmod(stat.S_IMODE(found.st_mode) & ~ANY_USE)


def create(path: "str | Path", within: int | None = None) -> int:
    """Make a file that nobody else may use; return its descriptor, for writing."""
    return os.open(path, _OPEN | os.O_EXCL | os.O_WRONLY, 0o600, dir_fd=within)


def open_or_create(path: "str | Path", within: int | None = None) -> int:
    """Open a file, made as `create` does if it is missing, for reading and writing."""
    return os.open(path, _OPEN | os.O_RDWR, 0o600, dir_fd=within)


def objection(path: "str | Path", found: os.stat_result, others: int = ANY_USE) -> str:
    """Say why a file or directory cannot be relied on: it is not the user's own, or somebody else
    has one of the permissions in `others`. Empty if it can.
    """
    if found.st_uid != os.geteuid():
        return f"it belongs to the user with the number {found.st_uid}, not you"
    mode = stat.S_IMODE(found.st_mode)
    if not mode & others:
        return ""
    import shlex

    quoted = shlex.quote(str(path))
    if others == WRITING:
        return f"others can write to it; run: chmod go-w {quoted}"
    right = 700 if stat.S_ISDIR(found.st_mode) else 600
    return f"its mode {mode:o} lets others in; run: chmod {right} {quoted}"


def way_objection(path: "Path") -> str:
    """Say why others could put something else in the place of a path: a directory or link on the
    way to it, links followed, is somebody else's, or others can write there. Empty if they cannot.

    Where only owners can rename what is theirs, as in /tmp, others may write.
    """
    ways = [path.absolute()]
    for way in ways:  # which grows
        for each in (way, *way.parents):
            found = each.lstat()
            if found.st_uid not in (os.geteuid(), 0):
                who = f"the user with the number {found.st_uid}"
                return f"{each} belongs to {who}, who can put another one in its place"
            if stat.S_ISLNK(found.st_mode):
                target = each.parent / os.readlink(each)
                if target not in ways:
                    ways.append(target)
            elif found.st_mode & WRITING and not found.st_mode & stat.S_ISVTX:
                import shlex

                return (
                    f"others can write to {each}, and put another one in its place; "
                    f"run: chmod go-w {shlex.quote(str(each))}"
                )
    return ""


def leave_no_core() -> None:
    """Let a crash leave no image of this process, and of those that it starts: keys are in it."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def be_a_service() -> None:
    """Let nothing that this process makes be for others, whatever umask it was started with."""
    os.umask(0o077)
    leave_no_core()
