"""Configuration: defaults < file < environment < flags, and what is refused."""

import re
from dataclasses import FrozenInstanceError
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from skymount.config import default_log_file, default_path, load
from skymount.errors import ConfigError, MalformedError
from skymount.policies import VerifyPolicy, WritePolicy
from skymount.settings import DEFAULT_SVC_PORTAL_URL, SETTINGS, Config, PortalOptions
from skymount.values import parse_size
from skymount.wire.dialect import SKYNET

NOWHERE: dict[str, str] = {}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory without a configuration."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def write(text: str) -> Path:
    path = default_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def refused(text: str, **more: Any) -> str:
    """Return what is said of a file that cannot be used."""
    path = write(text)
    with pytest.raises(ConfigError) as caught:
        load({}, environ=NOWHERE, **more)
    said = str(caught.value)
    assert said.startswith(f"{path}: ")
    return re.sub(r"^line \d+: ", "", said.removeprefix(f"{path}: "))


def test_options_of_the_kernel() -> None:
    assert load({"mount_options": "ro,noexec"}, environ=NOWHERE).mount_options == ("ro", "noexec")
    with pytest.raises(ConfigError, match="mount_options must be one of ro, noexec, not 'suid'"):
        load({"mount_options": ["suid"]}, environ=NOWHERE)


def test_without_anything_there_are_defaults() -> None:
    assert load({}, environ=NOWHERE) == Config()


def test_defaults_use_the_default_portal() -> None:
    assert Config().portals == ()
    assert Config().portal_urls == ("http://127.0.0.1:4280",)


def test_the_file_lies_where_xdg_says(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_path() == home / ".config/skymount/config.toml"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "elsewhere"))
    assert default_path() == home / "elsewhere/skymount/config.toml"


def test_the_log_lies_where_xdg_says(home: Path) -> None:
    assert default_log_file("/home/me/sky") == str(
        home / ".local/state/skymount/log/home-me-sky.log"
    )


def test_every_key_can_be_set_in_the_file() -> None:
    write(
        """
        portals = ["https://one.example/"]
        dialect = "skynet"
        api_key = "secret"
        user_agent = "Agent/1"
        headers = { Cookie = "a=b", X-Token = "t" }
        node_url = "https://node.example/"
        ca_file = "/etc/ca.pem"
        connections = 8
        redirect_hosts = ["upload.example", "127.0.0.1:81"]
        mountpoint = "~/sky"
        allow_other = true
        mount_options = ["ro"]
        verify = "require"
        memory_cache = "1 GiB"
        tree_cache = "16 MiB"
        disk_cache = "off"
        read_ahead = false
        lookup_grace = 0.25
        registry_ttl = 1
        send_pending = false
        registry_writes = "majority"
        hns_ttl = 30
        timeout = 10
        wait_for_portal = "5 min"
        log_file = "/tmp/log"
        log_level = "Warning"
        metrics_listen = "[::1]:9464"
        """
    )
    found = load({}, environ=NOWHERE)
    assert found == Config(
        portals=("https://one.example",),
        dialect=SKYNET,
        api_key="secret",
        user_agent="Agent/1",
        headers=(("Cookie", "a=b"), ("X-Token", "t")),
        ca_file="/etc/ca.pem",
        connections=8,
        node_url="https://node.example",
        redirect_hosts=(("upload.example", None), ("127.0.0.1", 81)),
        mountpoint="~/sky",
        allow_other=True,
        mount_options=("ro",),
        verify=VerifyPolicy.REQUIRE,
        memory_cache=1 << 30,
        tree_cache=16 << 20,
        disk_cache=0,
        read_ahead=False,
        lookup_grace=0.25,
        registry_ttl=1.0,
        send_pending=False,
        registry_writes=WritePolicy.MAJORITY,
        hns_ttl=30.0,
        timeout=10.0,
        wait_for_portal=300.0,
        log_file="/tmp/log",
        log_level="warning",
        metrics_listen="[::1]:9464",
    )
    assert all(getattr(found, key) != getattr(Config(), key) for key in SETTINGS)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("api_key", '"secret"', "secret"),
        ("redirect_hosts", '["a"]', (("a", None),)),
        ("headers", '{ Cookie = "a" }', (("Cookie", "a"),)),
    ],
)
def test_what_goes_with_a_single_portal(key: str, value: str, expected: object) -> None:
    """It is meant for one portal, and no other one gets it."""
    write(f'portals = ["https://one.example/", "http://two.example:4280"]\n{key} = {value}\n')
    with pytest.raises(ConfigError, match=f"{key}: name a single portal"):
        load({}, environ=NOWHERE)
    assert getattr(load({"portals": ("https://one.example",)}, environ=NOWHERE), key) == expected


def test_redirect_hosts_in_the_environment() -> None:
    environ = {"SKYMOUNT_REDIRECT_HOSTS": " a  b:81\n"}
    found = load({"portals": ("http://c",)}, environ=environ)
    assert found.redirect_hosts == (("a", None), ("b", 81))


def test_headers_in_the_environment_are_lines() -> None:
    environ = {"SKYMOUNT_HEADERS": "Cookie: a=b; c=d\n\n X-Token : t:u \n"}
    found = load({}, environ=environ)
    assert found.headers == (("Cookie", "a=b; c=d"), ("X-Token", "t:u"))


@pytest.mark.parametrize(
    "text", ["secret", "Cookie secret", "Cookie: secret\nCookie: b", "A B: secret", ": secret"]
)
def test_lines_that_are_no_headers(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^SKYMOUNT_HEADERS: headers: ") as caught:
        load({}, environ={"SKYMOUNT_HEADERS": text})
    assert "secret" not in str(caught.value)


def test_every_client_gets_the_same_options() -> None:
    write('dialect = "skynet"\napi_key = "k"\nuser_agent = "Agent/1"\n[headers]\nCookie = "a"\n')
    (options,) = load({}, environ=NOWHERE).portal_options.values()
    assert (options.dialect.name, options.api_key) == ("skynet", "k")
    assert (options.user_agent, options.headers) == ("Agent/1", (("Cookie", "a"),))
    assert list(Config().portal_options.values()) == [PortalOptions()]


def test_later_origins_win() -> None:
    environ: dict[str, str] = {}
    flags: dict[str, object] = {"timeout": None}
    assert load(flags, environ=environ).timeout == 30
    write("timeout = 1\n[mounts.home]\ntimeout = 2\n")
    assert load(flags, environ=environ).timeout == 1
    assert load(flags, environ=environ, name="home").timeout == 2
    environ["SKYMOUNT_TIMEOUT"] = "3"
    assert load(flags, environ=environ, name="home").timeout == 3
    flags["timeout"] = "4"
    assert load(flags, environ=environ, name="home").timeout == 4


def test_origins_add_up_key_by_key() -> None:
    write('dialect = "skynet"\ntimeout = 1\n[mounts.home]\nmemory_cache = 5\n')
    found = load(
        {"mountpoint": "/mnt", "portals": ("http://a",)},
        environ={"SKYMOUNT_VERIFY": "off", "SKYMOUNT_PORTALS": "http://b"},
        name="home",
    )
    assert found == Config(
        portals=("http://a",),
        dialect=SKYNET,
        timeout=1,
        memory_cache=5,
        verify=VerifyPolicy.OFF,
        mountpoint="/mnt",
    )


def test_a_flag_replaces_the_portals_of_the_file() -> None:
    write('portals = ["http://a", "http://b"]\n')
    assert load({"portals": ("http://c",)}, environ=NOWHERE).portals == ("http://c",)


def test_the_environment_lists_portals_with_blanks() -> None:
    found = load({}, environ={"SKYMOUNT_PORTALS": " http://a  http://b\n"})
    assert found.portals == ("http://a", "http://b")


def test_an_empty_variable_counts_as_not_set() -> None:
    environ = {"SKYMOUNT_TIMEOUT": "", "SKYMOUNT_PORTALS": "", "SKYMOUNT_API_KEY": ""}
    assert load({}, environ=environ) == Config()


def test_other_variables_are_not_ours() -> None:
    """Nor does a variable of our prefix that resembles no key stop anything."""
    environ = {"TIMEOUT": "x", "SKYMOUNT_WHATEVER": "x", "skymount_timeout": "x"}
    assert load({}, environ=environ) == Config()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("SKYMOUNT_PORTAL", "SKYMOUNT_PORTALS"),
        ("SKYMOUNT_PORTALL", "SKYMOUNT_PORTALS"),
        ("SKYMOUNT_DISKCACHE", "SKYMOUNT_DISK_CACHE"),
        ("SKYMOUNT_PORTAL_PASSWRD", "SKYMOUNT_PORTAL_PASSWORD"),
    ],
)
def test_a_misspelt_variable(name: str, meant: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load({}, environ={name: "x"})
    assert str(caught.value) == f"{name}: there is no such variable; did you mean {meant}?"


def test_the_password_of_a_portal_is_no_key() -> None:
    assert load({}, environ={"SKYMOUNT_PORTAL_PASSWORD": "x"}) == Config()


@pytest.mark.parametrize(
    "text", ["http://a http://b", "http://a,http://b", " http://a,\thttp://b "]
)
def test_blanks_or_commas_separate_portals(text: str) -> None:
    assert load({}, environ={"SKYMOUNT_PORTALS": text}).portals == ("http://a", "http://b")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('portal = "http://a"', "unknown key 'portal'; did you mean portals?"),
        ('[mount.home]\nmountpoint = "/a"', "unknown key 'mount'; did you mean [mounts.home]?"),
        ('[mount]\nmountpoint = "/a"', "unknown key 'mount'; did you mean [mounts]?"),
        (
            '[mounts.a]\nmount_point = "/a"',
            "[mounts.a]: unknown key 'mount_point'; did you mean mountpoint?",
        ),
        (
            '[[portals]]\nurl = "http://a"\napikey = "b"',
            "[[portals]] 1: unknown key 'apikey'; did you mean api_key?",
        ),
    ],
)
def test_a_misspelt_key(text: str, said: str) -> None:
    assert refused(text) == said


def test_one_table_of_many_is_used() -> None:
    write('[mounts.a]\nmountpoint = "/a"\n[mounts.b]\nmountpoint = "/b"\n')
    assert load({}, environ=NOWHERE, name="b").mountpoint == "/b"
    assert load({}, environ=NOWHERE).mountpoint == ""


@pytest.mark.parametrize("name", ["a-b", "two words", "a.b"])
def test_a_table_of_any_name(name: str) -> None:
    write(f'[mounts."{name}"]\nmountpoint = "/there"\n')
    assert load({}, environ=NOWHERE, name=name).mountpoint == "/there"


def test_a_table_that_is_absent() -> None:
    assert refused("", name="home") == "no table [mounts.home]; known ones: there is none"
    assert refused("[mounts.b]\n[mounts.a]\n", name="c").endswith("known ones: a, b")


def test_mounts_must_be_tables() -> None:
    for text in ("mounts = 1", 'mounts = ["a"]', "[mounts]\nhome = 1"):
        assert refused(text).startswith("mounts: not tables like [mounts.home]")


def test_a_file_that_is_named_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load({}, environ=NOWHERE, file=str(tmp_path / "absent"))


def test_a_file_that_is_named_replaces_the_default_one(tmp_path: Path) -> None:
    write("timeout = 1\n")
    (tmp_path / "other.toml").write_text("memory_cache = 7\n")
    found = load({}, environ=NOWHERE, file=str(tmp_path / "other.toml"))
    assert found == Config(memory_cache=7)


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Is a directory"):
        load({}, environ=NOWHERE, file=str(tmp_path))


@pytest.mark.parametrize(
    "text",
    [
        f"{'x' * 5000} = 1",
        f"memory_cache = '{'x' * 5000}'",
        f"portals = ['http://{'x' * 5000}']",
        f"[mounts.'{'x' * 5000}']\nx = 1",
        '["mounts"."a\\u001b[2J\\n"]\nx = 1',
        '"a\\u001b[2J" = 1',
        'dialect = "a\\nb"',
        f"timeout = {'9' * 5000}",
    ],
)
def test_a_message_is_one_short_line(text: str) -> None:
    """Whatever is wrong, and however long: nothing in it moves a terminal's cursor."""
    said = refused(text)
    assert said.isprintable()
    assert len(said) < 1000


def test_all_faults_are_named() -> None:
    """Those of keys, of portals' tables and of mounts' tables, each with its line."""
    path = write(
        'portls = 1\ntimeout = "x"\n[[portals]]\nurl = "p"\ndialect = 3\n[[portals]]\n'
        '[mounts.home]\nverify = "x"\nmountpoint = 5\n'
    )
    with pytest.raises(ConfigError) as caught:
        load({"memory_cache": "x"}, environ={"SKYMOUNT_HNS_TTL": "x"}, file=str(path))
    faults = str(caught.value).split("; also ")
    lines = [f"{path}: line {number}: " for number in (1, 2, 4, 5, 6, 8, 9)]
    places = [*lines, "SKYMOUNT_HNS_TTL: ", "command line: "]
    for place, fault in zip(places, faults, strict=True):
        assert fault.startswith(place)


def test_what_is_not_toml() -> None:
    assert "line 2" in refused("timeout = 1\ntimeout =\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("timeout = 1\ntimeout = 2\n", "timeout is set twice"),
        ("timeout = 1\ntimeout = 2", "timeout is set twice"),
        ('api_key = "secret"\n"api_key"="secret"\n', '"api_key" is set twice'),
        ("headers.a = 1\n\nheaders.a = 2\n", "headers.a is set twice"),
        ("[mounts.a]\n[mounts.b]\n[mounts.a]\n", "mounts.a is set twice"),
        ("mounts = 1\n[mounts.a]\nverify = 1\n", "mounts.a is set twice"),
        (
            "portals = []\nportals = [\n'http://a.example'\n]\n",
            "it is not valid TOML: Cannot overwrite a value (at line 4, column 2)",
        ),
    ],
)
def test_a_key_that_is_there_twice(text: str, said: str) -> None:
    assert refused(text) == said


def test_a_byte_order_mark_is_passed_over() -> None:
    path = write("")
    path.write_bytes(b"\xef\xbb\xbftimeout = 7\nhns_ttl = 0\n")
    with pytest.raises(ConfigError, match="line 2: hns_ttl"):
        load({}, environ=NOWHERE)
    path.write_bytes("timeout = 7\n".encode("utf-16"))
    with pytest.raises(ConfigError, match="it is not text in UTF-8"):
        load({}, environ=NOWHERE)


@pytest.mark.parametrize("key", ["mountpoint", "log_file", "ca_file"])
def test_an_empty_variable_of_a_path_is_refused(key: str) -> None:
    name = f"SKYMOUNT_{key.upper()}"
    with pytest.raises(ConfigError, match=f"^{name}: it is an empty path"):
        load({}, environ={name: ""})


def test_empty_portals_keys_and_names_of_programs_are_the_defaults() -> None:
    write('portals = [""]\napi_key = ""\nuser_agent = ""\n')
    environment = {"SKYMOUNT_PORTALS": "", "SKYMOUNT_API_KEY": "", "SKYMOUNT_USER_AGENT": ""}
    assert load({}, environ=environment) == Config()


def test_bytes_that_are_not_text() -> None:
    path = write("")
    path.write_bytes(b'mountpoint = "\xff"\n')
    with pytest.raises(ConfigError, match="utf-8"):
        load({}, environ=NOWHERE)


def test_a_file_over_the_limit() -> None:
    assert refused("#" * (1 << 20) + "\n") == "larger than 1 MiB"


def test_nesting_without_end() -> None:
    assert refused("x = " + "[" * 100_000)


@pytest.mark.parametrize(
    "text", ["portal = 1", "Timeout = 1", "[cache]\nsize = 1", '"" = 1', "[[portals]]\nurl = 1"]
)
def test_an_unknown_key_or_shape(text: str) -> None:
    said = refused(text)
    assert said.startswith(("unknown key", "[[portals]] 1: url must be a string"))


def test_an_unknown_key_names_the_known_ones() -> None:
    said = refused("cache = 1")
    assert said.startswith("unknown key 'cache'; known ones: portals, dialect, ")
    assert "memory_cache" in said


def test_an_unknown_key_in_a_table_that_is_not_used() -> None:
    """A typing error is found before it matters."""
    assert refused("[mounts.a]\n[mounts.b]\ntimout = 1\n", name="a").startswith(
        "[mounts.b]: unknown key 'timout'"
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("portals = 1", "must be a list of strings"),
        ("portals = [1]", "must be a string"),
        ('portals = ["portal.example"]', "or https://: write https://portal.example"),
        ('portals = ["http://me:secret@portal.example"]', "must not hold credentials"),
        ('dialect = "klingon"', "unknown dialect 'klingon'"),
        ("dialect = 1", "must be a string"),
        ('api_key = ["x"]', "must be a string"),
        ("user_agent = 1", "must be a string"),
        ('user_agent = "a\\nb"', "user_agent holds a character that a header cannot carry"),
        ("headers = 1", "must be a mapping"),
        ('headers = ["Cookie: secret"]', "must be a mapping"),
        ("headers = { Cookie = 1 }", "must be a string"),
        ('headers = { "a b" = "secret" }', "is not the name of a header"),
        ('headers = { Host = "secret" }', "is set by the client itself"),
        ('headers = { Cookie = "secret\\n" }', "a character that a header cannot carry"),
        ('node_url = "localhost:1"', "or https://: write http://localhost:1"),
        ('node_url = "http://me:secret@node.example"', "must not hold credentials"),
        ("redirect_hosts = 1", "must be a list of strings"),
        ("redirect_hosts = [1]", "must be a string"),
        ('redirect_hosts = ["https://upload.example"]', "neither host nor host:port"),
        ('redirect_hosts = ["upload.example/path"]', "neither host nor host:port"),
        ('redirect_hosts = ["me:secret@upload.example"]', "must not hold credentials"),
        ('mountpoint = "a\\u0000b"', "it holds a NUL character"),
        ("allow_other = 2", "must be True or False"),
        ('allow_other = "perhaps"', "neither true nor false"),
        ('verify = "maybe"', "verify must be one of require, available, off"),
        ("verify = true", "must be a string"),
        ('memory_cache = "much"', "not a size"),
        ("memory_cache = -1", "not a size"),
        ("memory_cache = 1.5", "not a size"),
        ("memory_cache = true", "not a size"),
        ('disk_cache = "on"', "not a size: 'on'; write it like 128 MiB, 2G or 500 MB, or off"),
        ("disk_cache = false", "not a size"),
        ("timeout = 0", "must be above 0 seconds and at most 3600"),
        ("timeout = -1", "must be above 0 seconds and at most 3600"),
        ("timeout = 3601", "must be above 0 seconds and at most 3600"),
        (f"timeout = {'9' * 400}", "must be above 0 seconds and at most 3600"),
        ("timeout = nan", "must be above 0 seconds and at most 3600"),
        ("timeout = inf", "must be above 0 seconds and at most 3600"),
        ("timeout = true", "must be a number of seconds"),
        ('timeout = "soon"', "not a number of seconds"),
        ("lookup_grace = []", "must be a number of seconds"),
        ("log_file = 1", "must be a string"),
        ('mountpoint = ""', "is an empty path"),
        ('log_file = ""', "is an empty path"),
        *(
            (f'{key} = "{path}"', words)
            for key in ("mountpoint", "log_file", "ca_file")
            for path, words in (
                ("$HOME/sky", "holds a $: variables are not replaced; write ~ for your home"),
                ("/mnt/${USER}/sky", "holds a $"),
                ("~nosuch/sky", "begins with ~, and there is no such home directory"),
            )
        ),
        ('log_level = "loud"', "log_level must be one of debug, info, warning, error, not 'loud'"),
        ('metrics_listen = "0.0.0.0:9464"', "not an address of this machine alone"),
        ('metrics_listen = "9464"', "not an address like 127.0.0.1:9464"),
        ('metrics_listen = "127.0.0.1:99999"', "not an address like 127.0.0.1:9464"),
        ('metrics_listen = "::1:9464"', "not an address like 127.0.0.1:9464"),
    ],
)
def test_a_bad_value_is_refused_with_its_place(line: str, words: str) -> None:
    said = refused(line)
    assert said.startswith(line.partition(" ")[0])
    assert words in said
    assert "secret" not in said
    assert "custom_user_agent" not in said  # which is the name in the library


def test_a_bad_variable_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^SKYMOUNT_TIMEOUT: timeout: not a number of seconds"):
        load({}, environ={"SKYMOUNT_TIMEOUT": "soon"})


@pytest.mark.parametrize("key", ["mountpoint", "log_file"])
def test_a_flag_may_hold_a_dollar_sign_and_a_variable_of_the_environment_may_not(key: str) -> None:
    path = "/mnt/$a"
    assert getattr(load({key: path}, environ=NOWHERE), key) == path
    with pytest.raises(ConfigError, match=r"holds a \$"):
        load({}, environ={**NOWHERE, f"SKYMOUNT_{key.upper()}": path})


def test_a_bad_flag_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^command line: memory_cache: not a size"):
        load({"memory_cache": "much"}, environ=NOWHERE)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (0, 0),
        (123, 123),
        ("0", 0),
        ("123", 123),
        ("5 B", 5),
        ("1 KiB", 1024),
        ("2kib", 2048),
        ("128 MiB", 128 << 20),
        (" 3 GIB ", 3 << 30),
        ("1TiB", 1 << 40),
        ("1G", 1 << 30),
        ("1 m", 1 << 20),
        ("1GB", 10**9),
        ("128 MB", 128 * 10**6),
        ("1.5 GiB", 3 << 29),
        ("0.25kB", 250),
    ],
)
def test_sizes(text: object, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    [
        *("", "MiB", "1.5", "1.5 B", "1. M", "-1", "1 X", "1 MBB", "1 iB", "0x10", "1 MiB MiB"),
        *("9" * 16, "٣", 1 << 50, None),
    ],
)
def test_what_is_not_a_size(text: object) -> None:
    with pytest.raises(MalformedError):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "value"), [("1", True), ("TRUE", True), ("yes", True), ("0", False), ("No", False)]
)
def test_truth_in_the_environment(text: str, value: bool) -> None:
    assert load({}, environ={"SKYMOUNT_ALLOW_OTHER": text}).allow_other is value


def test_secrets_are_never_shown() -> None:
    environ = {"SKYMOUNT_API_KEY": "secret", "SKYMOUNT_HEADERS": "Cookie: secret"}
    found = load({}, environ=environ)
    assert (found.api_key, found.headers) == ("secret", (("Cookie", "secret"),))
    assert "secret" not in repr(found)


def test_it_cannot_be_changed_later() -> None:
    with pytest.raises(FrozenInstanceError):
        Config().timeout = 1  # type: ignore[misc]


OF_A_PORTAL = {
    "api_key": ('"secret"', "x"),
    "headers": ('{ Cookie = "secret" }', "Cookie: x"),
    "node_url": ('"http://node"', "http://mine"),
    "redirect_hosts": ('["there"]', "here"),
}
"""Keys that belong to a portal, with a value in the file and one in the environment."""


@pytest.mark.parametrize("key", OF_A_PORTAL)
def test_what_belongs_to_a_portal_stays_with_it(tmp_path: Path, key: str):
    """What the file has for its portal is not sent to one that is named elsewhere."""
    value, mine = OF_A_PORTAL[key]
    file = tmp_path / "config.toml"
    file.write_text(f"""
        portals = ["http://a"]
        {key} = {value}
        [mounts.other]
        portals = ["http://b"]
        [mounts.default]
        portals = []
        [mounts.same]
        verify = "off"
    """)
    read = partial(load, file=str(file))
    variable = f"SKYMOUNT_{key.upper()}"
    assert getattr(read({}, environ={}), key)
    assert getattr(read({}, environ={}, name="same"), key)
    assert getattr(read({"portals": ["http://a"]}, environ={}), key)
    assert not getattr(read({}, environ={}, name="other"), key)
    assert not getattr(read({}, environ={}, name="default"), key)
    assert not getattr(read({"portals": ["http://b"]}, environ={}), key)
    assert not getattr(read({}, environ={"SKYMOUNT_PORTALS": "http://b"}), key)
    assert getattr(read({"portals": ["http://b"]}, environ={variable: mine}), key)


@pytest.mark.parametrize("key", OF_A_PORTAL)
def test_what_a_file_without_portals_has_belongs_to_the_default_one(key: str):
    """It is not sent to a portal that is named elsewhere, nor a mount's to another mount's."""
    value, _ = OF_A_PORTAL[key]
    write(f"""
        {key} = {value}
        [mounts.same]
        verify = "off"
        [mounts.other]
        portals = ["http://b"]
    """)
    default = DEFAULT_SVC_PORTAL_URL
    assert getattr(load({}, environ=NOWHERE), key)
    assert getattr(load({}, environ=NOWHERE, name="same"), key)
    assert getattr(load({"portals": (default,)}, environ=NOWHERE), key)
    assert getattr(load({}, environ={"SKYMOUNT_PORTALS": default}), key)
    assert not getattr(load({"portals": ("http://b",)}, environ=NOWHERE), key)
    assert not getattr(load({"portals": (default, "http://b")}, environ=NOWHERE), key)
    assert not getattr(load({}, environ={"SKYMOUNT_PORTALS": "http://b"}), key)
    assert not getattr(load({}, environ=NOWHERE, name="other"), key)
    write(f"[mounts.home]\n{key} = {value}\n")
    assert getattr(load({}, environ=NOWHERE, name="home"), key)
    assert not getattr(load({"portals": ("http://b",)}, environ=NOWHERE, name="home"), key)


@pytest.mark.parametrize("key", OF_A_PORTAL)
def test_what_the_environment_has_belongs_to_its_portal_or_to_any(key: str):
    """Beside SKYMOUNT_PORTALS it is that one's; without, it is for whichever is used."""
    _, mine = OF_A_PORTAL[key]
    environ = {f"SKYMOUNT_{key.upper()}": mine}
    one, other = {"portals": ("http://a",)}, {"portals": ("http://b",)}
    assert all(getattr(load(flags, environ=environ), key) for flags in ({}, one, other))
    environ["SKYMOUNT_PORTALS"] = "http://a"
    assert all(getattr(load(flags, environ=environ), key) for flags in ({}, one))
    assert not getattr(load(other, environ=environ), key)


@pytest.mark.parametrize("key", OF_A_PORTAL)
def test_what_the_environment_has_for_named_portals(key: str):
    """A command with two kinds of portals gives what is for any portal to one of these only."""
    _, mine = OF_A_PORTAL[key]
    environ = {f"SKYMOUNT_{key.upper()}": mine, "SKYMOUNT_TIMEOUT": "7"}
    read = partial(load, environ=environ, others=True)
    found = read({"portals": ("http://a",)})
    assert (getattr(found, key), found.timeout) == (getattr(Config(), key), 7)
    environ["SKYMOUNT_PORTALS"] = "http://a"
    assert getattr(read({"portals": ("http://a",)}), key)
    assert not getattr(read({"portals": ("http://b",)}), key)


@pytest.mark.parametrize(
    ("text", "mode", "is_warned"),
    [
        ('api_key = "secret"', 0o644, True),
        ('api_key = "secret"', 0o640, True),
        ('api_key = "secret"', 0o602, True),
        ('api_key = "secret"', 0o600, False),
        ('headers = { Cookie = "secret" }', 0o604, True),
        ('[mounts.any]\napi_key = "secret"', 0o604, True),
        ('api_key = ""\nheaders = {}\ntimeout = 1', 0o666, False),
    ],
)
def test_a_file_with_secrets_that_others_can_read_is_warned_of(
    text: str, mode: int, is_warned: bool
) -> None:
    path = write(text)
    path.chmod(mode)
    said: list[str] = []
    load({}, environ=NOWHERE, warn=said.append)
    warning = f"{path}: others can read or change it, and it holds secrets; `chmod 600 {path}`"
    assert said == ([warning] if is_warned else [])
