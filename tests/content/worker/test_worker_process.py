"""Worker processes: whatever becomes of one, there is an error that says why.

Here shell scripts stand for Python, to fail in ways that the real worker hardly ever does.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from skymount.content.model.listing import unpack
from skymount.content.model.listing_builder import tabulate
from skymount.content.worker.shared_memory import open_memory_file
from skymount.content.worker.worker_process import (
    run_worker,
    tabulate_in_worker,
)
from skymount.errors import BadContentError, MalformedError, UnavailableError
from tests.fakes.skyfiles import describe

RAW = describe({f"d{n // 100}/{n}": b"x" for n in range(20_000)})

Interpreter = Callable[[str], None]


@pytest.fixture
def interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Interpreter:
    """Let a shell script stand for Python."""

    def replace(script: str) -> None:
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(path))

    return replace


async def tabulated(
    raw: bytes | memoryview, size: int | None = None, default_size: int | None = None
) -> memoryview:
    async with open_memory_file() as file:
        file.put(raw)
        return await tabulate_in_worker(file, 0, size, default_size)


async def test_same_as_in_a_thread():
    """The listing is the one that `tabulate` makes; its sizes are heeded."""
    assert bytes(await tabulated(RAW)) == tabulate(RAW)
    assert unpack(await tabulated(memoryview(RAW), 1 << 40, None)).size == 1 << 40
    assert unpack(await tabulated(b'{"filename":"f"}', None, 9)).size == 9


async def test_malformed():
    """N6: Metadata that is no JSON object. The reason is the one that a thread would give."""
    for raw in (b"[]", b"{", b'"\xff'):
        with pytest.raises(MalformedError) as expected:
            tabulate(raw)
        with pytest.raises(MalformedError) as found:
            await tabulated(raw)
        assert str(found.value) == str(expected.value)[:300]


@pytest.mark.parametrize("skipped", [0, 1, 4096, 5000])
async def test_from_an_offset(skipped: int):
    """Metadata may lie behind something else."""
    async with open_memory_file() as file:
        file.put(b"x" * skipped + RAW)
        assert bytes(await tabulate_in_worker(file, skipped, None, None)) == tabulate(RAW)


async def test_out_of_memory(interpreter: Interpreter):
    """Metadata that takes more memory than there may be is an error of its own."""
    real = sys.executable
    interpreter(f'ulimit -v 120000; exec {real} "$@"')
    raw = b'{"filename":"f","length":1,"subfiles":{%s}}' % b",".join(
        b'"%d":{"len":1}' % n for n in range(800_000)
    )
    with pytest.raises(MalformedError, match="memory"):
        await tabulated(raw)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("kill -9 $$", "signal 9"),
        ("kill -SEGV $$", "signal 11"),
        ("echo oops >&2; exit 1", "oops"),
        ("exit 3", "status 3"),
        ("exit 0", "no output"),
        ("cat >/dev/null", "no output"),
    ],
)
async def test_crash(interpreter: Interpreter, script: str, reason: str):
    """However it ends, that is a clear error."""
    interpreter(script)
    with pytest.raises(BadContentError, match=reason):
        await tabulated(RAW)


async def test_garbage(interpreter: Interpreter):
    """What is no listing is not taken for one."""
    interpreter("cat >/dev/null; echo nonsense")
    packed = await tabulated(RAW)
    with pytest.raises(MalformedError):
        unpack(packed)


async def test_no_interpreter(monkeypatch: pytest.MonkeyPatch):
    """When no process can be started, the portal is not to blame."""
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(UnavailableError, match="No such file"):
        await tabulated(RAW)


async def test_cancelled(interpreter: Interpreter, tmp_path: Path):
    """Who no longer waits ends the process, even one that does not want to end."""
    os.mkfifo(tmp_path / "pid")
    interpreter(f"trap '' TERM INT; echo $$ > {tmp_path}/pid; while :; do sleep 0.05; done")
    descriptors = len(os.listdir("/proc/self/fd"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tabulated, RAW)
        pid = int(await trio.Path(tmp_path / "pid").read_text())
        nursery.cancel_scope.cancel()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert len(os.listdir("/proc/self/fd")) == descriptors


async def test_too_slow(interpreter: Interpreter):
    """One that takes too long is ended."""
    interpreter("while :; do sleep 0.05; done")
    async with open_memory_file() as given, open_memory_file() as output:
        with pytest.raises(BadContentError, match=r"more than 0\.2 s"):
            await run_worker("module", "it", given, output, timeout=0.2)
