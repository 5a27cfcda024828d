"""Figures of a real mount for Prometheus."""

import re
import socket
import struct
import urllib.request
from urllib.parse import urlsplit

from tests.mount.keys import until
from tests.mount.site import Site
from tests.skymount_process import Sandbox, output


def test_figures_of_a_mount(sandbox: Sandbox, site: Site) -> None:
    """E6: In the mount, and at the address that was asked for, whoever else hangs there."""
    told = sandbox.with_env(SKYMOUNT_METRICS_LISTEN="127.0.0.1:0")
    with told.mounted("--portal", site.portal) as mount:
        output(["cat", mount.path / "skylinks" / site.skylink / "one byte"])
        text = output(["cat", mount.path / ".skymount/metrics"]).decode()
        assert f'skymount_mount_info{{mountpoint="{mount.path}",' in text
        assert "\nskymount_skylinks 1\n" in text
        assert f'skymount_portal_up{{portal="{site.portal}"}} 1\n' in text
        until(lambda: "metrics: http://" in sandbox.log.read_text())
        said = re.search(r"http://127\.0\.0\.1:\d+/metrics", sandbox.log.read_text())
        assert said is not None
        with urllib.request.urlopen(said[0], timeout=30) as answer:
            served = answer.read().decode()
        address = urlsplit(said[0])
        with socket.create_connection((address.hostname, address.port), 60) as silent:
            silent.sendall(b"GET /met")
            gone = socket.create_connection((address.hostname, address.port))
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            gone.close()  # a reset
            with urllib.request.urlopen(said[0], timeout=30) as answer:
                assert answer.read()
            assert silent.recv(1) == b""
    assert "Traceback" not in sandbox.log.read_text()
    names = re.compile(r"^[a-z_]+", re.MULTILINE)
    assert set(names.findall(served)) == set(names.findall(text))


def test_an_address_that_is_taken(sandbox: Sandbox, portal: str) -> None:
    """E6: It is said, and the mount works without."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        told = sandbox.with_env(SKYMOUNT_METRICS_LISTEN=address)
        with told.mounted("--portal", portal) as mount:
            until(lambda: f"metrics_listen: {address}: " in sandbox.log.read_text())
            assert b"skymount_open_files" in output(["cat", mount.path / ".skymount/metrics"])
