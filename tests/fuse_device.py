"""Whether anything can be mounted here."""

import os
import shutil
from collections.abc import Callable

import pytest


def why_no_mounts() -> str:
    """Return why nothing can be mounted; empty when it can be."""
    if not os.path.exists("/dev/fuse"):
        return "there is no /dev/fuse"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse is not open to this user"
    return "" if shutil.which("fusermount3") else "fusermount3 is not installed"


NEEDS_MOUNTS = [
    pytest.mark.mount,
    pytest.mark.skipif(bool(why_no_mounts()), reason=why_no_mounts()),
]
"""The marks of tests that mount."""


def mounts(test: Callable[..., object]) -> Callable[..., object]:
    for mark in NEEDS_MOUNTS:
        test = mark(test)
    return test
