"""How sizes and times are written, and when jinja2 is there."""

import subprocess
import sys
from urllib.parse import quote

import pytest

from skymount.server.pages.rendering import readable_size, readable_time
from tests.server.http_client import Client
from tests.server.pages.page_client import page


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (999, "999 bytes"),
        (1000, "1.0 KB"),
        (9949, "9.9 KB"),
        (9950, "10 KB"),
        (999_499, "999 KB"),
        (999_500, "1.0 MB"),
        (5 << 30, "5.4 GB"),
        (10**30, "1000000000000 EB"),
    ],
)
def test_sizes(size: int, text: str) -> None:
    assert readable_size(size) == text


def test_times() -> None:
    assert readable_time(0) == "1970-01-01T00:00:00Z"
    assert readable_time(-1) == "1970-01-01T00:00:00Z"
    assert readable_time(1e18) == "9999-12-31T23:59:59Z"  # files may have any time


def test_templates_are_for_those_who_want_pages() -> None:
    """A portal that nobody opens in a browser does not load jinja2, and a mount never does."""
    code = (
        "import sys\n"
        "from skymount.cli.commands import mount\n"
        "from skymount.daemon import daemonize\n"
        "mounts = set(sys.modules)\n"
        "from skymount.server import main\n"
        "assert 'jinja2' not in sys.modules\n"
        "assert not any(name.startswith('skymount.server') for name in mounts)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_names_are_isolated_and_written_out(client: Client) -> None:
    """B12: in lists, listings and previews; markup in them stays text. Links lead to the file."""
    name = "a<b>\u202egpj.exe"
    link = client.upload({name: b"1", f"d\u200b/{name}": b"2"}, filename=f"all{name}")
    shown = 'a&lt;b&gt;<span class="unseen">\\u202e</span>gpj.exe</bdi>'
    for url in ("/", f"/?stored={link}", f"/-/view/{link}/"):
        assert f"<bdi>all{shown}" in page(client, url).text
    for url in (f"/{link}/", f"/-/view/{link}/d%E2%80%8B/", f"/-/view/{link}/{quote(name)}"):
        assert f"<bdi>{shown}" in page(client, url).text
    assert '<bdi>d<span class="unseen">\\u200b</span></bdi>' in page(client, f"/{link}/").text
    for url in ("/", f"/{link}/", f"/-/view/{link}/{quote(name)}", f"/?stored={link}"):
        assert not {"\u202e", "\u200b"} & set(page(client, url).text)
    assert page(client, f"/?q={quote(name)}").text.count("\u202e") == 1  # in the field itself
    assert client.get(f"/{link}/{quote(name)}").content == b"1"
    with_slash = client.get(f"/{link}/").text  # for programs
    assert f'<a href="{quote(name)}">a&lt;b&gt;\\u202egpj.exe</a>' in with_slash
    refused = page(client, f"/{link}/no\u202e", status=404)
    assert '/no<span class="unseen">\\u202e</span>' in refused.text


def test_a_policy_for_an_ipv6_address(client: Client) -> None:
    """B7: policies have no such addresses, so the whole origin is named."""
    policy = page(client, "/", {"Host": "[::1]:80"}).headers["content-security-policy"]
    assert "script-src 'self';" in policy
    policy = page(client, "/", {"Host": "localhost:81"}).headers["content-security-policy"]
    assert "script-src localhost:81/-/assets/;" in policy
