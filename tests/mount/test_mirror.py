"""Mounts that read through a portal with an upstream."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from random import Random

from tests.mount.proxy import proxy_to
from tests.portal_process import portal_process
from tests.skymount_process import Mount, Sandbox

_MOUNTS = 2
_LARGE = Random(16).randbytes(9 << 20)
_FILES = {f"{n:03}.bin": Random(n).randbytes(2000 + n) for n in range(50)}
_OVERHEAD = 1.5
"""Of the content: heads of answers, metadata, and what is fetched ahead and broken off while slow
mounts read nothing. Without sharing it would be the number of mounts.
"""


def test_mounts_share_what_a_mirror_fetches(tmp_path: Path) -> None:
    """U2, U3: the origin sends everything once, and may then be gone."""
    sandbox = Sandbox.make(tmp_path / "sandbox")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "large").write_bytes(_LARGE)
    for name, content in _FILES.items():
        (tmp_path / "site" / name).write_bytes(content)
    content = _FILES | {"large": _LARGE}
    with ExitStack() as stack:
        portal = stack.enter_context(portal_process(tmp_path / "data"))
        site = sandbox.upload(tmp_path / "site", portal.url)
        origin = stack.enter_context(proxy_to(portal.url))
        mirror = stack.enter_context(portal_process(tmp_path / "kept", "--upstream", origin.url))

        def check(mount: Mount) -> None:
            assert {
                file.name: file.read_bytes() for file in mount.skylink(site).iterdir()
            } == content

        def read_by(count: int) -> None:
            with ExitStack() as mounts, ThreadPoolExecutor(count) as readers:
                made = [
                    mounts.enter_context(
                        sandbox.mounted(
                            *("--portal", mirror.url, "--disk-cache", "off"),
                            at=sandbox.directory(f"mnt{number}"),
                        )
                    )
                    for number in range(count)
                ]
                list(readers.map(check, made))

        read_by(_MOUNTS)
        size = sum(map(len, content.values()))
        assert size <= origin.received <= size * _OVERHEAD
        origin.close()
        portal.kill()
        read_by(1)
