"""Runs ``skymount`` commands as forks of one process that has imported everything already.

Each command is a process of its own, with its own environment, directory and standard streams, but
starts in a tenth of the time. What a start itself does, and mounts, are tested with real processes.
"""

import atexit
import functools
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent

MAX_INPUT = 32 << 10
"""Bytes of standard input, which have to fit into a pipe."""


class CommandServer:
    """The process that forks; it ends with ours."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.command_server", str(theirs.fileno())],
                cwd=ROOT,
                env={
                    "PATH": os.environ["PATH"],
                    "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
                    "LC_ALL": "C.UTF-8",
                },
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        atexit.register(self._stop)

    def _stop(self) -> None:
        self._control.close()
        self._process.wait(10)

    def run(
        self,
        args: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        stdin: bytes,
        limit: float,
    ) -> tuple[int, bytes, bytes]:
        """Run a command to its end; return its exit code, stdout and stderr.

        TimeoutError, with the command killed, when it takes longer than `limit` seconds.
        """
        request = json.dumps({"args": list(args), "env": dict(env), "cwd": str(cwd)}).encode()
        answer, status = os.pipe()
        source, sink = os.pipe()
        os.write(sink, stdin)
        os.close(sink)
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            try:
                descriptors = [source, out.fileno(), err.fileno(), status]
                socket.send_fds(self._control, [request], descriptors)
            finally:
                os.close(source)
                os.close(status)
            with open(answer, "rb") as lines:
                pid = int(lines.readline())
                ended, _, _ = select.select([lines], [], [], limit)
                if not ended:
                    os.killpg(pid, signal.SIGKILL)
                    raise TimeoutError
                code = int(lines.readline())
            out.seek(0)
            err.seek(0)
            return code, out.read(), err.read()


@functools.cache
def command_server() -> CommandServer:
    return CommandServer()


def _serve(control: socket.socket) -> None:
    """Fork for each request until the other end of the socket is closed."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for our children
    gc.freeze()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1 << 18, 4)
        if not message:
            return
        if os.fork() == 0:
            control.close()
            _supervise(json.loads(message), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _supervise(request: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """Fork the command; write its process id and then its exit code, a line each."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *streams, status = descriptors
    pid = os.fork()
    if pid == 0:
        os.close(status)
        _run(request, streams)
    for stream in streams:
        os.close(stream)
    os.write(status, f"{pid}\n".encode())
    _, result = os.waitpid(pid, 0)
    os.write(status, f"{os.waitstatus_to_exitcode(result)}\n".encode())
    os._exit(0)


def _run(request: dict[str, Any], streams: list[int]) -> NoReturn:
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    if "COVERAGE_PROCESS_START" in os.environ:
        importlib.import_module("coverage").process_startup()
    time.tzset()
    sys.stdin = os.fdopen(0, encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    program = importlib.import_module("skymount.__main__")
    sys.modules["__main__"] = program  # click takes the program's name from it
    sys.argv = [str(program.__file__), *request["args"]]
    code: Any = 0
    try:
        program.main()
    except SystemExit as done:
        code = done.code
    except BaseException:  # as the interpreter does
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


def _main() -> None:
    import skymount

    for module in pkgutil.walk_packages(skymount.__path__, "skymount."):
        if not module.name.startswith(("skymount.server", "skymount.fs.fuse", "skymount.daemon")):
            importlib.import_module(module.name)
    _serve(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    _main()
