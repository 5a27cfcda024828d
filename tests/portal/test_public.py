"""The public surface of the library: every name, and what holds for every call."""

import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio

import skymount.portal
from skymount.errors import (
    MalformedError,
    PortalError,
    PortalTimeoutError,
    ReadOnlyPortalError,
    SkymountError,
    WrongTypeError,
)
from skymount.portal import PortalClient, RegistryEntry, gen_key_pair_from_seed
from skymount.portal.client.registry import Registry
from skymount.portal.client.skydb import SkyDB
from skymount.settings import CallOptions, CommonOptions
from skymount.wire.skykey import Kind, Skykey
from tests.fakes import portal as fake
from tests.fakes.portal import FakePortal, Reply, Request, running
from tests.fakes.skyfiles import of_files
from tests.portal_process import portal_environment

SMALL = of_files({"a.txt": b"hello"})
PAIR = gen_key_pair_from_seed("public surface")
OWN = {"public_key": PAIR.public_key, "data_key": "k"}
SKYKEY = Skykey(Kind.PRIVATE, bytes(range(32)), bytes(24), "name")

CALLS: dict[str, dict[str, Any]] = {
    "upload_file": {"file": b"x", "custom_filename": "f"},
    "upload_directory": {"directory": {"a": b"x"}, "custom_dirname": "d"},
    "download_file": {"destination": "", "skylink": SMALL.name},
    "get_file_content": {"skylink": SMALL.name},
    "get_metadata": {"skylink": SMALL.name},
    "resolve_hns": {"domain": "name"},
    "download_file_hns": {"destination": "", "domain": "name"},
    "create_skykey": {"name": "n"},
    "add_skykey": {"skykey": SKYKEY.text},
    "get_skykey_by_name": {"name": "n"},
    "get_skykey_by_id": {"id": SKYKEY.id},
    "get_skykeys": {},
    "delete_skykey": {"name": "n"},
    "registry.get_entry": OWN,
    "registry.next_revision": OWN,
    "registry.set_entry": {
        "private_key": PAIR.private_key,
        "entry": RegistryEntry("k", b"data", 1),
    },
    "db.get_json": OWN,
    "db.set_json": {"private_key": PAIR.private_key, "data_key": "k", "document": {}},
    "db.delete_json": {"private_key": PAIR.private_key, "data_key": "k"},
}
"""Every call that makes requests, with arguments that will do."""

LOCAL: dict[str, dict[str, Any]] = {
    "open_file": {"skylink": SMALL.name},
    "open_file_hns": {"domain": "name"},
    "get_skylink_url": {"skylink": SMALL.name},
    "get_hns_url": {"domain": "name"},
    "get_hnsres_url": {"domain": "name"},
    "registry.get_entry_url": OWN,
    "registry.get_entry_link": OWN,
}
"""Every call that makes none."""

INNER = {
    "set_credentials",
    *("aclose", "base_sector", "connect", "dialect", "head", "node", "of", "open_range"),
    *("metadata_into", "raw_metadata", "round_trip", "sector", "send_upload", "url", "db"),
    *("registry", "registry.fetch", "registry.revision_after", "registry.post", "registry.read"),
    *("registry.set", "resolve", "sample"),
}
"""What takes values that were checked before, for the mount and the command line."""

ASK_THE_REGISTRY = {
    *("registry.get_entry", "registry.next_revision"),
    *("db.get_json", "db.set_json", "db.delete_json"),
}
"""What waits at least as long as the registry may look."""

OPTIONS: dict[str, Any] = {
    "api_key": "key of the call",
    "custom_user_agent": "agent of the call",
    "headers": {"X-Own": "header-of-the-call"},
}


def method(client: PortalClient, name: str) -> Callable[..., Any]:
    """Return a method by its name, with its group before a dot."""
    group, _, last = name.rpartition(".")
    return getattr(getattr(client, group) if group else client, last)


def arguments(name: str, tmp_path: Path) -> dict[str, Any]:
    found = dict({**CALLS, **LOCAL}[name])
    if "destination" in found:
        found["destination"] = tmp_path / "f"
    return found


async def made(call: Any) -> Any:
    """Return the result of a call, asynchronous or not."""
    return await call if inspect.isawaitable(call) else call


def wrong_arguments() -> Iterator[tuple[str, str]]:
    """List each argument and each common option of each call."""
    client = PortalClient()
    for name in (*CALLS, *LOCAL):
        for key, parameter in inspect.signature(method(client, name)).parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                kind = str(parameter.annotation)
                options = CommonOptions if "CommonOptions" in kind else CallOptions
                yield from ((name, option) for option in options.__annotations__)
                yield from ((name, option) for option in CallOptions.__annotations__)
            else:
                yield name, key


# --- names


def test_every_public_name_loads():
    """Each name of __all__ is there, and dir() lists them."""
    names = skymount.portal.__all__
    assert sorted(dir(skymount.portal)) == sorted(names)
    assert len(set(names)) == len(names)
    for name in names:
        assert getattr(skymount.portal, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        skymount.portal.nothing  # noqa: B018 - it is the access that fails


def test_constants():
    """The constants of the contract."""
    assert skymount.portal.DEFAULT_SVC_PORTAL_URL == "http://127.0.0.1:4280"
    assert skymount.portal.URI_SVC_PREFIX == "svc://"


def test_documented_module_of_the_synchronous_client():
    """docs/library.md imports the class from skymount.portal.sync."""
    from skymount.portal.sync import SyncPortalClient

    assert SyncPortalClient is skymount.portal.SyncPortalClient


def test_names_load_late():
    """Importing skymount.portal alone loads neither HTTP nor cryptography, nor trio."""
    code = (
        "import sys, skymount.portal\n"
        "print({'httpx', 'httpcore', 'nacl', 'trio', 'cryptography',"
        " 'skymount.portal.client.client'}"
        " & {name for name, module in sys.modules.items() if module})\n"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    found = subprocess.run(command, env=portal_environment(), capture_output=True, check=True)
    assert found.stdout == b"set()\n"


def test_every_method_is_listed():
    """Each public method of the client and its groups is in one of the lists above."""
    groups = (("", PortalClient), ("registry.", Registry), ("db.", SkyDB))
    found = {
        prefix + name for prefix, kind in groups for name in dir(kind) if not name.startswith("_")
    }
    assert found == CALLS.keys() | LOCAL.keys() | INNER


# --- portals and options


def test_default_portal():
    """C1: no address and an empty one are the default portal; so is one of blanks not."""
    assert PortalClient().url == PortalClient("").url == "http://127.0.0.1:4280"
    with pytest.raises(MalformedError):
        PortalClient(" ")


@pytest.mark.parametrize("name", CALLS)
async def test_options_of_a_call(name: str, tmp_path: Path):
    """C2: credentials, agent and headers of a call replace the client's, for this call only."""
    mine = {"api_key": "mine", "custom_user_agent": "my-agent", "headers": {"X-Mine": "my-header"}}
    async with (
        running(FakePortal()) as portal,
        PortalClient(portal.url, retries=0, **mine) as client,  # type: ignore[arg-type]
    ):
        portal.add(SMALL)
        for options in ({}, OPTIONS, {}):
            portal.requests.clear()
            with suppress(PortalError):
                await method(client, name)(**arguments(name, tmp_path), **options)
            assert portal.requests
            expected = options or mine
            for request in portal.requests:
                assert request.headers["authorization"] == (
                    "Basic OmtleSBvZiB0aGUgY2FsbA==" if options else "Basic Om1pbmU="
                )
                assert request.headers["user-agent"] == expected["custom_user_agent"]
                own = {key: text for key, text in request.headers.items() if key[:2] == "x-"}
                assert own == {key.lower(): text for key, text in expected["headers"].items()}
            with suppress(PortalError):
                await method(client, name)(
                    **arguments(name, tmp_path), api_key="", custom_user_agent="", headers={}
                )
            assert "authorization" not in portal.requests[-1].headers
            assert "svc-agent" in portal.requests[-1].headers["user-agent"]


@pytest.mark.parametrize("name", sorted(CALLS.keys() - {"download_file", "get_file_content"}))
async def test_dialect_of_a_call(name: str, tmp_path: Path):
    """C2: the dialect of a call decides on its paths."""
    async with running(FakePortal()) as portal, PortalClient(portal.url, retries=0) as client:
        portal.fault(fake.status(418))
        with suppress(PortalError):
            await method(client, name)(**arguments(name, tmp_path), dialect="skynet")
        paths = {request.path.split("/")[1] for request in portal.requests}
        assert paths <= {"skynet", "hns", "hnsres", SMALL.name}
        assert "Sia-Agent" in portal.requests[0].headers["user-agent"]


@pytest.mark.parametrize("name", sorted(CALLS.keys() - ASK_THE_REGISTRY))
async def test_time_out_of_a_call(name: str, tmp_path: Path):
    """C2: so is the time-out."""
    async with (
        running(FakePortal()) as portal,
        PortalClient(portal.url, retries=0, timeout=600) as client,
    ):
        portal.fault(fake.stalls_after(-1))
        with trio.fail_after(20), pytest.raises(PortalTimeoutError):
            await method(client, name)(**arguments(name, tmp_path), timeout=0.05)


# --- what callers pass


@pytest.mark.parametrize(("name", "key"), sorted(set(wrong_arguments())))
async def test_wrong_type(name: str, key: str, tmp_path: Path):
    """C3: an argument or option of a wrong type raises WrongTypeError before any request."""
    async with running(FakePortal()) as portal, PortalClient(portal.url) as client:
        wrong = {**arguments(name, tmp_path), key: object()}
        with pytest.raises(WrongTypeError):
            await made(method(client, name)(**wrong))
        assert portal.accepted == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [*CALLS, *LOCAL])
async def test_unknown_option(name: str, tmp_path: Path):
    """C3: an argument that does not exist is a TypeError before any request."""
    async with running(FakePortal()) as portal, PortalClient(portal.url) as client:
        with pytest.raises(TypeError, match="unheard_of"):
            await made(method(client, name)(**arguments(name, tmp_path), unheard_of=1))
        assert portal.accepted == 0


@pytest.mark.parametrize("name", [name for name in (*CALLS, *LOCAL) if "open_file" not in name])
async def test_texts_that_cannot_be_sent(name: str, tmp_path: Path):
    """C3: no text, however odd, makes anything but one of our errors."""
    async with running(FakePortal()) as portal, PortalClient(portal.url, retries=0) as client:
        portal.add(SMALL)
        portal.fault(fake.status(418))
        good = arguments(name, tmp_path)
        parameters = inspect.signature(method(client, name)).parameters
        for key, parameter in parameters.items():
            if "str" not in str(parameter.annotation) or key in ("file", "directory", "document"):
                continue
            for text in ("\ud800", "a\0b\r\nX-Evil: 1", "\x7f" * 3, "🙈", "../..", "?", "#", "%"):
                target = tmp_path / "x" if key == "destination" else None
                wrong = {**good, key: target or text}
                with suppress(SkymountError):
                    await made(method(client, name)(**wrong))
        assert not any("x-evil" in request.headers for request in portal.requests)


# --- a client that is read-only

WRITING = (
    *("upload_file", "upload_directory", "create_skykey", "add_skykey", "delete_skykey"),
    *("registry.set_entry",),
)


@pytest.mark.parametrize("name", CALLS)
async def test_read_only(name: str, tmp_path: Path):
    """W2: nothing but GET and HEAD reaches the portal; what writes fails before anything is sent,
    also with options of the call.
    """
    async with (
        running(FakePortal()) as portal,
        PortalClient(portal.url, retries=0, read_only=True) as client,
    ):
        portal.add(SMALL)
        with suppress(SkymountError):
            await method(client, name)(**arguments(name, tmp_path), **OPTIONS)
        assert {request.method for request in portal.requests} <= {"GET", "HEAD"}
        if name in WRITING:
            with pytest.raises(ReadOnlyPortalError) as caught:
                await method(client, name)(**arguments(name, tmp_path))
            assert caught.value.url.startswith(portal.url)
            assert portal.requests == []


async def test_read_only_node(tmp_path: Path):
    """W2: nor does anything else reach the place where its skykeys are kept."""
    async with (
        running(FakePortal()) as node,
        PortalClient("http://portal.invalid", node_url=node.url, read_only=True) as client,
    ):
        with pytest.raises(ReadOnlyPortalError):
            await client.create_skykey("name")
        with pytest.raises(PortalError):
            await client.get_skykeys()
        assert [request.method for request in node.requests] == ["GET"]


# --- errors and secrets

SECRETS = ("key of the call", "OmtleSBvZiB0aGUgY2FsbA", "header-of-the-call")


def echo(code: int) -> fake.Fault:
    """Answer with that status, and words that repeat all that was sent."""

    def answer(request: Request, reply: Reply) -> Reply:
        return fake.error(code, f"{request.headers} {SECRETS[0]}")

    return answer


@pytest.mark.parametrize("name", CALLS)
async def test_errors_tell_and_keep_secrets(name: str, tmp_path: Path):
    """C5: an error has status, message, method and URL, and no credential in any of them."""
    async with running(FakePortal()) as portal, PortalClient(portal.url, retries=0) as client:
        for fault, status in ((echo(418), 418), (echo(500), 500), (fake.resets_after(-1), None)):
            portal.heal()
            portal.fault(fault)
            portal.requests.clear()
            with pytest.raises(PortalError) as caught:
                await method(client, name)(**arguments(name, tmp_path), **OPTIONS)
            error = caught.value
            assert error.status == status
            assert error.method in {request.method for request in portal.requests}
            assert error.url.removeprefix(portal.url) in {
                request.target.partition("?")[0] for request in portal.requests
            }
            assert error.message
            shown = f"{error} {error!r} {error.args} {error.__dict__}"
            assert not any(secret in shown for secret in SECRETS)


@pytest.mark.parametrize("name", CALLS)
async def test_secrets_stay_with_the_portal(name: str, tmp_path: Path):
    """C6: no credential goes to another origin with a redirect."""
    async with (
        running(FakePortal()) as portal,
        running(FakePortal()) as other,
        PortalClient(
            portal.url, retries=0, redirect_hosts=[other.url.removeprefix("http://")]
        ) as client,
    ):
        portal.fault(fake.redirects(f"{other.url}/elsewhere", 307))
        other.fault(fake.status(418))
        with pytest.raises(PortalError):
            await method(client, name)(**arguments(name, tmp_path), **OPTIONS)
        assert other.requests
        for request in other.requests:
            assert not any(secret in str(request.headers) for secret in SECRETS)


def test_no_secret_in_a_repr():
    """C6: nor is one in the repr of a client, its options or its parts."""
    client = PortalClient("https://portal.example", **OPTIONS)
    parts = (client, client.options, client.http, client.node, client.registry, client.db)
    assert not any(secret in repr(part) for part in parts for secret in SECRETS)


@contextmanager
def recorded(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """Collect every message of every logger."""
    texts: list[str] = []
    with caplog.at_level(1):
        yield texts
    texts += [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("name", CALLS)
async def test_no_secret_in_a_log(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """C6: nor in any log, whatever its level."""
    with recorded(caplog) as texts:
        async with running(FakePortal()) as portal, PortalClient(portal.url, retries=0) as client:
            portal.fault(echo(500))
            with pytest.raises(PortalError):
                await method(client, name)(**arguments(name, tmp_path), **OPTIONS)
    private = (*SECRETS, PAIR.private_key, SKYKEY.text.partition("?")[0])
    assert not any(secret in text for text in texts for secret in private)
