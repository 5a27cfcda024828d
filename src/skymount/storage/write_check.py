"""Whether something can be written to a directory, and how much."""

import os
import tempfile
from pathlib import Path

from skymount import file_permissions

_PROBE = bytes(64 << 10)


def write_problem(path: Path) -> str:
    """Return why nothing can be written below a directory, which may be missing; or "".

    In a directory that is there a file is written: quotas and full disks show themselves so only.
    """
    there = _nearest(path)
    if not there.is_dir():
        return f"{there}: not a directory"
    if there != path:
        may = os.access(there, os.W_OK | os.X_OK)
        return "" if may else f"{path}: it cannot be made: {there} is not writable by you"
    if problem := file_permissions.permission_problem(
        path, path.stat(), file_permissions.WRITE_ACCESS
    ):
        return f"{path}: {problem}"
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(_PROBE)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return f"{path}: nothing can be written there: {error.strerror}"
    return ""


def free_space(path: Path) -> int:
    """Return the free bytes of the file system that a path is on, or would be on."""
    found = os.statvfs(_nearest(path))
    return found.f_bavail * found.f_frsize


def _nearest(path: Path) -> Path:
    """Return the path, or the nearest directory above it that is there."""
    return next(each for each in (path, *path.parents) if os.path.lexists(each))
