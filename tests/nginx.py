"""A real nginx in front of a portal, as most portals have one."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.skymount_process import end

_STARTING = 20.0  # seconds

needs_nginx = pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")

_CONFIG = """\
daemon off; master_process off; error_log {root}/error.log; pid {root}/pid;
events {{ }}
http {{
    access_log off;
    client_body_temp_path {root}/body; proxy_temp_path {root}/proxy; fastcgi_temp_path {root}/f;
    uwsgi_temp_path {root}/u; scgi_temp_path {root}/s;
    server {{
        listen 127.0.0.1:{port};
        location / {{ proxy_pass {upstream}; proxy_http_version 1.1; }}
        {more}
    }}
}}
"""


@contextmanager
def nginx_before(upstream: str, root: Path, more: str = "") -> Iterator[str]:
    """Run nginx as a proxy, with its own sizes of buffers; yields its URL.

    `more` is put into the server's block.
    """
    root.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    config = root / "nginx.conf"
    config.write_text(_CONFIG.format(root=root, port=port, upstream=upstream, more=more))
    process = subprocess.Popen(["nginx", "-e", root / "error.log", "-c", config])
    try:
        deadline = time.monotonic() + _STARTING
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert process.poll() is None, (root / "error.log").read_text()
                assert time.monotonic() < deadline, "nginx did not start"
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        end(process)
