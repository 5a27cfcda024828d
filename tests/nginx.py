"""A real nginx in front of a portal, as most portals have one."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.ports import unused_port
from tests.skymount_process import end

ROOT = Path(__file__).parent.parent
_STARTING = 20.0  # seconds


def _has_slices() -> bool:
    if shutil.which("nginx") is None:
        return False
    told = subprocess.run(["nginx", "-V"], capture_output=True, check=False).stderr
    return b"http_slice_module" in told


needs_nginx = pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
needs_nginx_cache = pytest.mark.skipif(not _has_slices(), reason="no nginx with slices")

_PROCESS = """\
daemon off; master_process off; error_log {root}/error.log; pid {root}/pid;
events {{ }}
http {{
    access_log off;
    client_body_temp_path {root}/body; proxy_temp_path {root}/proxy; fastcgi_temp_path {root}/f;
    uwsgi_temp_path {root}/u; scgi_temp_path {root}/s;
    {config}
}}
"""
_SERVER = """\
server {{
    listen {address};
    location / {{ proxy_pass {upstream}; proxy_http_version 1.1; }}
    {more}
}}
"""


@contextmanager
def nginx_before(upstream: str, root: Path, more: str = "") -> Iterator[str]:
    """Run nginx as a proxy, with its own sizes of buffers; yields its URL.

    `more` is put into the server's block.
    """
    address = _free_address()
    with _nginx(root, _SERVER.format(address=address, upstream=upstream, more=more), address):
        yield f"http://{address}"


@contextmanager
def serving(directory: Path, root: Path) -> Iterator[str]:
    """Run nginx as a server of files; yields its URL."""
    address = _free_address()
    with _nginx(root, f"server {{ listen {address}; root {directory}; }}", address):
        yield f"http://{address}"


@contextmanager
def cache_before(upstream: str | Sequence[str], root: Path) -> Iterator[str]:
    """Run nginx as a cache before portals, as the documentation says; yields its URL."""
    address = _free_address()
    portals = [upstream] if isinstance(upstream, str) else upstream
    servers = " ".join(f"server {portal.removeprefix('http://')};" for portal in portals)
    page = (ROOT / "docs/scaling.md").read_text()
    config = page.partition("```nginx\n")[2].partition("```")[0]
    for placeholder, value in (
        ("/var/cache/nginx/skymount", str(root / "cache")),
        ("server 127.0.0.1:4280;", servers),
        ("listen 80;", f"listen {address};"),
    ):
        assert config.count(placeholder) == 1
        config = config.replace(placeholder, value)
    with _nginx(root, config, address):
        yield f"http://{address}"


def _free_address() -> str:
    return f"127.0.0.1:{unused_port()}"


@contextmanager
def _nginx(root: Path, config: str, address: str) -> Iterator[None]:
    root.mkdir()
    file = root / "nginx.conf"
    file.write_text(_PROCESS.format(root=root, config=config))
    host, port = address.split(":")
    process = subprocess.Popen(["nginx", "-e", root / "error.log", "-c", file])
    try:
        deadline = time.monotonic() + _STARTING
        while True:
            try:
                socket.create_connection((host, int(port)), 1).close()
                break
            except OSError:
                assert process.poll() is None, (root / "error.log").read_text()
                assert time.monotonic() < deadline, "nginx did not start"
                time.sleep(0.05)
        yield
    finally:
        end(process)
