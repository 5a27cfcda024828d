"""Mistakes in setting skymount up: each gets one or two lines that say what is wrong and what to
do, and no traceback.
"""

import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
import trustme

from tests.cli.doctor.http_server import http_server, tls_server
from tests.skymount_process import Sandbox

LINK = "AACb2MDhsNe3cSkyyoxbKCJJSSOy5n39OrY2A9cN_fGrOg"
NOBODY = "http://127.0.0.1:1"
"""A portal that is not there."""

Preparation = Callable[[Sandbox, ExitStack], Sandbox | None]


@dataclass(frozen=True)
class Mistake:
    """A command that fails, with how the machine is prepared for it."""

    name: str
    command: str
    words: tuple[str, ...]
    """What stands in the message: what is wrong, and what to do."""
    code: int = 2
    config: str = ""
    prepare: Preparation = lambda box, _: None


def environment(**values: str) -> Preparation:
    return lambda box, _: box.with_env(**values)


def made(path: str, content: bytes | None = b"x", mode: int = 0o600) -> Preparation:
    """Make a file in the sandbox, or a directory if it has no content."""

    def prepare(box: Sandbox, _: ExitStack) -> None:
        place = box.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            place.mkdir(exist_ok=True)
        else:
            place.write_bytes(content)
        place.chmod(mode)

    return prepare


def served(scheme: str, *, tls: bool = False) -> Preparation:
    """Configure a web server as the portal, by an address that has this scheme."""

    def prepare(box: Sandbox, stack: ExitStack) -> Sandbox:
        later = datetime.now(UTC) + timedelta(days=1)
        context = tls_server(trustme.CA(), later) if tls else None
        url = stack.enter_context(http_server(tls=context))
        return box.with_env(SKYMOUNT_PORTALS=f"{scheme}://{url.partition('://')[2]}")

    return prepare


def listening(box: Sandbox, stack: ExitStack) -> Sandbox:
    """Take the port $PORT."""
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    return box.with_env(PORT=str(listener.getsockname()[1]))


def without_programs(box: Sandbox, _: ExitStack) -> Sandbox:
    box.directory("home/mnt")
    return box.with_env(PATH="/nonexistent")


def with_key(box: Sandbox, _: ExitStack) -> None:
    box.succeed("key", "generate", "home")


CHECK = "config check"

MISTAKES = [
    # the configuration file
    Mistake("no TOML", CHECK, ("config.toml", "not valid TOML", "line 1"), config="portals = = 1"),
    Mistake(
        "unknown key", CHECK, ("config.toml: line 1", "timout", "timeout"), config="timout = 5"
    ),
    Mistake(
        "unknown table",
        CHECK,
        ("config.toml", "mount", "mounts"),
        config="[mount.home]\nmountpoint = '~/x'",
    ),
    Mistake(
        "wrong type", CHECK, ("config.toml: line 1", "timeout", "soon"), config="timeout = 'soon'"
    ),
    Mistake("out of range", CHECK, ("config.toml: line 1", "timeout"), config="timeout = -1"),
    Mistake(
        "address without scheme",
        CHECK,
        ("portal.example", "http"),
        config="portals = ['portal.example']",
    ),
    Mistake(
        "scheme of something else",
        CHECK,
        ("ftp://", "http"),
        config="portals = ['ftp://portal.example']",
    ),
    Mistake(
        "password in an address",
        CHECK,
        ("api_key",),
        config="portals = ['https://me:secret@portal.example']",
    ),
    Mistake("unknown dialect", CHECK, ("dialect", "svc", "skynet"), config="dialect = 'sia'"),
    Mistake("no size", CHECK, ("memory_cache", "128 MiB"), config="memory_cache = '128 potatoes'"),
    Mistake(
        "unknown choice",
        CHECK,
        ("verify", "require", "available", "off"),
        config="verify = 'maybe'",
    ),
    Mistake("unknown log level", CHECK, ("log_level", "debug"), config="log_level = 'loud'"),
    Mistake(
        "one API key for several portals",
        CHECK,
        ("api_key", "[[portals]]"),
        config="portals = ['https://a.example', 'https://b.example']\napi_key = 'x'",
    ),
    Mistake(
        "table of a portal without its address",
        CHECK,
        ("config.toml", "url"),
        config="[[portals]]\nread_only = true",
    ),
    Mistake(
        "certificates that are not there",
        CHECK,
        ("ca.pem", "o such file"),
        config="ca_file = '/nowhere/ca.pem'",
    ),
    Mistake(
        "metrics for everybody",
        CHECK,
        ("metrics_listen", "127.0.0.1"),
        config="metrics_listen = '0.0.0.0:9464'",
    ),
    Mistake(
        "configuration file that is not there",
        "config check --config nowhere.toml",
        ("nowhere.toml", "no such file"),
    ),
    Mistake("directory as configuration file", "config check --config /", ("/", "Is a directory")),
    Mistake(
        "configuration file that is no text",
        CHECK,
        ("config.toml",),
        prepare=made("config/skymount/config.toml", b"\xff\xfe\x00"),
    ),
    Mistake(
        "name of a mount that is not there",
        "mount --name hom",
        ("hom", "home"),
        config="[mounts.home]\nmountpoint = '~/sky'",
    ),
    # the environment
    Mistake(
        "misspelt variable",
        "config show",
        ("SKYMOUNT_PORTAL", "SKYMOUNT_PORTALS"),
        prepare=environment(SKYMOUNT_PORTAL="http://x.example"),
    ),
    Mistake(
        "variable that is no number",
        "config show",
        ("SKYMOUNT_TIMEOUT", "abc"),
        prepare=environment(SKYMOUNT_TIMEOUT="abc"),
    ),
    # the command line
    Mistake("misspelt command", "umont x", ("umont", "Did you mean 'umount'")),
    Mistake("option by another name", "portal serve --port 4280", ("--port", "--listen")),
    Mistake(
        "option of the command before it",
        "--portal http://x.example ls x",
        ("--portal", "after the command"),
    ),
    Mistake("no mount point", "mount", ("no mount point", "name a directory")),
    Mistake(
        "mount point that is not there",
        "mount nowhere",
        ("nowhere", "no such directory", "mkdir"),
        1,
    ),
    Mistake(
        "file as mount point", "mount file", ("file", "directory"), 1, prepare=made("home/file")
    ),
    Mistake(
        "mount point with files in it",
        "mount .",
        ("not empty", "empty one"),
        1,
        prepare=made("home/file"),
    ),
    Mistake("umount of what is not mounted", "umount .", ("nothing is mounted there",), 1),
    Mistake(
        "log file in a directory that is not there",
        "mount mnt --log-file nowhere/log",
        ("nowhere/log",),
        1,
        prepare=made("home/mnt", None, 0o700),
    ),
    Mistake(
        "not a skylink",
        f"ls --portal {NOBODY} readme.txt",
        ("not a skylink", "readme.txt", "did you mean"),
    ),
    Mistake("upload of what is not there", "upload nothing.txt", ("nothing.txt", "does not exist")),
    Mistake(
        "no fusermount3",
        "mount mnt",
        ("fusermount3", "install the package fuse3"),
        4,
        prepare=without_programs,
    ),
    # keys
    Mistake(
        "key that is not there",
        f"registry get --portal {NOBODY} hom x",
        ("hom", "no key called"),
        3,
    ),
    Mistake(
        "keyring that other users can read",
        "key list",
        ("mode 755", "run: chmod 700"),
        1,
        prepare=made("data/skymount/keys", None, 0o755),
    ),
    # portals
    Mistake(
        "portal that is not there",
        f"ls --portal {NOBODY} {LINK}",
        ("127.0.0.1:1 cannot be reached: Connection refused; is the portal running",),
        1,
    ),
    Mistake(
        "host that is not there",
        f"ls --portal http://no-such-host.invalid {LINK}",
        ("no-such-host.invalid", "name"),
        1,
    ),
    Mistake(
        "proxy that is not there",
        f"ls --portal http://portal.example {LINK}",
        ("127.0.0.1:1", "proxy"),
        1,
        prepare=environment(http_proxy=NOBODY),
    ),
    Mistake(
        "proxy that is none for HTTP",
        f"ls --portal http://portal.example {LINK}",
        ("socks5://127.0.0.1", "not an HTTP proxy", "no_proxy"),
        1,
        prepare=environment(http_proxy="socks5://127.0.0.1:1"),
    ),
    Mistake(
        "no TLS where https was said", f"ls {LINK}", ("TLS", "http://"), 1, prepare=served("https")
    ),
    Mistake(
        "TLS where http was said",
        f"ls {LINK}",
        ("if it wants TLS", "https://"),
        1,
        prepare=served("http", tls=True),
    ),
    Mistake(
        "certificate that nobody vouches for",
        f"ls {LINK}",
        ("certificate", "ca_file"),
        1,
        prepare=served("https", tls=True),
    ),
    Mistake(
        "web server that is no portal",
        f"registry get {'ab' * 32} x",
        ("is this the address of a portal?",),
        1,
        prepare=served("http"),
    ),
    Mistake(
        "nothing but read-only portals",
        "registry set home x y",
        ("read-only",),
        1,
        config=f"[[portals]]\nurl = '{NOBODY}'\nread_only = true",
        prepare=with_key,
    ),
    # one's own portal
    Mistake(
        "port that is taken",
        "portal serve --listen 127.0.0.1:$PORT",
        ("$PORT", "in use", "--listen HOST:PORT"),
        1,
        prepare=listening,
    ),
    Mistake("no address to listen at", "portal serve --listen 4280", ("4280", "not HOST:PORT")),
    Mistake(
        "portal for everybody without a password",
        "portal serve --listen 0.0.0.0:0",
        ("without a password", "--insecure"),
        1,
    ),
    Mistake(
        "file as directory of a portal",
        "portal serve --listen 127.0.0.1:0 --data file",
        ("'file' is a file",),
        prepare=made("home/file"),
    ),
    Mistake(
        "unknown mount option",
        "mount-helper skymount mnt -o portl=http://x.example",
        ("portl", "portal"),
        prepare=made("home/mnt", None, 0o700),
    ),
    Mistake(
        "service for a mount that is not configured",
        "service install hom",
        ("hom", "home"),
        config="[mounts.home]\nmountpoint = '~/sky'",
    ),
    Mistake("no shell", "completion", ("Missing argument", "Choose from: bash, zsh, fish")),
    Mistake("shell that has no completion", "completion csh", ("csh", "bash")),
]


def test_there_are_forty() -> None:
    assert len(MISTAKES) >= 40
    assert len({each.name for each in MISTAKES}) == len(MISTAKES)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_mistake(mistake: Mistake, sandbox: Sandbox) -> None:
    """One or two lines, which name what is wrong and what to do; the exit code of its kind."""
    if mistake.config:
        sandbox.configure(mistake.config)
    with ExitStack() as stack:
        box = mistake.prepare(sandbox, stack) or sandbox
        port = box.environment.get("PORT", "")
        command = mistake.command.replace("$PORT", port).split()
        done = box.skymount(*command, cwd=box.root / "home")
    assert done.stdout == ""
    assert 1 <= len(done.stderr.splitlines()) <= 2, done.stderr
    assert done.stderr.startswith("skymount: ")
    words = [word.replace("$PORT", port) for word in mistake.words]
    assert [word for word in words if word not in done.stderr] == [], done.stderr
    assert done.returncode == mistake.code, done.stderr
