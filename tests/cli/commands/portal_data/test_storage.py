"""``skymount portal list`` and its siblings, while a portal runs and while not."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.mount.keys import until
from tests.portal_commands import ABSENT, upload, use
from tests.portal_process import portal_process
from tests.server.http_client import Client
from tests.server.storage.stored import damage
from tests.skymount_process import LIMIT, SKYMOUNT, Sandbox

COMMANDS = [
    f"portal {name}"
    for name in ("list", "show", "remove", "pin", "unpin", "gc", "verify", "export", "import")
]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(sandbox: Sandbox, command: str) -> None:
    said = sandbox.succeed(*command.split(), "--help")
    lines = [line.strip() for line in said.splitlines()]
    heading = next(i for i, line in enumerate(lines) if line in ("Example:", "Examples:"))
    assert lines[heading + 1].startswith(f"skymount {command}")


def test_while_a_portal_runs(sandbox: Sandbox, tmp_path: Path) -> None:
    """RT5: it makes the changes itself, and knows of them at once."""
    data = tmp_path / ("deep" * 30) / "data"
    with portal_process(data) as portal, Client(base_url=portal.url) as client:
        links = upload(client)
        use(sandbox, ["--data", str(data)], links)
        assert client.get(f"/{links[0]}").content == b"one"
        assert [client.get(f"/{link}").status_code for link in links[1:]] == [404, 404]
        assert client.get("/svc/stats").json()["numfiles"] == 1
    assert not (data / "control").exists()


def test_while_no_portal_runs(sandbox: Sandbox, tmp_path: Path) -> None:
    """RT5: the command takes the lock."""
    with portal_process(tmp_path) as portal, Client(base_url=portal.url) as client:
        links = upload(client)
    use(sandbox, ["--data", str(tmp_path)], links)
    with portal_process(tmp_path) as portal, Client(base_url=portal.url) as client:
        assert [client.get(f"/{link}").status_code for link in links] == [200, 404, 404]


def test_a_portal_that_cannot_be_asked(sandbox: Sandbox, tmp_path: Path) -> None:
    """RT5: two never write; what is damaged is named."""
    with portal_process(tmp_path) as portal, Client(base_url=portal.url) as client:
        link = client.upload_file("a", b"x")
        (tmp_path / "control").unlink()
        refused = sandbox.skymount("portal", "remove", link, "--data", str(tmp_path))
        assert refused.returncode == 1
        assert "cannot be asked" in refused.stderr
        damage(tmp_path, link, lambda base: base[:-1] + b"y")
        damaged = sandbox.skymount("portal", "verify", "--json", "--data", str(tmp_path))
        assert damaged.returncode == 1
        assert [one["skylink"] for one in json.loads(damaged.stdout)["damaged"]] == [link]


@pytest.mark.parametrize("command", ["list", "verify", "gc --keep 1d", f"remove {ABSENT}"])
def test_without_a_portals_data(sandbox: Sandbox, tmp_path: Path, command: str) -> None:
    """RT5: nothing is made there."""
    refused = sandbox.skymount("portal", *command.split(), "--data", str(tmp_path / "none"))
    assert refused.returncode == 1
    assert "no portal keeps its data there" in refused.stderr
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    "given", ["--keep never", "--keep 0", "--max-storage lots", "--keep=", "--max-storage="]
)
def test_bad_options(sandbox: Sandbox, given: str) -> None:
    """RT3: wrong usage."""
    assert sandbox.skymount("portal", "serve", *given.split()).returncode == 2


def test_export_and_import(sandbox: Sandbox, tmp_path: Path) -> None:
    """RT6: beside a portal that runs, into a new directory; no file is written over."""
    data, other, archive = tmp_path / "data", tmp_path / "other", tmp_path / "portal.tar"
    with portal_process(data) as portal, Client(base_url=portal.url) as client:
        (link, *_) = upload(client)
        said = sandbox.succeed("portal", "export", archive, "--json", "--data", data)
        assert json.loads(said)["skyfiles"] == 3
        assert archive.stat().st_mode & 0o777 == 0o600
        again = sandbox.skymount("portal", "export", archive, "--data", data)
        assert again.returncode == 1
    done = json.loads(sandbox.succeed("portal", "import", archive, "--json", "--data", other))
    assert (done["skyfiles"], done["problems"]) == (3, [])
    rows = json.loads(sandbox.succeed("portal", "list", "--json", "--data", other))
    assert link in [row["skylink"] for row in rows]


@pytest.mark.parametrize("number", ["INT", "TERM", "HUP", "QUIT", "KILL"])
def test_an_export_that_is_ended(sandbox: Sandbox, tmp_path: Path, number: str) -> None:
    """No archive has its name; a signal that can be caught leaves nothing, and the next export is
    as usual.
    """
    data, place = tmp_path / "data", tmp_path / "backup"
    place.mkdir()
    with portal_process(data) as portal, Client(base_url=portal.url) as client:
        client.upload_file("big", bytes(8 << 20))
    (payload,) = data.rglob("payload")
    payload.rename(tmp_path / "payload")
    os.mkfifo(payload)  # which the export waits for
    command = [*SKYMOUNT, "portal", "export", place / "portal.tar", "--data", data]
    with subprocess.Popen(command, env=sandbox.env, stderr=subprocess.PIPE) as process:
        until(lambda: list(place.glob(".skymount-*.part/tree/portal.tar")))
        process.send_signal(signal.Signals[f"SIG{number}"])
        _, said = process.communicate(timeout=LIMIT)
    if number == "KILL":
        assert said == b""
        assert not (place / "portal.tar").exists()
    else:
        archive = place / "portal.tar"
        assert said.decode() == f"skymount: interrupted: {archive} was not made\n"
        assert process.returncode == 128 + signal.Signals[f"SIG{number}"]
        assert os.listdir(place) == []
    (tmp_path / "payload").rename(payload)
    sandbox.succeed("portal", "export", place / "portal.tar", "--data", data)


def test_an_export_into_a_pipe_that_nobody_reads_can_be_ended(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    with portal_process(tmp_path) as portal, Client(base_url=portal.url) as client:
        client.upload_file("big", bytes(1 << 20))
    command = [*SKYMOUNT, "portal", "export", "-", "--data", tmp_path]
    with subprocess.Popen(command, env=sandbox.env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        process.terminate()
        assert process.wait(LIMIT) == 143


def test_the_reader_of_an_export_has_gone(sandbox: Sandbox, tmp_path: Path) -> None:
    """141 without a word, as `portal export - | head -c1`."""
    with portal_process(tmp_path):
        pass
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as stdout:
        command = [*SKYMOUNT, "portal", "export", "-", "--data", tmp_path]
        done = subprocess.run(
            command, env=sandbox.env, stdout=stdout, stderr=subprocess.PIPE, check=False
        )
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_damaged_archive_is_no_wrong_use(sandbox: Sandbox, tmp_path: Path) -> None:
    archive = tmp_path / "portal.tar"
    with portal_process(tmp_path / "data"):
        pass
    sandbox.succeed("portal", "export", archive, "--data", tmp_path / "data")
    archive.write_bytes(archive.read_bytes()[:1500])
    said = sandbox.fail("portal", "import", archive, "--data", tmp_path / "other")
    assert "the archive is" in said
