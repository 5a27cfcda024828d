"""A request as it is sent, and what its errors may say."""

import pytest

from skymount.errors import NotFoundError, RequestRefusedError
from skymount.portal.http.request import Call
from skymount.settings import PortalOptions
from skymount.wire.http.requests import Request, basic_credentials

PORTAL = "https://portal.example"
KEY = "pass word/of the operator"
COOKIE = "skynet-jwt=eyJhbGciOi.secret.token"


def call(
    request: Request = Request("GET", "/svc/skykey?name=hidden"),  # noqa: B008
    **options: object,
) -> Call:
    return Call(request, PortalOptions.parse(PORTAL, **options), PORTAL)  # type: ignore[arg-type]


def sent(made: Call) -> dict[str, str]:
    """Return the headers by their names in lower case."""
    return {name.decode().lower(): value.decode("latin-1") for name, value in made.headers()[0]}


def test_headers_of_every_request():
    """The agent of the dialect, no encoding, and the API key if there is one."""
    found = sent(call())
    assert found["user-agent"].startswith("svc-agent skymount/")
    assert found["accept-encoding"] == "identity"
    assert "authorization" not in found
    assert sent(call(api_key=KEY))["authorization"] == basic_credentials(KEY)


def test_what_goes_before():
    """Headers of the user go before the key and the agent, but not before the request's own."""
    headers = {"AUTHORIZATION": "Bearer x", "User-Agent": "mine", "X-Own": "mine", "X": "é"}
    request = Request("GET", "/", headers=(("x-own", "ours"),))
    found = sent(call(request, api_key=KEY, headers=headers))
    assert found["authorization"] == "Bearer x"
    assert found["user-agent"] == "mine"
    assert found["x-own"] == "ours"
    assert found["x"] == "é"


def test_what_no_other_origin_may_see():
    """C6: credentials, and whatever the user sets but the agent."""
    headers = {"X-Token": "a", "User-Agent": "mine"}
    _, private = call(api_key=KEY, headers=headers).headers()
    assert private == {b"authorization", b"cookie", b"x-token"}


def test_error_of_a_request():
    """It has method and address, without the query, which may name a key."""
    error = call().error(NotFoundError, "not here", 404)
    assert (error.method, error.url) == ("GET", f"{PORTAL}/svc/skykey")
    assert (error.message, error.status) == ("not here", 404)
    assert call().error(NotFoundError, "").message == "NotFoundError"


@pytest.mark.parametrize(
    "secret", [KEY, basic_credentials(KEY), COOKIE, "eyJhbGciOi.secret.token", "extra value"]
)
def test_secrets_that_a_portal_sends_back(secret: str):
    """C5: they come into no error; short words of a header do, being no secrets."""
    made = call(api_key=KEY, headers={"Cookie": COOKIE, "X-Extra": "extra value", "X-Mode": "fast"})
    error = made.error(RequestRefusedError, f"fast: do not send {secret}!", 400)
    assert error.message == "fast: do not send ***!"


def test_message_of_a_portal():
    """It is one line that a terminal shows as it is, and not a page."""
    error = call().error(RequestRefusedError, "a\x1b[2J\nb" + "x" * 1000)
    assert error.message == "a [2J b" + "x" * 293


def test_a_short_key_is_not_masked_letter_by_letter():
    """C6: where it stands alone it is."""
    made = call(api_key="a").error(RequestRefusedError, "a bad key: a")
    assert made.message == "*** bad key: ***"
