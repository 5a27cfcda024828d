"""When a file of `/registry` or `/skydb` changed."""

import time

from skymount.fs.registry.store import changed_ns
from tests.fakes.registry_mount import Held


def test_time_of_change():
    """It is when the content was first seen; now if nothing is known."""
    assert changed_ns(Held(b"x", seen_at=1.5)) == 1_500_000_000
    before = time.time_ns()
    assert before <= changed_ns(None) <= time.time_ns()
