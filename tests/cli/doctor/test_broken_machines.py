"""``skymount doctor`` on machines that are really broken: it names each fault, and what to do."""

import json
import os
import signal
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from tests.cli.doctor.http_server import http_server, tls_server
from tests.fuse_device import mounts
from tests.mount.namespaces import Namespace, new_namespace
from tests.portal_process import portal_command
from tests.skymount_process import Sandbox

Found = dict[str, dict[str, str]]


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    """A place where a test may mount unseen."""
    with new_namespace(network=False) as made:
        yield made


def examined(box: Sandbox, *args: str | Path) -> Found:
    """Return what doctor found, by subject; of several about one, the worst."""
    done = box.skymount("doctor", "--json", *args)
    assert done.stderr == ""
    findings = json.loads(done.stdout)
    order = ["ok", "warning", "failure"]
    worst = max(order.index(each["level"]) for each in findings)
    assert done.returncode == (1 if worst == 2 else 0)
    return {each["subject"]: each for each in sorted(findings, key=_level)}


def _level(finding: dict[str, str]) -> int:
    return ["ok", "warning", "failure"].index(finding["level"])


def fault(box: Sandbox, subject: str, level: str = "failure") -> str:
    found = examined(box)
    assert subject in found, found
    assert found[subject]["level"] == level, found[subject]
    return f"{found[subject]['text']}; {found[subject]['advice']}"


def test_a_sound_machine(box: Sandbox, portal: str) -> None:
    """Nothing but what other tests have mounted is a failure; nothing is made."""
    found = examined(box)
    faults = [each for each in found.values() if each["level"] != "ok"]
    assert [each for each in faults if not each["subject"].startswith("mount ")] == []
    assert found[f"portal {portal}"]["text"] == "it answers, in the dialect svc"
    assert found[f"clock of {portal}"]["text"] == "it agrees with ours"
    assert "SKYMOUNT_PORTALS" in found["configuration"]["text"]
    lines = box.skymount("doctor").stdout.splitlines()
    assert any(line.startswith("ok       libfuse: 3.") for line in lines)
    assert not (box.root / "state/skymount").exists()
    assert not (box.root / "cache/skymount").exists()


def test_without_a_configured_portal(sandbox: Sandbox) -> None:
    with new_namespace(network=True) as made:
        found = examined(sandbox.within(made.prefix))
    text = found["portal http://127.0.0.1:4280"]["text"]
    assert text == "nobody listens there; a mount starts a portal of its own"


# FUSE


def test_libfuse_is_damaged(box: Sandbox, namespace: Namespace) -> None:
    text = examined(box)["libfuse"]["text"]
    library = Path(text.partition("(")[2].rstrip(")")).resolve()
    namespace.do("mount", "--bind", "/dev/null", library)
    said = fault(box.within(namespace.prefix), "libfuse")
    assert said.startswith("it cannot be loaded: ")
    assert "sudo apt install libfuse3-3" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change owners")
def test_allow_other_is_not_allowed(box: Sandbox, namespace: Namespace) -> None:
    nobody = box.within(namespace.as_nobody(box.root))
    nobody.configure("allow_other = true\n").chmod(0o644)
    nobody.directory_of(65534)
    namespace.do("mount", "--bind", "/dev/null", "/etc/fuse.conf")
    assert "allow_other is set, but not this in /etc/fuse.conf" in fault(nobody, "user_allow_other")


# The configuration and keys


def test_a_wrong_key_in_the_configuration(sandbox: Sandbox) -> None:
    path = sandbox.configure('timeout = 5\nmemory_cach = "1 MiB"\n')
    assert fault(sandbox, "configuration").startswith(f"{path}: line 2: unknown key 'memory_cach'")
    assert "cannot be read" in fault(sandbox, "portals, proxy, cache", "warning")


def test_others_can_read_secrets(box: Sandbox) -> None:
    path = box.configure('api_key = "hunter2"\n')
    path.chmod(0o644)
    said = fault(box, "configuration")
    assert f"`chmod 600 {path}`" in said
    assert "hunter2" not in said


def test_keys_that_others_can_read_and_damaged_ones(box: Sandbox) -> None:
    box.succeed("key", "generate", "home")
    keys = box.root / "data/skymount/keys"
    (keys / "home").chmod(0o644)
    assert "chmod 600" in fault(box, "keyring")
    (keys / "home").chmod(0o600)
    (keys / "home").write_text("{")
    assert f"{keys / 'home'}: " in fault(box, "keyring")


# Portals


def test_a_portal_that_is_not_there(sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    said = fault(sandbox.with_env(SKYMOUNT_PORTALS=url), f"portal {url}")
    assert said.endswith("; is the portal running, and is the port right?")


def test_a_portal_that_is_silent(sandbox: Sandbox) -> None:
    """It does not take longer than the time-outs allow."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        said = fault(sandbox.with_env(SKYMOUNT_PORTALS=url), f"portal {url}")
    assert said.startswith("no answer in")


def test_an_http_port_that_is_spoken_https_to(sandbox: Sandbox, portal: str) -> None:
    url = portal.replace("http://", "https://")
    said = fault(sandbox.with_env(SKYMOUNT_PORTALS=url), f"portal {url}")
    assert said.endswith("nobody speaks TLS there: write http:// in place of https://")


def test_certificates(sandbox: Sandbox, tmp_path: Path) -> None:
    """One that has expired, and one of an authority that nobody knows."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    now = datetime.now(UTC)
    with (
        http_server(tls=tls_server(authority, now - timedelta(days=1))) as expired,
        http_server(tls=tls_server(authority, now + timedelta(days=1))) as unknown,
    ):
        told = sandbox.with_env(SKYMOUNT_CA_FILE=str(tmp_path / "ca.pem"))
        said = fault(told.with_env(SKYMOUNT_PORTALS=expired), f"portal {expired}")
        assert "certificate has expired" in said
        assert "its operator must renew it" in said
        said = fault(sandbox.with_env(SKYMOUNT_PORTALS=unknown), f"portal {unknown}")
        assert "ca_file" in said
        found = examined(told.with_env(SKYMOUNT_PORTALS=unknown))
        assert found[f"portal {unknown}"]["level"] == "ok"


def test_a_portal_with_a_wrong_clock(sandbox: Sandbox) -> None:
    with http_server(date="Thu, 01 Jan 2099 00:00:00 GMT") as url:
        said = fault(sandbox.with_env(SKYMOUNT_PORTALS=url), f"clock of {url}", "warning")
    assert "ahead of this machine's; `timedatectl` says" in said


def test_another_dialect_and_no_portal_at_all(sandbox: Sandbox) -> None:
    with (
        http_server(path="/skynet/") as other,
        http_server(body=b"<p>hello</p>") as pages,
        http_server(path="/none") as without,
    ):
        urls = " ".join((other, pages, without))
        found = examined(sandbox.with_env(SKYMOUNT_PORTALS=urls))
    said = found[f"portal {other}"]
    assert said["text"].startswith("it speaks the dialect skynet, not svc: ")
    assert said["advice"] == 'set dialect = "skynet"'
    for url in (pages, without):
        assert found[f"portal {url}"]["level"] == "failure"
        assert found[f"portal {url}"]["advice"] == "is this the address of a portal?"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change owners")
def test_somebody_elses_portal_at_the_default_address(sandbox: Sandbox, tmp_path: Path) -> None:
    """It would see what is uploaded."""
    with new_namespace(network=True) as made:
        nobody = made.as_nobody(tmp_path)
        tmp_path.chmod(0o755)
        data = tmp_path / "portal"
        data.mkdir()
        os.chown(data, 65534, 65534)
        command = portal_command("serve", "--data", str(data))
        portal = made.start(*nobody[len(made.prefix) :], *command, env=sandbox.env)
        assert portal.stdout is not None
        assert b"listening" in portal.stdout.readline()
        inside = sandbox.within(made.prefix)
        said = fault(inside, "portal http://127.0.0.1:4280", "warning")
        found = examined(inside)
    assert said.startswith("another user (uid 65534) listens there, so it is not used by default")
    assert "`skymount mount` starts one of your own" in said
    assert [each for each in found if "4280" in each] == ["portal http://127.0.0.1:4280"]


def test_a_proxy_that_is_not_there(sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        proxy = f"http://me:secret@127.0.0.1:{taken.getsockname()[1]}"
    told = sandbox.with_env(HTTPS_PROXY=proxy, SKYMOUNT_PORTALS="https://portal.invalid")
    said = fault(told, "proxy")
    assert "cannot be reached" in said
    assert "mend HTTPS_PROXY" in said
    assert "secret" not in said


# What is kept


def test_a_full_disk(box: Sandbox, namespace: Namespace) -> None:
    """The file system is full, but looks well otherwise."""
    for name in ("cache", "state"):
        path = box.root / name / "skymount"
        path.mkdir()
        namespace.do("mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "none", path)
        namespace.run("dd", "if=/dev/zero", f"of={path}/full", "bs=64k")
    found = examined(box.within(namespace.prefix))
    for subject in ("disk cache", "state"):
        assert found[subject]["level"] == "failure"
        assert "No space left on device" in found[subject]["text"]


def test_little_room_for_the_cache(box: Sandbox, namespace: Namespace) -> None:
    path = box.root / "cache/skymount"
    path.mkdir()
    namespace.do("mount", "-t", "tmpfs", "-o", "size=64m,mode=700", "none", path)
    said = fault(box.within(namespace.prefix), "disk cache", "warning")
    assert said.endswith("fewer than it may take; make room, or set a smaller disk_cache")


def test_a_damaged_ledger(box: Sandbox, owner: str) -> None:
    box.succeed("registry", "set", "home", "greeting", "hello")
    ledger = box.root / "state/skymount/ledger.sqlite3"
    assert "nothing is pending" in examined(box)["ledger"]["text"]
    ledger.write_bytes(b"damaged" * 4096)
    said = fault(box, "ledger")
    assert str(ledger) in said
    assert "restore it from a backup" in said
    assert ledger.read_bytes() == b"damaged" * 4096


def test_directories_that_others_can_change(box: Sandbox) -> None:
    for name in ("cache", "state"):
        (box.root / name / "skymount").mkdir()
        (box.root / name / "skymount").chmod(0o777)
    found = examined(box)
    for subject in ("disk cache", "state"):
        assert "chmod go-w" in found[subject]["text"]


# Mounts and the service


@mounts
def test_a_mount_whose_daemon_is_gone(box: Sandbox) -> None:
    with box.mounted() as mount:
        assert examined(box)[f"mount {mount.path}"]["level"] == "ok"
        mount.daemon.signal(signal.SIGKILL)
        mount.daemon.wait()
        assert "its daemon is gone" in fault(box, f"mount {mount.path}")


def test_units_that_cannot_mount(box: Sandbox) -> None:
    """One that takes away what fusermount3 needs, and ones that do not find the program."""
    path = box.root / "config/systemd/user/skymount@.service"
    path.parent.mkdir(parents=True)
    text = (Path(__file__).parents[3] / "systemd/skymount@.service").read_text()
    path.write_text(text.replace("KillMode", "NoNewPrivileges=yes\nKillMode"))
    assert "NoNewPrivileges= keeps it from mounting; remove that line" in fault(box, "systemd unit")
    path.write_text(text.replace("env skymount", "env skymount-of-yesterday"))
    assert f"{path}: there is no skymount-of-yesterday (PATH is " in fault(box, "systemd unit")
    path.write_text(text.replace("/usr/bin/env skymount", '"/moved away/bin/skymount"'))
    said = fault(box, "systemd unit")
    assert f"{path}: there is no /moved away/bin/skymount (PATH is " in said
    assert "`skymount service install NAME` writes it anew" in said
    path.unlink()
    box.configure('[mounts.home]\nmountpoint = "~/sky"\n')
    box.skymount("service", "install", "home")
    assert examined(box)["systemd unit"]["text"] == str(path)
