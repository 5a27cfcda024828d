"""Files and directories that only one user may use: how to make them, and whether one is safe.

All of this holds whatever the umask is: it can only remove permissions.
"""

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # every command loads this module, and few have paths
    from pathlib import Path

ANY_ACCESS = 0o077
"""Every permission of group and others."""

WRITE_ACCESS = 0o022
"""Write permission of group and others."""

_OPEN = os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


def make_directory(path: "Path") -> None:
    """Make a directory and its missing parents for this user alone; a file in the way stays."""
    for each in (*reversed(path.parents), path):
        if not each.is_dir():
            with suppress(FileExistsError):
                each.mkdir(mode=0o700)


def restrict_directory(path: "Path") -> None:
    """Remove the permissions of group and others from a directory that belongs to this user."""
    found = path.stat()
    if found.st_uid == os.geteuid() and found.st_mode & ANY_ACCESS:
        path.chmod(stat.S_IMODE(found.st_mode) & ~ANY_ACCESS)


def create_file(path: "str | Path", within: int | None = None) -> int:
    """Create a file of mode 600, open for writing; `within` is the directory's descriptor."""
    return os.open(path, _OPEN | os.O_EXCL | os.O_WRONLY, 0o600, dir_fd=within)


def open_or_create_file(path: "str | Path", within: int | None = None) -> int:
    """Open a file for reading and writing; create it as `create_file` does if it is missing."""
    return os.open(path, _OPEN | os.O_RDWR, 0o600, dir_fd=within)


def permission_problem(path: "str | Path", found: os.stat_result, others: int = ANY_ACCESS) -> str:
    """Return why a file or directory is not safe to use, or an empty string.

    `others` are the permissions that group and others may not have.
    """
    if found.st_uid != os.geteuid():
        return f"it belongs to another user (uid {found.st_uid})"
    mode = stat.S_IMODE(found.st_mode)
    if not mode & others:
        return ""
    import shlex

    quoted = shlex.quote(str(path))
    if others == WRITE_ACCESS:
        return f"other users can write to it; run: chmod go-w {quoted}"
    right = 700 if stat.S_ISDIR(found.st_mode) else 600
    return f"its mode {mode:o} gives access to other users; run: chmod {right} {quoted}"


def directory_problem(path: "Path") -> str:
    """Return how another user could change what is in a directory, or replace it, or ""."""
    return permission_problem(path, path.stat(), WRITE_ACCESS) or path_problem(path)


def path_problem(path: "Path") -> str:
    """Return how another user could replace what is at a path, or an empty string.

    All directories and links on the path and behind links must belong to this user or root, and be
    writable only by their owner. Directories with the sticky bit, such as /tmp, are an exception.
    """
    paths = [path.absolute()]
    for checked in paths:  # grows while links are found
        for each in (checked, *checked.parents):
            found = each.lstat()
            if found.st_uid not in (os.geteuid(), 0):
                return f"{each} belongs to another user (uid {found.st_uid}), who can replace it"
            if stat.S_ISLNK(found.st_mode):
                target = each.parent / os.readlink(each)
                if target not in paths:
                    paths.append(target)
            elif found.st_mode & WRITE_ACCESS and not found.st_mode & stat.S_ISVTX:
                import shlex

                quoted = shlex.quote(str(each))
                return (
                    f"other users can write to {each} and replace what is in it; "
                    f"run: chmod go-w {quoted}"
                )
    return ""
