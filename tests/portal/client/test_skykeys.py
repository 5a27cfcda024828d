"""Skykeys through the client: at a real node, and at one that answers wrong."""

import base64
import secrets
from collections.abc import AsyncIterator

import pytest

from skymount.errors import (
    AccessDeniedError,
    BadContentError,
    MalformedError,
    NotFoundError,
    PortalError,
    UnavailableError,
    WrongTypeError,
)
from skymount.portal import PortalClient
from skymount.wire.skykey import Kind, Skykey
from tests.fakes.portal import FakePortal, Reply, endless_body, running
from tests.fakes.portal import error as refusal
from tests.portal_process import PortalProcess

OURS = Skykey(Kind.PRIVATE, bytes(range(32)), bytes(range(24)), "ours")
SECRET = OURS.text.removeprefix("skykey:").partition("?")[0]


@pytest.fixture
async def client(portal: PortalProcess) -> AsyncIterator[PortalClient]:
    """A client of the shared portal; nothing listens where content would be asked for."""
    async with PortalClient("http://127.0.0.1:1", node_url=portal.url) as connected:
        yield connected


def fresh(name: str = "") -> Skykey:
    """Return a key that no node has."""
    name = name or f"fresh {secrets.token_hex(8)}"
    return Skykey(Kind.PUBLIC, secrets.token_bytes(32), secrets.token_bytes(24), name)


@pytest.mark.parametrize("kind", ["public-id", "private-id"])
async def test_create(client: PortalClient, kind: str):
    """A key is made at the node, and found by its name and by its id."""
    name = f"ключ & {secrets.token_hex(8)}"
    made = await client.create_skykey(name, kind)
    assert (made.name, made.kind.value) == (name, kind)
    assert await client.get_skykey_by_name(name) == made
    assert await client.get_skykey_by_id(made.id) == made
    assert made in await client.get_skykeys()


async def test_private_id_is_the_default(client: PortalClient):
    """Without a type a key is of the recommended one."""
    assert (await client.create_skykey(secrets.token_hex(8))).kind is Kind.PRIVATE


async def test_add_and_delete(client: PortalClient):
    """A key is handed over and forgotten, by name or by id."""
    for by in ("name", "id"):
        key = fresh()
        assert await client.add_skykey(key.text) is None  # type: ignore[func-returns-value]
        assert await client.get_skykey_by_id(key.id) == key
        await client.delete_skykey(**{by: getattr(key, by)})
        with pytest.raises(NotFoundError):
            await client.get_skykey_by_id(key.id)


async def test_ids_without_padding(client: PortalClient):
    """An id is found with and without the padding of its base64."""
    key = fresh()
    await client.add_skykey(key.text)
    assert await client.get_skykey_by_id(key.id.rstrip("=")) == key


async def test_names_and_keys_that_are_taken(client: PortalClient):
    """C5: A name or a key that the node has already is refused with its words."""
    key = fresh()
    await client.add_skykey(key.text)
    with pytest.raises(PortalError, match="already") as caught:
        await client.create_skykey(key.name)
    assert caught.value.status == 400
    with pytest.raises(PortalError, match="already"):
        await client.add_skykey(key.text)


async def test_unknown_keys(client: PortalClient):
    """C5: An unknown key is a NotFoundError, whatever the status; its query is left out."""
    name, key_id = secrets.token_hex(8), base64.urlsafe_b64encode(secrets.token_bytes(16)).decode()
    for call in (
        client.get_skykey_by_name(name),
        client.get_skykey_by_id(key_id),
        client.delete_skykey(name=name),
        client.delete_skykey(id=key_id),
    ):
        with pytest.raises(NotFoundError) as caught:
            await call
        error = caught.value
        assert error.status == 400
        assert error.method in ("GET", "POST")
        assert error.url.partition("/svc/")[2] in ("skykey", "deleteskykey")
        assert name not in str(error)


async def test_wrong_arguments():
    """C3: Types and values are checked before any request."""
    async with running(FakePortal()) as fake, PortalClient(fake.url) as client:
        for call in (
            lambda: client.create_skykey(5),
            lambda: client.create_skykey("x", 5),
            lambda: client.add_skykey(OURS),
            lambda: client.get_skykey_by_name(None),
            lambda: client.get_skykey_by_id(b"x"),
            lambda: client.delete_skykey(name=5),
            lambda: client.delete_skykey(name="x", id=5),
            lambda: client.delete_skykey(id=5),
        ):
            with pytest.raises(WrongTypeError):
                await call()
        for call in (
            lambda: client.create_skykey(""),
            lambda: client.create_skykey("x" * 129),
            lambda: client.create_skykey("a\nb"),
            lambda: client.create_skykey("\ud800"),
            lambda: client.create_skykey("x", ""),
            lambda: client.create_skykey("x", "private"),
            lambda: client.add_skykey(""),
            lambda: client.add_skykey(SECRET[:-1]),
            lambda: client.add_skykey(f"sia:{SECRET}"),
            lambda: client.get_skykey_by_name(""),
            lambda: client.get_skykey_by_id(""),
            lambda: client.get_skykey_by_id("AAAA"),
            client.delete_skykey,
            lambda: client.delete_skykey(name="x", id=OURS.id),
            lambda: client.delete_skykey(id="AAAA"),
        ):
            with pytest.raises(MalformedError) as caught:
                await call()
            assert SECRET[:20] not in str(caught.value)
        assert fake.accepted == 0


@pytest.mark.parametrize(
    ("reply", "kind", "status"),
    [
        (Reply(200, (), b"<html>welcome</html>"), BadContentError, 200),
        (Reply(200, (), b""), BadContentError, 200),
        (Reply(200, (), b"[]"), BadContentError, 200),
        (Reply(200, (), b'{"skykeys":5,"skykey":5}'), BadContentError, 200),
        (Reply(200, (), b'{"skykeys":[{}],"skykey":"x"}'), BadContentError, 200),
        (Reply(200, (), OURS.encode_record().replace(b'"id":"', b'"id":"AAAA')), None, None),
        (Reply(500, (), b"<html>oops</html>"), UnavailableError, 500),
        (refusal(401, "API authentication failed."), AccessDeniedError, 401),
        (refusal(404, "404 - Refer to API.md"), NotFoundError, 404),
        (endless_body(None, Reply()), BadContentError, None),  # type: ignore[arg-type]
    ],
    ids=range(10),
)
async def test_bad_answers(reply: Reply, kind: type[PortalError] | None, status: int | None):
    """C5: Whatever else a node answers is an error with status, method and address."""
    async with running(FakePortal()) as fake:
        fake.fault(lambda *_: reply)
        async with PortalClient("http://127.0.0.1:1", node_url=fake.url, retries=0) as client:
            calls = {
                "createskykey": lambda: client.create_skykey("x"),
                "skykey": lambda: client.get_skykey_by_name("x"),
                "skykeys": client.get_skykeys,
            }
            for path, call in calls.items():
                if kind is None and path == "skykeys":
                    continue
                with pytest.raises(kind or BadContentError) as caught:
                    await call()
                error = caught.value
                assert error.status == (status if kind else 200)
                assert error.method == ("POST" if path == "createskykey" else "GET")
                assert error.url == f"{fake.url}/svc/{path}"


@pytest.mark.parametrize("words", [OURS.text, SECRET, f"{'x' * 250} {OURS.text}"])
async def test_a_node_that_repeats_the_key(words: str):
    """C6: A skykey that a node repeats in its refusal is not in the error."""
    async with running(FakePortal()) as fake, PortalClient(fake.url) as client:
        fake.fault(lambda *_: refusal(500, f"failed to decode {words}"))
        with pytest.raises(UnavailableError, match="failed to decode") as caught:
            await client.add_skykey(OURS.text)
        assert SECRET[16:32] not in str(caught.value)
        assert caught.value.status == 500


async def test_a_new_key_is_not_asked_for_twice():
    """C8: What makes or adds a key is not repeated when no answer comes."""
    async with running(FakePortal()) as fake, PortalClient(fake.url, retries=2) as client:
        fake.fault(lambda *_: refusal(503, "busy"))
        for call in (lambda: client.create_skykey("x"), lambda: client.add_skykey(OURS.text)):
            with pytest.raises(UnavailableError):
                await call()
        assert len(fake.requests) == 2


async def test_list_in_the_node_s_order():
    """Keys come in the order in which the node lists them; null is none."""
    keys = [fresh(), OURS, fresh()]
    async with running(FakePortal()) as fake, PortalClient(fake.url) as client:
        records = b",".join(key.encode_record() for key in keys)
        fake.fault(lambda *_: Reply(200, (), b'{"skykeys":[%s]}' % records), times=1)
        assert await client.get_skykeys() == tuple(keys)
        fake.fault(lambda *_: Reply(200, (), b'{"skykeys":null}'))
        assert await client.get_skykeys() == ()
