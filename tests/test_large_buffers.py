"""Large buffers go back to the system as soon as they are freed."""

import subprocess
import sys

import pytest

_HEAP = """
import sys
from skymount import large_buffers

def heap():
    lines = open("/proc/self/maps").read().splitlines()
    ends = next(line.split()[0] for line in lines if line.endswith("[heap]")).split("-")
    return int(ends[1], 16) - int(ends[0], 16)

if sys.argv[1] == "on" and not large_buffers.give_own_pages():
    sys.exit("no glibc")
before = heap()
for size in (8, 3, 5):
    bytes(size << 20)
held = [bytes(3 << 20), bytes(5 << 20)]
print(heap() - before)
"""


def grown(state: str) -> int:
    """Return by how many bytes the heap has grown for large buffers."""
    command = [sys.executable, "-c", _HEAP, state]
    done = subprocess.run(command, capture_output=True, check=False, text=True, timeout=60)
    if done.stderr.strip() == "no glibc":
        pytest.skip("the C library has no mallopt")
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_large_buffers_are_not_in_the_heap() -> None:
    """S11: nor do they leave holes in it, then."""
    assert grown("off") >= 8 << 20  # what glibc does once a large buffer was freed
    assert grown("on") < 1 << 20
