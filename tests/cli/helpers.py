"""What tests of several commands share."""

import os
import pty
import select
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click
import httpx

from skymount.wire.key_pair import SigningKeyPair
from skymount.wire.registry_entry import Entry
from tests.fakes.portal import FakePortal, Reply, Request
from tests.fakes.skyfiles import noise
from tests.skymount_process import LIMIT, SKYMOUNT, Done, Sandbox, end

BIG = noise(9 << 20, 7)
STRANGER = SigningKeyPair.from_seed("insecure test seed of somebody else")


def piped(sandbox: Sandbox, stdin: str | bytes, *args: str) -> Done:
    return sandbox.skymount(*args, stdin=stdin)


def piped_well(sandbox: Sandbox, stdin: str | bytes, *args: str) -> str:
    """Run it, which must have nothing to complain about; return what it prints."""
    done = piped(sandbox, stdin, *args)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def piped_badly(sandbox: Sandbox, stdin: str | bytes, *args: str, code: int = 2) -> str:
    """Run it, which must fail; return its one line on stderr."""
    done = piped(sandbox, stdin, *args)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1), done.stderr
    return done.stderr.removeprefix("skymount: ").rstrip("\n")


def post(url: str, entry: Entry) -> None:
    body = entry.sign(STRANGER.private_key).encode_update()
    httpx.post(f"{url}/svc/registry", content=body).raise_for_status()


def asking(sandbox: Sandbox, *portals: FakePortal) -> Sandbox:
    """Return a sandbox whose commands ask these portals."""
    return sandbox.with_env(SKYMOUNT_PORTALS=" ".join(portal.url for portal in portals))


def stalled(fake: FakePortal) -> threading.Event:
    """Let a portal send no content but its first bytes; the event is set when it is asked."""
    asked = threading.Event()

    def stall(_: Request, reply: Reply) -> Reply:
        asked.set()
        return replace(reply, length=len(reply.body), sent=100, then="stall")

    fake.fault(stall, "^GET /[^/]*\\?")
    return asked


def on_terminal(sandbox: Sandbox, *args: str | Path) -> tuple[str, str]:
    """Run ``skymount`` with stderr on a terminal; return (stdout, what the terminal got)."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [*SKYMOUNT, *map(str, args)],
        env={**sandbox.env, "TERM": "xterm"},
        stdin=slave,
        stdout=subprocess.PIPE,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    shown = b""
    try:
        while select.select([master], [], [], LIMIT)[0]:
            try:
                piece = os.read(master, 65536)
            except OSError:  # EIO: nobody has the terminal open any more
                break
            shown += piece
        assert process.stdout is not None
        out = process.stdout.read()
        assert process.wait(LIMIT) == 0, shown
    finally:
        end(process)
        os.close(master)
    return out.decode(), shown.decode()


def leaves(command: click.Command, *above: str) -> Iterator[tuple[str, click.Command]]:
    """Yield (name, command) of each command at or below one, without groups and removed ones."""
    if not isinstance(command, click.Group):
        yield " ".join(above), command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        if not below.hidden:
            yield from leaves(below, *above, name)
