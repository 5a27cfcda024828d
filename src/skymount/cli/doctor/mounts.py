"""Checks of the mounts that there are."""

import os
from collections.abc import Iterator

from skymount.cli.doctor.finding import Finding, failure, ok
from skymount.cli.mount_probe import MountProber, MountState
from skymount.fs.mountpoint import mounts_of


def checks() -> Iterator[Finding]:
    """Ask each mount of this user."""
    answers = MountProber().ask(mounts_of(os.getuid()))
    if not answers:
        yield ok("mounts", "there are none")
    for each in answers:
        subject = f"mount {each.path}"
        is_fine = each.state is MountState.RUNNING
        yield ok(subject, "it answers") if is_fine else failure(subject, each.reason)
