"""SIGHUP on a real mount, and what the log looks like."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakes import skyfiles
from tests.fakes.portal import FakePortal, in_thread
from tests.mount.keys import needs, until
from tests.portal_process import portal_process
from tests.skymount_process import SKYMOUNT, Mount, Sandbox, end, mounts_at, output, run

SMALL = skyfiles.of_files({"a": b"content"})


def logged(sandbox: Sandbox, *words: str) -> Callable[[], bool]:
    """Return whether the log has all of these by now."""
    return lambda: all(word in sandbox.log.read_text() for word in words)


def hang_up(sandbox: Sandbox, mount: Mount, *words: str) -> None:
    mount.daemon.signal(signal.SIGHUP)
    until(logged(sandbox, *words))


def test_sighup_reads_the_configuration_again(sandbox: Sandbox, portal: str) -> None:
    """M9: What can change takes effect, the rest is named; an error changes nothing."""
    sandbox.configure(f'portals = ["{portal}"]\n')
    with sandbox.mounted("--timeout", "20", clean=False) as mount:
        hang_up(sandbox, mount, "SIGHUP: the configuration is as before")
        sandbox.configure(f'portals = ["{portal}"]\nhns_ttl = 5\nmemory_cache = "9 MiB"\n')
        hang_up(
            sandbox,
            mount,
            "SIGHUP: hns_ttl has changed: mount again for that",
            "SIGHUP: memory_cache has changed: mount again for that",
        )
        sandbox.configure("hns_ttl = 7\nwrong = 1\n")
        hang_up(sandbox, mount, "nothing is changed: ", "line 2: unknown key 'wrong'")
        sandbox.configure(f'portals = ["{portal}"]\nhns_ttl = 5\nlog_level = "error"\n')
        hang_up(sandbox, mount, "SIGHUP: log_level is error now")
        assert mount.status()["memory_cache"]["size"] == 128 << 20
        sandbox.succeed("umount", mount.path)
    assert "unmounted" not in sandbox.log.read_text()  # that is information


LOGROTATE = "/usr/sbin/logrotate"
CONFIGURATION = (Path(__file__).parents[2] / "docs/configuration.md").read_text()


@needs(LOGROTATE)
@pytest.mark.parametrize(
    ("way", "number"),
    [
        ("create", signal.SIGHUP),
        ("create", signal.SIGUSR1),
        ("nocreate", signal.SIGHUP),
        ("copytruncate", signal.SIGUSR1),
    ],
)
def test_logrotate(sandbox: Sandbox, portal: str, way: str, number: signal.Signals) -> None:
    """M9: The lines of docs/configuration.md; no signal is needed. The mount's own new file leaves
    those of logrotate alone.
    """
    directory = sandbox.directory("logs")
    log, rotated = directory / "sky.log", directory / "sky.log.1"
    (lines,) = re.findall(r"```\n(/var/log/.*?)```", CONFIGURATION, re.DOTALL)
    lines = lines.replace("/var/log/skymount", str(directory)).replace("size 500k", "size 1")
    config = sandbox.root / "logrotate.conf"
    config.write_text(lines.replace("    create\n", f"    {way}\n"))
    config.chmod(0o600)
    logrotate = [LOGROTATE, "-s", sandbox.root / "logrotate.state", config]
    with sandbox.mounted("--portal", portal, "--log-file", log) as mount:
        for turn in (1, 2):
            before = log.read_text()
            output(logrotate)
            mount.daemon.signal(number)
            until(lambda: log.exists() and log.stat().st_size > 0)
            assert rotated.read_text().startswith(before)
            if turn == 1:
                assert "mounted, portals: " in before
        assert sorted(each.name for each in directory.iterdir()) == [
            *("sky.log", "sky.log.1", "sky.log.2.gz")
        ]
    until(lambda: "unmounted" in log.read_text())


def test_sighup_takes_new_credentials(sandbox: Sandbox) -> None:
    """M9: They are sent from then on, and are not in the log."""
    with in_thread(FakePortal()) as fake:
        fake.add(SMALL)
        sandbox.configure(f'portals = ["{fake.url}"]\napi_key = "first"\n')
        with sandbox.mounted("--disk-cache", "off") as mount:
            sandbox.configure(f'portals = ["{fake.url}"]\napi_key = "second"\n')
            hang_up(sandbox, mount, f"SIGHUP: {fake.url} has other credentials now")
            assert output(["cat", mount.skylink(SMALL.name) / "a"]) == b"content"
            sent = [each.headers.get("authorization", "") for each in fake.requests]
        text = sandbox.log.read_text()
    assert any(each.endswith("OnNlY29uZA==") for each in sent)  # ":second"
    assert "second" not in text


def test_sighup_resolves_names_again(sandbox: Sandbox, tmp_path: Path) -> None:
    """M9: A domain is asked for again though its answer holds for a minute."""

    def lead_to(name: str) -> None:
        file = tmp_path / name
        file.write_text(name)
        skylink = sandbox.upload(file, portal.url)
        sandbox.succeed("portal", "hns", "set", "--data", str(portal.data), "example", skylink)

    with portal_process(tmp_path / "portal") as portal:
        lead_to("a")
        with sandbox.mounted("--portal", portal.url) as mount:
            tree = mount.path / "hns/example"
            assert output(["ls", tree]) == b"a\n"
            lead_to("b")
            assert output(["ls", tree]) == b"a\n"
            mount.daemon.signal(signal.SIGHUP)
            until(lambda: output(["ls", tree]) == b"b\n")


def test_sighup_in_the_foreground_of_a_terminal_unmounts(sandbox: Sandbox, portal: str) -> None:
    """M9: The terminal was closed."""
    path = sandbox.directory()
    code = (
        "import os, pty, sys, time\n"
        "pid, terminal = pty.fork()\n"
        "if not pid: os.execvp(sys.argv[1], sys.argv[1:])\n"
        "shown = b''\n"
        "while b': mounted' not in shown: shown += os.read(terminal, 4096)\n"
        "os.close(terminal)\n"
        "_, status = os.waitpid(pid, 0)\n"
        "sys.exit(os.waitstatus_to_exitcode(status))\n"
    )
    mount = [*SKYMOUNT, "mount", "--foreground", "--portal", portal, str(path)]
    done = sandbox.run(sys.executable, "-c", code, *mount)
    assert (done.returncode, done.stderr) == (0, "")
    assert mounts_at(path) == []


def test_sigusr1_does_no_harm(sandbox: Sandbox, portal: str) -> None:
    """It once told what the mount does; now it says what tells that."""
    with sandbox.mounted("--portal", portal, "--log-level", "warning") as mount:
        mount.daemon.signal(signal.SIGUSR1)
        until(logged(sandbox, " WARNING SIGUSR1: `py-spy dump --pid "))
        assert output(["ls", mount.path]) == b"hns\nregistry\nskydb\nskylinks\n"


def test_the_journal_gets_priorities(sandbox: Sandbox, portal: str) -> None:
    """E5: Each line has its own, and no time, which the journal knows."""
    path = sandbox.directory()
    log = sandbox.root / "journal"
    with log.open("wb") as stream:
        found = os.fstat(stream.fileno())
        process = subprocess.Popen(
            [*SKYMOUNT, "mount", "--foreground", "--portal", f"{portal}", path],
            env={**sandbox.env, "JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"},
            stderr=stream,
            start_new_session=True,
        )
    try:
        until(lambda: f"<6>{path}: mounted, portals: {portal}\n" in log.read_text())
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        run(["fusermount3", "-uz", "--", path])
        end(process)
    assert all(line.startswith("<") for line in log.read_text().splitlines())


def test_a_wrong_level(sandbox: Sandbox) -> None:
    said = sandbox.fail("mount", "--log-level", "loud", sandbox.directory(), code=2)
    assert "'loud' is not one of 'debug', 'info', 'warning', 'error'" in said


def test_verbose(sandbox: Sandbox, portal: str) -> None:
    """-v is the level debug."""
    with sandbox.mounted("-v", "--portal", portal) as mount:
        sandbox.configure('log_level = "error"\n')
        hang_up(sandbox, mount, "SIGHUP: the configuration is as before")
