"""Commands with the tables ``[[portals]]``: credentials, and portals that are read-only."""

import base64
from collections.abc import Iterator

import pytest

from tests.fakes import portal as faults
from tests.fakes.portal import FakePortal, Reply, in_thread
from tests.fakes.skyfiles import of_files
from tests.skymount_process import Sandbox

CONTENT = of_files({"f": b"content"})
KEYS = ("key of one", "key of two")


@pytest.fixture
def fakes() -> Iterator[tuple[FakePortal, FakePortal]]:
    with in_thread(FakePortal()) as one, in_thread(FakePortal()) as two:
        yield one, two


def configured(sandbox: Sandbox, fakes: tuple[FakePortal, FakePortal], more: str = "") -> Sandbox:
    """Give each portal credentials of its own, and the first one `more`."""
    tables = (
        f'[[portals]]\nurl = "{fake.url}"\napi_key = "{key}"\nheaders = {{ X-Of-{n} = "yes" }}\n'
        for n, (fake, key) in enumerate(zip(fakes, KEYS, strict=True))
    )
    sandbox.configure(more.join(tables))
    return sandbox


def assert_own_credentials(fakes: tuple[FakePortal, FakePortal]) -> None:
    """Each portal got its credentials with each request, and nothing of the other one."""
    for n, (fake, key) in enumerate(zip(fakes, KEYS, strict=True)):
        basic = "Basic " + base64.b64encode(f":{key}".encode()).decode()
        for request in fake.requests:
            assert request.headers["authorization"] == basic
            assert request.headers[f"x-of-{n}"] == "yes"
            assert f"x-of-{1 - n}" not in request.headers
            other = KEYS[1 - n].encode()
            assert base64.b64encode(b":" + other).decode() not in str(request.headers)


def test_credentials_stay_with_their_portal(
    sandbox: Sandbox, fakes: tuple[FakePortal, FakePortal]
) -> None:
    """Also where the first one sends the command elsewhere, or has it ask the second one."""
    one, two = fakes
    two.add(CONTENT)
    box = configured(sandbox, fakes)
    one.fault(faults.status(404))
    assert "f" in box.succeed("ls", CONTENT.name)
    box.fail("registry", "get", "0" * 64, "key", code=3)
    assert one.requests
    assert two.requests
    assert_own_credentials(fakes)
    one.heal()
    two.requests.clear()
    one.fault(faults.redirects(f"{two.url}/{CONTENT.name}"))
    box.fail("hns", "resolve", "example", code=1)
    for request in two.requests:
        assert {"authorization", "x-of-0"}.isdisjoint(request.headers)


def test_a_portal_that_is_named_gets_what_its_table_sets(
    sandbox: Sandbox, fakes: tuple[FakePortal, FakePortal]
) -> None:
    """By the flag or in the environment; a portal without a table gets nothing."""
    one, two = fakes
    box = configured(sandbox, fakes)
    box.fail("hns", "resolve", "example", "--portal", f"{two.url}/", code=1)
    box.with_env(SKYMOUNT_PORTALS=two.url).fail("hns", "resolve", "example", code=1)
    assert len(two.requests) == 2
    assert one.requests == []
    assert_own_credentials(fakes)
    with in_thread(FakePortal()) as stranger:
        box.fail("hns", "resolve", "example", "--portal", stranger.url, code=1)
        (request,) = stranger.requests
        assert {"authorization", "x-of-0", "x-of-1"}.isdisjoint(request.headers)


def test_writes_go_to_a_portal_that_is_not_read_only(
    sandbox: Sandbox, fakes: tuple[FakePortal, FakePortal]
) -> None:
    """W2: by every command; and fail with a clear message if the portal that is named is not."""
    one, two = fakes
    two.add(CONTENT)
    box = configured(sandbox, fakes, "read_only = true\n")
    (box.root / "f").write_text("content")
    box.succeed("key", "generate", "home")
    two.fault(lambda *_: Reply(204), "^POST /svc/registry")
    assert box.succeed("upload", "f").rstrip("\n") == CONTENT.name
    box.succeed("registry", "set", "home", "key", "text")
    box.succeed("publish", "f", "--key", "home", "--as", "key")
    box.skymount("skykey", "create", "name")
    assert {request.path for request in two.asked("^POST")} >= {
        *("/svc/registry", "/svc/createskykey")
    }
    assert_own_credentials(fakes)
    for command in (
        ["upload", "f"],
        ["skykey", "create", "name"],
        ["registry", "set", "home", "key", "other"],
        ["publish", "f", "--key", "home", "--as", "key"],
    ):
        said = box.fail(*command, "--portal", one.url, code=1)
        assert "read-only" in said, command
    assert one.asked("^POST") == []


def test_the_advice_about_a_password_is_of_that_portal(
    sandbox: Sandbox, fakes: tuple[FakePortal, FakePortal]
) -> None:
    one, two = fakes
    sandbox.configure(
        f'[[portals]]\nurl = "{one.url}"\napi_key = "secret"\n[[portals]]\nurl = "{two.url}"\n'
    )
    for fake, advice in ((one, "the api_key is wrong"), (two, "set api_key in the config")):
        fake.fault(faults.status(401, "no"))
        said = sandbox.fail("hns", "resolve", "example", "--portal", fake.url, code=1)
        assert advice in said
        assert "secret" not in said


def test_each_portal_has_its_dialect(
    sandbox: Sandbox, fakes: tuple[FakePortal, FakePortal]
) -> None:
    one, two = fakes
    sandbox.configure(
        f'[[portals]]\nurl = "{one.url}"\ndialect = "skynet"\n[[portals]]\nurl = "{two.url}"\n'
    )
    for fake in fakes:
        fake.fault(faults.status(404))
    sandbox.fail("ls", CONTENT.name, code=3)
    assert one.asked("^GET /skynet/")
    assert not one.asked("^GET /svc/")
    assert two.asked("^GET /svc/")
    said = sandbox.succeed("registry", "url", "0" * 64, "key")
    assert said.startswith(f"{one.url}/skynet/registry?")
