"""The embedded portal as a child: started, asked whether it listens, and stopped."""

import json
import socket
import sys
from collections.abc import Iterator

import pytest

from skymount.daemon.embedded_portal import EmbeddedPortal, is_reachable
from tests.mount.namespaces import new_namespace, skip_without_root
from tests.skymount_process import Sandbox

_PROGRAM = """
import json, logging
import trio
from skymount.daemon.embedded_portal import EmbeddedPortal, is_reachable
from skymount.settings import DEFAULT_SVC_PORTAL_URL

logging.basicConfig(format="%(message)s")
told = []

def note(portal):
    told.append([portal.was_started, portal.is_running, is_reachable(DEFAULT_SVC_PORTAL_URL, 60)])

{steps}
print(json.dumps(told))
"""


@pytest.fixture
def alone(sandbox: Sandbox) -> Iterator[Sandbox]:
    """A sandbox in which the default address is free."""
    skip_without_root()
    with new_namespace(network=True) as space:
        yield sandbox.within(space.prefix)


def run(alone: Sandbox, steps: str) -> tuple[list[object], str]:
    """Run some steps in a process; return what it noted and what it logged."""
    done = alone.run(sys.executable, "-c", _PROGRAM.format(steps=steps))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def test_what_is_reachable() -> None:
    """Whatever listens at the address; the path does not matter."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert is_reachable(url)
        assert is_reachable(f"{url}/some/where")
    assert not is_reachable(url)
    assert not is_reachable("https://256.0.0.1")


async def test_before_the_start() -> None:
    """It does not listen, and there is nothing to stop."""
    portal = EmbeddedPortal()
    portal.stop()
    assert not await portal.is_listening()
    assert (portal.was_started, portal.is_running) == (False, False)


def test_start_and_stop(alone: Sandbox) -> None:
    """M5: it is at the default address from when it says so until it is stopped."""
    noted, said = run(
        alone,
        "portal = EmbeddedPortal(start_timeout=60)\n"
        "note(portal)\n"
        "portal.start()\n"
        "told.append(trio.run(portal.is_listening))\n"
        "note(portal)\n"
        "portal.stop()\n"
        "note(portal)",
    )
    assert noted == [[False, False, False], True, [True, True, True], [False, False, False]]
    assert said == ""


def test_one_that_does_not_start(alone: Sandbox) -> None:
    """It is not waited for, and the log has its words."""
    noted, said = run(
        alone,
        "first, second = EmbeddedPortal(start_timeout=60), EmbeddedPortal(start_timeout=60)\n"
        "first.start()\n"
        "told.append(trio.run(first.is_listening))\n"
        "second.start()\n"
        "told.append(trio.run(second.is_listening))\n"
        "first.stop(), second.stop()",
    )
    assert noted == [True, False]
    assert said.startswith("portal: ")
    assert "another portal is running" in said or "cannot listen" in said


def test_one_that_ended_is_replaced(alone: Sandbox) -> None:
    """M5: also where it was another mount's."""
    noted, said = run(
        alone,
        "other, portal = EmbeddedPortal(start_timeout=60), EmbeddedPortal(start_timeout=60)\n"
        "other.start()\n"
        "async def main():\n"
        "    await other.is_listening()\n"
        "    async with trio.open_nursery() as nursery:\n"
        "        nursery.start_soon(portal.keep_running)\n"
        "        await trio.sleep(0.1)\n"
        "        note(portal)\n"
        "        other.stop()\n"
        "        with trio.fail_after(30):\n"
        "            while not is_reachable(DEFAULT_SVC_PORTAL_URL):\n"
        "                await trio.sleep(0.1)\n"
        "        note(portal)\n"
        "        nursery.cancel_scope.cancel()\n"
        "trio.run(main)\n"
        "portal.stop()",
    )
    assert noted == [[False, False, True], [True, True, True]]
    assert "no portal answers at http://127.0.0.1:4280 any more, starting one" in said
