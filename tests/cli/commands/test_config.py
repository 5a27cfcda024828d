"""``skymount config``: the file is written, checked and shown."""

import json
import os
import re
import stat
import tomllib
from pathlib import Path

import pytest

from tests.skymount_process import Sandbox

PORTAL = "https://portal.example"


def default_file(sandbox: Sandbox) -> Path:
    return sandbox.root / "config/skymount/config.toml"


def rows(shown: str) -> dict[str, tuple[str, str]]:
    """Return what `show` printed: by key the value in TOML, and where it was set."""
    found = {}
    for line in shown.splitlines():
        setting, _, origin = line.rpartition("  # ")
        key, _, value = setting.partition(" = ")
        found[key] = (value.rstrip(), origin)
    return found


def test_path_is_that_of_the_default_file(sandbox: Sandbox) -> None:
    assert sandbox.succeed("config", "path") == f"{default_file(sandbox)}\n"


def test_init_writes_a_file_that_all_commands_use(box: Sandbox, portal: str) -> None:
    """The one step of the quick start: then no command needs --portal."""
    sandbox = Sandbox(box.root)  # without the variable that names the portal
    file = default_file(sandbox)
    assert sandbox.succeed("config", "init", "--portal", portal) == f"{file}\n"
    assert tomllib.loads(file.read_text()) == {"portals": [portal]}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    (sandbox.root / "note").write_text("hello")
    skylink = sandbox.succeed("upload", "note").strip()
    assert sandbox.succeed("cat", skylink) == "hello"


def test_init_of_several_portals_and_a_dialect(sandbox: Sandbox) -> None:
    args = ("--portal", PORTAL, "--portal", "http://two.example", "--dialect", "skynet")
    file = sandbox.root / "own/other.toml"
    assert sandbox.succeed("config", "init", *args, "--config", file) == f"{file}\n"
    assert tomllib.loads(file.read_text()) == {
        "portals": [PORTAL, "http://two.example"],
        "dialect": "skynet",
    }
    assert not default_file(sandbox).exists()


def test_init_without_a_portal_sets_nothing(sandbox: Sandbox) -> None:
    sandbox.succeed("config", "init")
    text = default_file(sandbox).read_text()
    assert tomllib.loads(text) == {}
    # all that is commented out is right, but for the two ways to name portals
    settings = re.sub(r"^# (?=\[|\w+ = )", "", text, flags=re.MULTILINE)
    sandbox.configure(settings.replace("portals = ", "# "))
    assert "~/sky" in sandbox.succeed("config", "show", "--name", "home")


def test_init_leaves_a_file_alone(sandbox: Sandbox) -> None:
    file = sandbox.configure("timeout = 7\n")
    said = sandbox.fail("config", "init", "--portal", PORTAL)
    assert said == f"{file}: it exists already; edit it, or replace it with --force"
    assert file.read_text() == "timeout = 7\n"
    sandbox.succeed("config", "init", "--portal", PORTAL, "--force")
    assert tomllib.loads(file.read_text()) == {"portals": [PORTAL]}


def test_init_writes_through_a_link(sandbox: Sandbox) -> None:
    """As people have them who keep their configuration elsewhere."""
    kept = sandbox.root / "kept.toml"
    kept.write_text("# mine")
    link = sandbox.root / "link.toml"
    link.symlink_to(kept)
    sandbox.fail("config", "init", "--config", link)
    sandbox.succeed("config", "init", "--portal", PORTAL, "--force", "--config", link)
    assert link.is_symlink()
    assert PORTAL in kept.read_text()


def test_init_replaces_files_alone(sandbox: Sandbox) -> None:
    """Nor is --force proposed, which does not replace it either."""
    os.mkfifo(sandbox.root / "pipe")
    for place in (sandbox.root / "pipe", sandbox.directory("d")):
        for more in ([], ["--force"]):
            said = sandbox.fail("config", "init", "--portal", PORTAL, "--config", place, *more)
            assert said == f"{place}: it is not a regular file, and is not replaced"
    assert stat.S_ISFIFO((sandbox.root / "pipe").stat().st_mode)


def test_init_refuses_what_is_no_portal(sandbox: Sandbox) -> None:
    said = sandbox.fail("config", "init", "--portal", "portal.example", code=2)
    assert "it begins with http:// or https://: write https://portal.example" in said
    assert "listed twice" in sandbox.fail(
        "config", "init", "--portal", PORTAL, "--portal", PORTAL + "/", code=2
    )
    assert not default_file(sandbox).exists()


def test_check(sandbox: Sandbox) -> None:
    assert "there is none, and none is needed" in sandbox.succeed("config", "check")
    file = sandbox.configure("timeout = 7\n")
    assert sandbox.succeed("config", "check") == f"{file}: no mistakes\n"
    assert f"{file}: no table [mounts.x]" in sandbox.fail("config", "check", "--name", "x", code=2)


def test_check_names_file_line_and_key(sandbox: Sandbox) -> None:
    file = sandbox.configure('# a comment\ntimeout = 7\n\n[mounts.home]\nmemory_cache = "much"\n')
    said = sandbox.fail("config", "check", code=2)
    assert said.startswith(f"{file}: line 5: [mounts.home]: memory_cache: not a size: 'much'")
    both = sandbox.with_env(SKYMOUNT_TIMEOUTS="3").fail("config", "check", code=2)
    variable = "SKYMOUNT_TIMEOUTS: there is no such variable; did you mean SKYMOUNT_TIMEOUT?"
    assert both == f"{said}; also {variable}"


def test_show_names_each_value_and_where_it_was_set(sandbox: Sandbox) -> None:
    file = sandbox.configure(
        f'portals = ["{PORTAL}"]\ndisk_cache = "1G"\n[mounts.home]\nverify = "require"\n'
    )
    named = sandbox.with_env(SKYMOUNT_MEMORY_CACHE="64M")
    shown = named.succeed("config", "show", "--name", "home")
    found = rows(shown)
    assert found["portals"] == (f'["{PORTAL}"]', f"{file}: line 1")
    assert found["disk_cache"] == ('"1 GiB"', f"{file}: line 2")
    assert found["verify"] == ('"require"', f"{file}: line 4: [mounts.home]")
    assert found["memory_cache"] == ('"64 MiB"', "SKYMOUNT_MEMORY_CACHE")
    assert found["timeout"] == ("30", "default")
    assert found["headers"] == ("{}", "default")
    assert found["metrics_listen"] == ('"off"', "default")
    assert rows(named.succeed("config", "show"))["verify"] == ('"available"', "default")
    assert tomllib.loads(shown)["memory_cache"] == "64 MiB"  # in the syntax of the file
    sandbox.configure(shown)
    assert "no mistakes" in sandbox.succeed("config", "check")


def test_show_masks_secrets(sandbox: Sandbox) -> None:
    file = sandbox.configure(
        f'portals = ["{PORTAL}"]\napi_key = "k"\nheaders = {{ Cookie = "tasty" }}\n'
    )
    shown = sandbox.succeed("config", "show")
    assert rows(shown)["api_key"] == ('"********"', f"{file}: line 2")
    assert rows(shown)["headers"] == ('{ "Cookie" = "********" }', f"{file}: line 3")
    as_json = sandbox.succeed("config", "show", "--json")
    assert "tasty" not in shown + as_json
    found = json.loads(as_json)
    assert found["path"] == str(file)
    assert found["values"]["api_key"] == {"value": "********", "origin": f"{file}: line 2"}


def test_show_says_what_belongs_to_another_portal(sandbox: Sandbox) -> None:
    file = sandbox.configure(f'portals = ["{PORTAL}"]\napi_key = "k"\n')
    other = sandbox.with_env(SKYMOUNT_PORTALS="http://other.example")
    assert rows(other.succeed("config", "show"))["api_key"] == (
        '""',
        f"default; that of {file}: line 2 belongs to another portal",
    )


def test_show_of_portals_with_tables(sandbox: Sandbox) -> None:
    file = sandbox.configure(
        f'[[portals]]\nurl = "{PORTAL}"\napi_key = "k"\n\n[[portals]]\nurl = "http://b.example"\n'
    )
    shown = sandbox.succeed("config", "show")
    assert tomllib.loads(shown)["portals"] == [
        {"url": PORTAL, "api_key": "********"},
        {"url": "http://b.example"},
    ]
    assert rows(shown)["api_key"] == ('"********"', f"{file}: line 3: [[portals]] 1")
    assert rows(shown)["url"] == ('"http://b.example"', f"{file}: line 6: [[portals]] 2")
    found = json.loads(sandbox.succeed("config", "show", "--json"))
    origin = f"{file}: line 3: [[portals]] 1"
    assert found["portals"][0]["api_key"] == {"value": "********", "origin": origin}


def test_root_in_the_home_of_another_user_is_warned(sandbox: Sandbox) -> None:
    """As with sudo where HOME is kept: the files that root makes there lock their user out."""
    if os.getuid() != 0:
        pytest.skip("only root can be in the home directory of another user so")
    sandbox.directory_of(1234)
    done = sandbox.skymount("config", "check")
    assert done.returncode == 0
    home = sandbox.root / "home"
    assert done.stderr == (
        f"skymount: warning: {home}: this home directory belongs to another user (uid 1234), and "
        "root uses its configuration, keys and registry; with sudo use `sudo -H`\n"
    )
