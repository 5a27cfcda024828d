"""``skymount portal hns``: names are set, removed and listed, while a portal runs and while not."""

import json
import subprocess
from pathlib import Path

import httpx
import pytest

from skymount.wire.registry_entry import entry_link
from skymount.wire.skylink import Skylink
from tests.portal_process import portal_process
from tests.skymount_process import SKYMOUNT, Sandbox

A = "AABsdvY0MzM9fsdHVWdqiw1Rj4Kp9KAZwYNbHO-ksMFHkg"
B = "BAAAdvY0MzM9fsdHVWdqiw1Rj4Kp9KAZwYNbHO-ksMFHkg"
KEY, TWEAK = "ab" * 32, "cd" * 32

COMMANDS = ["portal hns", "portal hns set", "portal hns remove", "portal hns list"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_goes_to_stdout_and_has_an_example(sandbox: Sandbox, command: str) -> None:
    said = sandbox.succeed(*command.split(), "--help")
    lines = [line.strip() for line in said.splitlines()]
    heading = next(i for i, line in enumerate(lines) if line in ("Example:", "Examples:"))
    assert lines[heading + 1].startswith(f"skymount {command}")


def test_set_list_remove(sandbox: Sandbox) -> None:
    """Success is silent; a second value takes the place of the first."""
    assert sandbox.succeed("portal", "hns", "list") == ""
    assert sandbox.succeed("portal", "hns", "set", "Example.", A) == ""
    assert sandbox.succeed("portal", "hns", "set", "bücher.example", f"sia://{A}/x?y") == ""
    assert sandbox.succeed("portal", "hns", "set", "example", f"{B}/docs/") == ""
    assert sandbox.succeed("portal", "hns", "list") == (
        f"example svc://{B}/docs\nxn--bcher-kva.example sia://{A}/x\n"
    )
    assert sandbox.succeed("portal", "hns", "remove", "EXAMPLE") == ""
    assert sandbox.succeed("portal", "hns", "list") == f"xn--bcher-kva.example sia://{A}/x\n"


def test_list_as_json(sandbox: Sandbox) -> None:
    sandbox.succeed("portal", "hns", "set", "a", A)
    sandbox.succeed("portal", "hns", "set", "b", f"{KEY}/{TWEAK}")
    out = sandbox.succeed("portal", "hns", "list", "--json")
    assert out.count("\n") == 1
    assert json.loads(out) == [
        {"domain": "a", "value": f"svc://{A}", "skylink": A},
        {
            "domain": "b",
            "value": f"svcns://ed25519%3A{KEY}/{TWEAK}",
            "skylink": str(entry_link(bytes.fromhex(KEY), bytes.fromhex(TWEAK))),
        },
    ]


def test_lines_of_no_sense_are_named(sandbox: Sandbox) -> None:
    file = sandbox.directory("data") / "hns.zone"
    file.write_text(f"a {A}\nb \x1b[2Jnonsense\n.. {A}\n")
    done = sandbox.skymount("portal", "hns", "list", "--data", file.parent)
    assert done.returncode == 0
    assert done.stdout == f"a {A}\n"
    warnings = done.stderr.splitlines()
    assert [line.partition(": the")[0].partition(": not")[0] for line in warnings] == [
        f"skymount: warning: {file} line 2",
        f"skymount: warning: {file} line 3",
    ]
    out = sandbox.skymount("portal", "hns", "list", "--json", "--data", file.parent).stdout
    assert json.loads(out)[1] == {"domain": "b", "value": "\x1b[2Jnonsense", "skylink": None}


def test_the_dialect(sandbox: Sandbox) -> None:
    """It is the configured one, or that of the option; a stated scheme stays."""
    sandbox.succeed("portal", "hns", "set", "a", A, "--dialect", "skynet")
    sandbox.configure('dialect = "skynet"\n')
    sandbox.succeed("portal", "hns", "set", "b", A)
    sandbox.succeed("portal", "hns", "set", "c", f"{KEY}/{TWEAK}")
    sandbox.succeed("portal", "hns", "set", "d", f"svc://{A}")
    assert sandbox.succeed("portal", "hns", "list").splitlines() == [
        f"a sia://{A}",
        f"b sia://{A}",
        f"c skyns://ed25519%3A{KEY}/{TWEAK}",
        f"d svc://{A}",
    ]


def test_removing_what_is_not_there(sandbox: Sandbox) -> None:
    said = sandbox.fail("portal", "hns", "remove", "absent", code=3)
    assert said.endswith("hns.zone: no record of absent")


@pytest.mark.parametrize("value", ["x", A[1:], f"{KEY}/{TWEAK[1:]}", f"svc://{A}/a\nb {B}", ""])
def test_a_value_that_is_none(sandbox: Sandbox, value: str) -> None:
    sandbox.fail("portal", "hns", "set", "a", value, code=2)
    assert sandbox.succeed("portal", "hns", "list") == ""


def test_a_data_key_must_be_hashed(sandbox: Sandbox) -> None:
    for value in (f"{KEY}/site", "home/site"):
        said = sandbox.fail("portal", "hns", "set", "a", value, code=2)
        assert "64 hex digits" in said
        assert '"$(skymount registry link KEY DATAKEY)"' in said


def test_the_link_of_a_registry_entry(sandbox: Sandbox) -> None:
    link = sandbox.succeed("registry", "link", KEY, "site").rstrip()
    sandbox.succeed("portal", "hns", "set", "a", link)
    assert sandbox.succeed("portal", "hns", "list") == f"a {link}\n"


@pytest.mark.parametrize("domain", ["", "a..b", "a b", "x" * 64, "a/b"])
def test_a_domain_that_is_none(sandbox: Sandbox, domain: str) -> None:
    sandbox.fail("portal", "hns", "set", domain, A, code=2)
    sandbox.fail("portal", "hns", "remove", domain, code=2)


def test_a_directory_that_cannot_be_used(sandbox: Sandbox) -> None:
    (sandbox.root / "file").touch()
    said = sandbox.fail("portal", "hns", "set", "a", A, "--data", "file/below")
    assert "file/below" in said


def test_writers_at_once_lose_nothing(sandbox: Sandbox) -> None:
    writers = [
        subprocess.Popen(
            [*SKYMOUNT, "portal", "hns", "set", f"a{number}", A],
            env=sandbox.env,
            cwd=sandbox.root,
            stdout=subprocess.DEVNULL,
        )
        for number in range(6)
    ]
    assert [writer.wait(60) for writer in writers] == [0] * 6
    names = {line.split()[0] for line in sandbox.succeed("portal", "hns", "list").splitlines()}
    assert names == {f"a{number}" for number in range(6)}


def test_a_running_portal_takes_changes_over(sandbox: Sandbox, tmp_path: Path) -> None:
    """On the same data directory, at once; the default one is that of ``portal serve``."""
    data = sandbox.root / "data/skymount/portal"
    with portal_process(data) as portal:
        (sandbox.root / "page.html").write_text("hello")
        skylink = sandbox.upload(sandbox.root / "page.html", portal.url)
        assert Skylink(skylink)
        sandbox.succeed("portal", "hns", "set", "home", skylink)
        assert httpx.get(f"{portal.url}/hns/home").text == "hello"
        assert httpx.get(f"{portal.url}/hnsres/home").json() == {"skylink": f"svc://{skylink}"}
        sandbox.succeed("portal", "hns", "remove", "home")
        assert httpx.get(f"{portal.url}/hns/home").status_code == 404


def test_a_data_directory_that_others_can_write_to(sandbox: Sandbox) -> None:
    """It is refused, as by the portal itself: another user could put another zone there."""
    data = sandbox.directory("data")
    data.chmod(0o777)
    said = sandbox.fail("portal", "hns", "set", "example", A, "--data", data)
    assert said == (f"{data} cannot be used: other users can write to it; run: chmod go-w {data}")
    assert list(data.iterdir()) == []
