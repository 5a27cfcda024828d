"""The codec does no IO: it does not even import what could."""

import os
import subprocess
import sys

IO_MODULES = {
    *("asyncio", "http.client", "httpcore", "httpx", "multiprocessing", "pyfuse3"),
    *("selectors", "socket", "sqlite3", "ssl", "subprocess", "trio"),
}

IMPORT_ALL = """
import importlib, pkgutil, sys
import skymount.wire
for module in pkgutil.walk_packages(skymount.wire.__path__, "skymount.wire."):
    importlib.import_module(module.name)
print(*sys.modules)
"""


def test_importing_the_codec_imports_no_io():
    """A fresh interpreter that imports all of skymount.wire has loaded nothing that does IO."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    loaded = set(done.stdout.split())
    assert {"skymount.wire.skylink", "skymount.wire.http.requests"} <= loaded
    assert loaded & IO_MODULES == set()
