"""Domains in ``hns/``: what they lead to, when that changes, and while nobody can tell."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.mount.proxy import proxy_to
from tests.portal_process import PortalProcess, portal_process
from tests.server.registry_entries import OWNER, link_of, put, signed
from tests.skymount_process import LIMIT, Mount, Sandbox, output, run, xattrs

C = {**os.environ, "LC_ALL": "C"}
MANY = 10_000


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PortalProcess]:
    """A portal whose zone the tests of this module write."""
    with portal_process(tmp_path_factory.mktemp("names") / "data") as running:
        yield running


def publish(sandbox: Sandbox, portal: PortalProcess, name: str, files: dict[str, str]) -> str:
    """Upload files; return their skylink."""
    for path, content in files.items():
        file = sandbox.root / name / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return sandbox.upload(sandbox.root / name, portal.url)


def lead(sandbox: Sandbox, portal: PortalProcess, domain: str, value: str) -> None:
    """Let a domain lead somewhere."""
    sandbox.succeed("portal", "hns", "set", "--data", portal.data, domain, value)


def mounting(sandbox: Sandbox, ttl: float = 60) -> Sandbox:
    """Return the sandbox with a time for which names stay resolved."""
    return sandbox.with_env(SKYMOUNT_HNS_TTL=str(ttl))


def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so, which is soon."""
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, "it never was so"
        time.sleep(0.02)


def read(path: Path) -> str:
    """Return the content of a file."""
    return output(["cat", path]).decode()


def error_of(path: Path) -> str:
    """Return what ls has to say of a path that it cannot list."""
    done = run(["ls", path], env=C)
    assert done.returncode
    return done.stderr.strip().rpartition(": ")[2]


def test_domain_is_the_tree_of_its_skylink(sandbox: Sandbox, names: PortalProcess) -> None:
    """H1: `hns/<domain>/` is the tree of the skylink that the domain resolves to.

    H1: Case, a trailing dot and the Unicode form do not matter.
    """
    skylink = publish(sandbox, names, "site", {"a/b.txt": "here", "index.html": "<p>"})
    lead(sandbox, names, "bücher.example", f"{skylink}/a")
    with sandbox.mounted("--portal", names.url) as mount:
        hns = mount.path / "hns"
        assert output(["ls", hns]) == b""
        tree = hns / "bücher.example"
        assert output(["diff", "-r", sandbox.root / "site", tree]) == b""
        assert xattrs(tree / "a/b.txt")["user.skymount.skylink"] == skylink
        assert xattrs(tree)["user.skymount.stale"] == "no"
        inode = output(["stat", "-c", "%i", tree])
        spellings = ("BÜCHER.example", "Bu\u0308cher.Example.", "xn--bcher-kva.example")
        for name in spellings * 2:
            assert output(["stat", "-c", "%i", hns / name]) == inode
            assert read(hns / name / "a/b.txt") == "here"
        assert output(["ls", hns]) == b"xn--bcher-kva.example"[:] + b"\n"
        assert mount.status()["domains"] == 1
    with sandbox.mounted("--portal", names.url) as mount:
        assert output(["stat", "-c", "%i", mount.path / "hns/bücher.example"]) == inode


def test_spellings_at_the_same_time(sandbox: Sandbox, names: PortalProcess) -> None:
    """H1: Case, a trailing dot and the Unicode form do not matter.

    Not even to many programs at once, each with a spelling of its own.
    """
    files = {f"{n % 10}/{n}": str(n) for n in range(300)}
    lead(sandbox, names, "many", publish(sandbox, names, "many", files))
    with sandbox.mounted("--portal", names.url) as mount:
        spellings = ["many", "Many", "MANY", "many.", "mAny."]
        running = [
            subprocess.Popen(
                ["sh", "-c", 'for n in 1 2 3 4 5; do cat "$0"/*/* | cksum || exit 1; done', where],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for where in (mount.path / "hns" / name for name in spellings)
        ]
        said = [process.communicate(timeout=LIMIT) for process in running]
        assert {err for _, err in said} == {b""}
        assert len({line for out, _ in said for line in out.splitlines()}) == 1


def test_record_of_a_registry_entry(sandbox: Sandbox, names: PortalProcess) -> None:
    """H1: by a skylink or a registry record.

    The entry may lead on to another entry, and is followed when it changes.
    """
    one = publish(sandbox, names, "one", {"f": "1"})
    two = publish(sandbox, names, "two", {"f": "2"})
    with httpx.Client(base_url=names.url, headers={"User-Agent": "svc-agent"}) as client:
        put(client, signed("inner", one.encode()))
        put(client, signed("outer", bytes(link_of("inner"))))
        record = f"{OWNER.public_key.hex()}/{signed('outer').entry.tweak.hex()}"
        lead(sandbox, names, "by-entry", record)
        lead(sandbox, names, "by-link", str(link_of("outer")))
        with mounting(sandbox, 0.2).mounted("--portal", names.url) as mount:
            files = [mount.path / "hns" / name / "f" for name in ("by-entry", "by-link")]
            for file in files:
                assert read(file) == "1"
                assert xattrs(file)["user.skymount.verified"] == "no"
                assert xattrs(file)["user.skymount.skylink"] == one
            put(client, signed("inner", two.encode(), 1))
            for file in files:
                until(lambda file=file: read(file) == "2")  # type: ignore[misc]


def test_verification_is_required(sandbox: Sandbox, names: PortalProcess) -> None:
    """T5: `verify = "require"` refuses with EIO what cannot be checked.

    Where a domain leads is the portal's word.
    """
    skylink = publish(sandbox, names, "word", {"f": "content"})
    lead(sandbox, names, "word", skylink)
    with sandbox.mounted("--portal", names.url, "--verify", "require") as mount:
        assert error_of(mount.path / "hns/word") == "Input/output error"
        assert read(mount.skylink(skylink) / "f") == "content"


def test_unknown_domain_that_appears(sandbox: Sandbox, names: PortalProcess) -> None:
    """H1: Unknown domains are ENOENT, and asked for again after 5 s."""
    skylink = publish(sandbox, names, "late", {"f": "late"})
    with sandbox.mounted("--portal", names.url) as mount:
        tree = mount.path / "hns/late.example"
        assert error_of(tree) == "No such file or directory"
        assert error_of(mount.path / "hns/not a domain") == "No such file or directory"
        lead(sandbox, names, "late.example", skylink)
        until(lambda: run(["ls", tree]).returncode == 0)
        assert read(tree / "f") == "late"
        assert output(["ls", mount.path / "hns"]) == b"late.example\n"


def test_resolver_that_is_down(sandbox: Sandbox, names: PortalProcess) -> None:
    """L4: A portal that fails, times out or refuses is never reported as ENOENT.

    H3: While the resolver fails, the last good tree is served, and `user.skymount.stale` says so.
    """
    lead(sandbox, names, "down", publish(sandbox, names, "down", {"f": "still here"}))
    with proxy_to(names.url, is_open=False) as closed:
        port = int(closed.url.rpartition(":")[2])
    with mounting(sandbox, 0.2).mounted("--portal", f"http://127.0.0.1:{port}") as mount:
        file = mount.path / "hns/down/f"
        assert error_of(file.parent) == "Input/output error"
        with proxy_to(names.url, port=port):
            assert read(file) == "still here"
            inode = output(["stat", "-c", "%i", file])
            assert xattrs(file)["user.skymount.stale"] == "no"
        until(lambda: xattrs(file)["user.skymount.stale"] == "yes")
        assert read(file) == "still here"
        assert output(["ls", file.parent]) == b"f\n"
        with proxy_to(names.url, port=port):
            until(lambda: xattrs(file)["user.skymount.stale"] == "no")
            assert output(["stat", "-c", "%i", file]) == inode


def test_domain_that_is_taken_away(sandbox: Sandbox, names: PortalProcess) -> None:
    """H1: Unknown domains are ENOENT.

    So is one whose record was removed; what is open stays.
    """
    lead(sandbox, names, "gone", publish(sandbox, names, "gone", {"f": "content"}))
    with mounting(sandbox, 0.2).mounted("--portal", names.url) as mount:
        tree = mount.path / "hns/gone"
        with Reader(tree / "f") as reader:
            sandbox.succeed("portal", "hns", "remove", "--data", names.data, "gone")
            until(lambda: run(["ls", tree]).returncode != 0)
            assert error_of(tree) == "No such file or directory"
            assert output(["ls", mount.path / "hns"]) == b""
            assert reader.finish() == b"content"


class Reader:
    """A program that has a file open, and reads it when it is told to."""

    def __init__(self, file: Path) -> None:
        self._process = subprocess.Popen(
            ["sh", "-c", 'exec 3<"$0"; echo open; read go; cat <&3', file],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __enter__(self) -> "Reader":
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"open\n"
        return self

    def finish(self) -> bytes:
        return self._process.communicate(b"go\n", timeout=LIMIT)[0]

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


def _source(root: Path, mark: str, more: int) -> None:
    """Write 10,000 files, in directories of 100."""
    for n in range(MANY):
        file = root / f"{n // 100:03}/{n:05}-{mark}"
        if n % 100 == 0:
            file.parent.mkdir(parents=True)
        file.write_bytes(b"x" * (n % 7 + more))


def _expected(root: Path, base: str) -> list[bytes]:
    return sorted(output(["find", root, "-type", "f", "-printf", f"{base}/%P %s\\n"]).splitlines())


@pytest.mark.slow
def test_record_that_changes_under_a_running_find(sandbox: Sandbox, names: PortalProcess) -> None:
    """H2: the name switches to the new tree at once and as a whole; open files and directory scans
    stay on the old one.

    A find of 10,000 files ends on the tree that it began on, while every new look at the name is
    at the new one, and a program that stands in the old tree, or has a file of it open, still does.
    """
    for mark, more in (("old", 0), ("new", 10)):
        _source(sandbox.root / mark, mark, more)
    links = {mark: sandbox.upload(sandbox.root / mark, names.url) for mark in ("old", "new")}
    lead(sandbox, names, "site", links["old"])
    with mounting(sandbox, 0.5).mounted("--portal", names.url) as mount:
        tree = mount.path / "hns/site"
        expected = {mark: _expected(sandbox.root / mark, str(tree)) for mark in links}
        finding = subprocess.Popen(
            ["find", tree, "-type", "f", "-printf", "%p %s\\n"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        standing = subprocess.Popen(
            ["sh", "-c", "echo here; read go; find . -type f | wc -l; cat 050/05003-old"],
            cwd=tree,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            assert finding.stdout is not None
            assert standing.stdout is not None
            first = finding.stdout.read(4096)  # it writes no more than a pipe holds until we read
            assert standing.stdout.readline() == b"here\n"
            with Reader(tree / "030/03000-old") as reader:
                lead(sandbox, names, "site", links["new"])
                until(lambda: xattrs(tree)["user.skymount.skylink"] == links["new"])
                assert finding.poll() is None
                whole = _found(tree)
                assert whole == expected["new"]
                rest, complaints = finding.communicate(timeout=LIMIT)
                assert complaints == b""
                assert sorted((first + rest).splitlines()) == expected["old"]
                count = standing.communicate(b"go\n", timeout=LIMIT)[0]
                assert count == b"10000\n" + b"x" * (5003 % 7)
                assert reader.finish() == b"x" * (3000 % 7)
        finally:
            for process in (finding, standing):
                process.kill()
                process.communicate()
        lead(sandbox, names, "site", links["old"])
        until(lambda: xattrs(tree)["user.skymount.skylink"] == links["old"])
        assert _found(tree) == expected["old"]
        _assert_one_tree_each_time(mount, sandbox, names, links)


def _found(tree: Path) -> list[bytes]:
    return sorted(output(["find", tree, "-type", "f", "-printf", "%p %s\\n"]).splitlines())


def _assert_one_tree_each_time(
    mount: Mount, sandbox: Sandbox, names: PortalProcess, links: dict[str, str]
) -> None:
    """Look at a name again and again while it changes: each look is at one tree or the other."""
    looking = subprocess.Popen(
        ["sh", "-c", 'while :; do find "$0" -name "*0-*" -printf "%f\\n"; echo end; done', "site"],
        cwd=mount.path / "hns",
        stdout=subprocess.PIPE,
    )
    try:
        assert looking.stdout is not None
        for n in range(8):
            lead(sandbox, names, "site", links[("new", "old")[n % 2]])
            seen = list(iter(looking.stdout.readline, b"end\n"))
            assert len(seen) == MANY // 10
            assert len({line.partition(b"-")[2] for line in seen}) == 1
    finally:
        looking.kill()
        looking.communicate()
