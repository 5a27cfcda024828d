"""The tables ``[[portals]]``: what each portal gets, and what is refused."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from skymount.config import load
from skymount.errors import ConfigError
from skymount.settings import Config, PortalOptions
from skymount.values import portal_identity

A, B, C = "http://a.example", "http://b.example", "http://c.example"
TABLES = f"""\
dialect = "skynet"

[[portals]]
url = "{A}/"
dialect = "svc"
api_key = "key of a"
ca_file = "/etc/a.pem"

[[portals]]
url = "{B}"
headers = {{ Cookie = "cookie of b" }}
node_url = "http://node.b.example"
redirect_hosts = ["up.b.example"]
read_only = true
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def read(
    path: Path,
    text: str = TABLES,
    *portals: str,
    environ: Mapping[str, str] | None = None,
    **more: Any,
) -> Config:
    path.write_text(text)
    flags = {"portals": portals or None, **more.pop("flags", {})}
    return load(flags, environ=environ or {}, file=str(path), **more)


def options(config: Config, url: str) -> PortalOptions:
    return config.portal_options[url]


def refused(path: Path, text: str, **more: Any) -> str:
    """Return what is said of a file that cannot be used, without its path."""
    with pytest.raises(ConfigError) as caught:
        read(path, text, **more)
    said = str(caught.value)
    assert said.startswith(f"{path}: ")
    assert "secret" not in said
    return said.removeprefix(f"{path}: ")


def test_each_portal_gets_what_its_table_sets(path: Path) -> None:
    """What is set outside of the tables holds for portals that do not set it."""
    found = read(path)
    assert found.portals == (A, B)
    one, two = options(found, A), options(found, B)
    assert (one.dialect.name, one.api_key, one.headers) == ("svc", "key of a", ())
    assert (one.ca_file, one.node_url, one.redirect_hosts) == ("/etc/a.pem", "", ())
    assert not one.read_only
    assert (two.dialect.name, two.api_key) == ("skynet", "")
    assert (two.headers, two.ca_file) == ((("Cookie", "cookie of b"),), "")
    assert (two.node_url, two.redirect_hosts) == (
        "http://node.b.example",
        (("up.b.example", None),),
    )
    assert two.read_only
    assert (found.writing_url, found.first_dialect.name) == (A, "svc")


def test_a_short_list_of_tables_is_the_same(path: Path) -> None:
    text = f'portals = [{{ url = "{A}", api_key = "key of a" }}, {{ url = "{B}" }}]\n'
    found = read(path, text)
    assert found.portals == (A, B)
    assert [options(found, url).api_key for url in (A, B)] == ["key of a", ""]


def test_secrets_of_tables_are_never_shown(path: Path) -> None:
    found = read(path)
    assert "key of a" not in repr(found)
    assert "cookie of b" not in repr(found)


def test_a_named_portal_has_what_its_table_sets(path: Path) -> None:
    """Whatever the spelling of its address; and nobody else has."""
    flag = read(path, TABLES, "HTTP://A.example:80/", C)
    assert options(flag, flag.portals[0]).api_key == "key of a"
    assert options(flag, C) == PortalOptions.parse(C, dialect="skynet")
    environment = read(path, TABLES, environ={"SKYMOUNT_PORTALS": f"{B} {C}"})
    assert options(environment, B).headers == (("Cookie", "cookie of b"),)
    assert options(environment, B).read_only
    assert options(environment, C) == PortalOptions.parse(C, dialect="skynet")
    assert [*environment.portal_tables] == [portal_identity(B)]
    other = read(path, TABLES, f"{A}/below")
    assert options(other, f"{A}/below").api_key == ""


def test_later_settings_override_tables(path: Path) -> None:
    environ = {"SKYMOUNT_API_KEY": "mine", "SKYMOUNT_CA_FILE": "/etc/mine.pem"}
    found = read(path, TABLES, A, environ=environ, flags={"dialect": "skynet"})
    one = options(found, A)
    assert (one.api_key, one.ca_file, one.dialect.name) == ("mine", "/etc/mine.pem", "skynet")
    with pytest.raises(ConfigError, match=r"^SKYMOUNT_API_KEY: api_key: name a single portal"):
        read(path, TABLES, environ=environ)
    environ["SKYMOUNT_PORTALS"] = B
    one = options(read(path, TABLES, A, environ=environ), A)
    assert (one.api_key, one.ca_file) == ("key of a", "/etc/mine.pem")  # not the key of b


def test_tables_of_a_mount(path: Path) -> None:
    """They take the place of those of the file, also in what they say of a portal."""
    text = f"""{TABLES}
[[mounts.home.portals]]
url = "{A}"
dialect = "skynet"
[[mounts.home.portals]]
url = "{C}"
api_key = "key of c"
[mounts.short]
portals = ["{B}"]
"""
    home = read(path, text, name="home")
    assert home.portals == (A, C)
    assert options(home, A) == PortalOptions.parse(A, dialect="skynet")
    assert options(home, C).api_key == "key of c"
    assert options(read(path, text, name="short"), B).read_only
    assert options(read(path, text, C), C).api_key == ""


def test_the_portal_to_write_to_is_the_first_that_is_not_read_only(path: Path) -> None:
    text = '[[portals]]\nurl = "http://m{}"\nread_only = true\n'
    both = text.format(1) + text.format(2)
    assert read(path, both).writing_url == "http://m1"  # which refuses
    assert read(path, f'{both}[[portals]]\nurl = "{A}"\n').writing_url == A


def test_what_others_can_read_is_warned_of(path: Path) -> None:
    for text, count in ((TABLES, 1), (f'[[portals]]\nurl = "{A}"\n', 0)):
        said: list[str] = []
        path.write_text(text)
        path.chmod(0o644)
        load({}, environ={}, file=str(path), warn=said.append)
        assert len(said) == count


TABLE = f'[[portals]]\nurl = "{A}"\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f'{TABLE}[[portals]]\nurl = "HTTP://a.example:80/"\n', "line 3: [[portals]] 2: "),
        (f'portals = [\n"{B}",\n"{A}", "{A}."]', f"line 1: portals: {A}. is listed twice"),
        (f"timeout = 1\n\n{TABLE}\nurI = 1\n", "line 6: [[portals]] 1: unknown key 'urI'; known"),
        (f"{TABLE}[[portals]]\napi_key = 'secret'", "line 3: [[portals]] 2: it has no url"),
        (f"{TABLE}timeout = 5", "line 3: [[portals]] 1: unknown key 'timeout'; known ones: url"),
        ("[[portals]]\nurl = 5", "line 2: [[portals]] 1: url must be a string"),
        ('[[portals]]\nurl = "a.example"', "line 2: [[portals]] 1: url: bad portal URL"),
        ('[[portals]]\nurl = "http://me:secret@a"', "line 2: [[portals]] 1: url: bad portal URL"),
        (f"{TABLE}read_only = 1", "line 3: [[portals]] 1: read_only must be True or False"),
        (f'{TABLE}read_only = "maybe"', "line 3: [[portals]] 1: read_only: neither true nor"),
        (f"{TABLE}api_key = ['secret']", "line 3: [[portals]] 1: api_key must be a string"),
        (f"{TABLE}dialect = 'klingon'", "line 3: [[portals]] 1: dialect: unknown dialect"),
        (f"{TABLE}headers = ['X: secret']", "line 3: [[portals]] 1: headers must be a mapping"),
        (f"{TABLE}[portals.headers]\nHost = 'secret'", "line 3: [[portals]] 1: headers: the"),
        (f"{TABLE}ca_file = 1", "line 3: [[portals]] 1: ca_file must be a string"),
        (f"{TABLE}ca_file = '$HOME/a'", "line 3: [[portals]] 1: ca_file holds a $: variables"),
        (f"{TABLE}redirect_hosts = ['a/b']", "line 3: [[portals]] 1: redirect_hosts: 'a/b' is"),
        (f"portals = ['{A}', {{ url = '{B}' }}]", "line 1: [[portals]] 1: addresses and tables"),
        (f'[portals]\nurl = "{A}"', "line 1: portals: a portal's table begins with [[portals]]"),
        (f"portals = ['{B}']\n{TABLE}", "it is not valid TOML: Cannot mutate immutable namespace"),
        (f"[[mounts.x.portals]]\nurl = '{A}'\nx = 1", "line 3: [mounts.x]: [[portals]] 1: unkn"),
        (f'api_key = "secret"\n{TABLES}', "line 1: api_key: name a single portal"),
        (f'node_url = "http://n"\n{TABLES}', "line 1: node_url: name a single portal"),
        (f"portals = ['{A}', '{B}']\n\nheaders.X = 'secret'", "line 3: headers: name a single"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(path: Path, text: str, words: str) -> None:
    said = refused(path, text)
    assert said.startswith(words)
    assert said.isprintable()


def test_a_key_of_the_whole_file_in_a_table(path: Path) -> None:
    said = refused(path, f'{TABLE}memory_cache = "1 MiB"\n')
    assert "put 'memory_cache' above the first table" in said


def test_the_number_of_the_table_where_no_line_is_found(path: Path) -> None:
    items = "".join(f'"{n}",\n' for n in range(20_000))
    text = f"mounts.x.portals = [\n{items}]\n[[portals]]\nurl = 5\n"
    assert refused(path, text).startswith("[[portals]] 1: url must be a string")


def test_a_portal_named_twice_elsewhere(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^command line: portals: http://A.example is listed"):
        read(path, "", B, A, "http://A.example", A)
    with pytest.raises(ConfigError, match=r"^SKYMOUNT_PORTALS: portals: "):
        read(path, "", environ={"SKYMOUNT_PORTALS": f"{A} {A}"})
