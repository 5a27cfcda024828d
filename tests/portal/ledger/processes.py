"""Programs that use a ledger in a process of their own."""

import os
import subprocess
import sys
from pathlib import Path
from typing import IO

from tests.portal_process import portal_environment


def start(
    code: str, *args: str | Path, stdout: IO[str] | int = subprocess.PIPE
) -> "subprocess.Popen[str]":
    root = str(Path(__file__).resolve().parents[3])
    environment = portal_environment()
    environment["PYTHONPATH"] = os.pathsep.join([environment["PYTHONPATH"], root])
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=stdout,
        text=True,
        env=environment,
    )
