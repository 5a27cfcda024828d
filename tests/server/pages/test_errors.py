"""Errors as pages."""

import pytest

from skymount.server.pages.rendering import title_of
from tests.server.http_client import Client, message_of
from tests.server.pages.page_client import ACCEPT, assert_page, page


@pytest.mark.parametrize(
    ("url", "headers", "status", "said"),
    [
        ("/nothing/here", {}, 404, "Not found"),
        ("/" + "A" * 46, {}, 404, "Not found"),
        ("/svc/skyfile", {}, 405, "cannot be done"),
        ("/svc/metadata/nonsense", {}, 400, "cannot be understood"),
        ("/?" + "&a=b" * 101, {}, 400, "failed to parse query"),
        ("/hns/nobody", {}, 404, "No records found for nobody"),
        ("/", {"Host": "evil.example"}, 421, "another name"),
        ("/", {"Host": "a b"}, 400, "cannot be understood"),
        ("/", {"Service-Worker": "script"}, 403, "not allowed"),
    ],
)
def test_errors_are_pages_for_browsers(
    client: Client, url: str, headers: dict[str, str], status: int, said: str
) -> None:
    """B10: others get the JSON or text that they always got, with the same status."""
    answer = page(client, url, headers, status)
    assert said.lower() in answer.text.lower()
    assert 'lang="en"' in answer.text
    other = client.get(url, headers=headers)
    assert "text/html" not in other.headers.get("content-type", "")


def test_errors_of_ranges_and_conditions(client: Client) -> None:
    """B10: with what the status says beside it."""
    link = client.upload_file("a.txt", b"text")
    wrong = page(client, f"/{link}", {"If-Match": '"x"'}, 412)
    assert "It has changed" in wrong.text


def test_what_is_no_page_stays_as_it_is(client: Client) -> None:
    """B10: requests that change something outside the pages are answered as ever."""
    answer = client.post("/svc/skyfile", headers={"Accept": ACCEPT, "Content-Type": "text/plain"})
    assert answer.status_code == 400
    message_of(answer)
    form = client.post("/-/sign-in", headers={"Accept": ACCEPT}, data={"token": "x"})
    assert form.status_code == 403
    assert_page(form)


def test_nothing_is_said_twice(client: Client) -> None:
    text = page(client, "/nothing/here", status=404).text
    assert text.lower().count(">not found<") == 1
    assert 'class="message"' not in text


@pytest.mark.parametrize("status", [400, 404, 410, 413, 416, 429, 500, 507, 451, 599])
def test_each_status_has_a_name(status: int) -> None:
    """B10: also those that this portal never sends itself."""
    assert title_of(status)[0].isupper()
