"""Runs a server until standard input ends, also because the tests were killed.

    python keeper.py SIGNAL DIRECTORY USER COMMAND...

The signal ends the server. Then the directory, if one is named, is removed, unless the input says
"keep". The server runs as the user, if one is named. Imports nothing of ours: it has to start fast.
"""

import os
import select
import shutil
import signal
import subprocess
import sys

_END_TIME = 20.0  # seconds


def main(name: str, directory: str, user: str, *command: str) -> None:
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, user=user or None, cwd="/", start_new_session=True
    )
    ended = os.pidfd_open(process.pid)
    select.select([sys.stdin, ended], [], [])
    if process.poll() is not None:
        sys.exit(1)
    said = sys.stdin.read()
    process.send_signal(signal.Signals[name])
    try:
        process.wait(_END_TIME)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if directory and said != "keep":
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
