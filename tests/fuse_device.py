"""Whether anything can be mounted here."""

from collections.abc import Callable

import pytest

from skymount.fs.mountpoint import DEVICE, FUSERMOUNT
from skymount.fs.obstacles import of_device, of_fusermount, of_right


def why_no_mounts() -> str:
    """Return why nothing can be mounted; empty when it can be."""
    if found := of_device():
        return f"{DEVICE}: {found.text}"
    if found := of_fusermount():
        return f"{FUSERMOUNT}: {found.text}"
    found = of_right()
    return found.text if found else ""


NEEDS_MOUNTS = [
    pytest.mark.mount,
    pytest.mark.skipif(bool(why_no_mounts()), reason=why_no_mounts()),
]
"""The marks of tests that mount."""


def mounts(test: Callable[..., object]) -> Callable[..., object]:
    for mark in NEEDS_MOUNTS:
        test = mark(test)
    return test
