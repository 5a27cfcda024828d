"""Mounts that read through nginx as docs/scaling.md configures it."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from random import Random

from tests.mount.proxy import proxy_to
from tests.nginx import cache_before, needs_nginx_cache
from tests.portal_process import portal_process
from tests.skymount_process import Mount, Sandbox

_MOUNTS = 4
_LARGE = Random(15).randbytes(24 << 20)
_FILES = {f"{n:03}.bin": Random(n).randbytes(2000 + n) for n in range(400)}
_OVERHEAD = 1.05  # of the content: headers, metadata, and the ends of slices


@needs_nginx_cache
def test_many_mounts_read_what_one_would(tmp_path: Path) -> None:
    """The origin sends everything once; then nothing, and it may be stopped."""
    sandbox = Sandbox.make(tmp_path / "sandbox")
    (tmp_path / "large").write_bytes(_LARGE)
    (tmp_path / "many").mkdir()
    for name, content in _FILES.items():
        (tmp_path / "many" / name).write_bytes(content)
    with ExitStack() as stack:
        portal = stack.enter_context(portal_process(tmp_path / "data"))
        large = sandbox.upload(tmp_path / "large", portal.url)
        many = sandbox.upload(tmp_path / "many", portal.url)
        origin = stack.enter_context(proxy_to(portal.url))
        url = stack.enter_context(cache_before(origin.url, tmp_path / "nginx"))

        def check(mount: Mount) -> None:
            assert (mount.skylink(large) / "large").read_bytes() == _LARGE
            tree = mount.skylink(many)
            assert {file.name: file.read_bytes() for file in tree.iterdir()} == _FILES

        def read_by(count: int, *, clean: bool = True) -> None:
            with ExitStack() as mounts, ThreadPoolExecutor(count) as readers:
                made = [
                    mounts.enter_context(
                        sandbox.mounted(
                            *("--portal", url, "--disk-cache", "off"),
                            at=sandbox.directory(f"mnt{number}"),
                            clean=clean,
                        )
                    )
                    for number in range(count)
                ]
                list(readers.map(check, made))

        read_by(_MOUNTS)
        content = len(_LARGE) + sum(map(len, _FILES.values()))
        assert content <= origin.received <= content * _OVERHEAD
        origin.requests.clear()
        read_by(1)
        assert set(origin.requests) <= {f"/{link}?format=concat" for link in (large, many)}  # HEAD
        origin.close()
        portal.kill()
        read_by(1, clean=False)  # the portal's absence is logged


@needs_nginx_cache
def test_a_damaged_answer_is_not_believed_for_ever(tmp_path: Path) -> None:
    """T3: what fails its check is asked for again past the cache, which then has it right."""
    sandbox = Sandbox.make(tmp_path / "sandbox")
    (tmp_path / "large").write_bytes(_LARGE)
    with ExitStack() as stack:
        portal = stack.enter_context(portal_process(tmp_path / "data"))
        link = sandbox.upload(tmp_path / "large", portal.url)
        url = stack.enter_context(cache_before(portal.url, tmp_path / "nginx"))

        def read() -> bytes:
            place = sandbox.directory("mnt")
            words = ("--portal", url, "--disk-cache", "off")
            with sandbox.mounted(*words, at=place, clean=False) as mount:
                return (mount.skylink(link) / "large").read_bytes()

        assert read() == _LARGE
        damaged = 0
        for file in (tmp_path / "nginx/cache").rglob("*"):
            if file.is_file() and file.stat().st_size > 100_000:
                with file.open("r+b") as opened:
                    opened.seek(-5000, 2)
                    opened.write(b"damaged")
                damaged += 1
        assert damaged
        assert read() == _LARGE
        assert read() == _LARGE
