"""Mounts with the tables ``[[portals]]``: credentials, and portals that are read-only."""

import base64
from collections.abc import Iterator

import pytest

from skymount.portal.ledger.outbox import Status
from tests.fakes import portal as faults
from tests.fakes.portal import FakePortal, in_thread
from tests.fakes.skyfiles import of_files
from tests.mount.keys import HOME, Owner, program
from tests.mount.scripted import ScriptedPortal, scripted_portal
from tests.skymount_process import Sandbox, run

CONTENT = of_files({"f": b"content"})


@pytest.fixture
def mirror() -> Iterator[ScriptedPortal]:
    """A portal that is used read-only."""
    with scripted_portal() as portal:
        yield portal


def test_credentials_stay_with_their_portal(sandbox: Sandbox) -> None:
    """Neither portal gets those of the other one; log and status do not have them."""
    with in_thread(FakePortal()) as one, in_thread(FakePortal()) as two:
        one.fault(faults.status(404))
        two.add(CONTENT)
        sandbox.configure(
            f'[[portals]]\nurl = "{one.url}"\napi_key = "secret of one"\n'
            f'[[portals]]\nurl = "{two.url}"\nheaders = {{ Cookie = "secret of two" }}\n'
        )
        with sandbox.mounted() as mount:
            assert run(["cat", mount.skylink(CONTENT.name) / "f"]).stdout == "content"
            status = mount.status()
        basic = "Basic " + base64.b64encode(b":secret of one").decode()
        assert {request.headers.get("authorization") for request in one.requests} == {basic}
        assert {request.headers.get("cookie") for request in one.requests} == {None}
        assert {request.headers.get("authorization") for request in two.requests} == {None}
        assert {request.headers.get("cookie") for request in two.requests} == {"secret of two"}
    assert status["portals"] == [one.url, two.url]
    assert "secret" not in str(status) + sandbox.log.read_text()


def test_without_a_portal_to_write_to_close_is_erofs(
    sandbox: Sandbox, mirror: ScriptedPortal
) -> None:
    """W2: so are rm and rename; the content is kept until it is retried by hand."""
    owner = Owner.make(sandbox, mirror.url)
    mirror.set(owner.signed("there", b"old", 0))
    sandbox.configure(f'[[portals]]\nurl = "{mirror.url}"\nread_only = true\n')
    with sandbox.mounted() as mount, program(mount.path / "registry" / HOME) as writer:
        assert run(["cat", mount.path / "registry" / HOME / "there"]).stdout == "old"
        assert writer.do("(fd := os.open('x', os.O_WRONLY | os.O_CREAT)) and None") == "None"
        assert writer.do("os.write(fd, b'text')") == "4"
        assert writer.do("os.fsync(fd)") == "EROFS"
        assert writer.do("os.close(fd)") == "EROFS"
        assert writer.do("os.unlink('there')") == "EROFS"
        assert writer.do("os.rename('there', 'then')") == "EROFS"
    with sandbox.mounted() as mount, program(mount.path / "skydb" / HOME) as writer:
        assert writer.do("(fd := os.open('d.json', os.O_WRONLY | os.O_CREAT)) and None") == "None"
        assert writer.do("os.write(fd, b'{}')") == "2"
        assert writer.do("os.close(fd)") == "EROFS"
    assert mirror.posts == []
    assert {(each.data, each.signed, each.status) for each in owner.pending()} <= {
        (b"text", None, Status.FAILED),
        (b"old", None, Status.FAILED),
    }


def test_writes_skip_a_portal_that_is_read_only(
    sandbox: Sandbox, mirror: ScriptedPortal, portal: str
) -> None:
    """W2: what is written goes to the other portals, as if it were not there."""
    owner = Owner.make(sandbox, portal)
    sandbox.configure(
        f'[[portals]]\nurl = "{mirror.url}"\nread_only = true\n[[portals]]\nurl = "{portal}"\n'
    )
    with sandbox.mounted() as mount:
        files = mount.path / "registry" / HOME
        assert run(["sh", "-c", "printf text > x"], cwd=files).returncode == 0
        documents = mount.path / "skydb" / HOME
        assert run(["sh", "-c", "echo '{}' > d.json"], cwd=documents).returncode == 0
    assert owner.data("x") == b"text"
    assert owner.data("d") is not None
    assert mirror.posts == []
    assert owner.pending() == []
