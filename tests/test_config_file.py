"""On which line of the configuration file a value stands."""

import os
from pathlib import Path

import pytest

from skymount.config import ConfigFile, line_of
from skymount.errors import ConfigError

TEXT = '''\
# A comment

portals = [
    "http://a",  # [[portals]]
    "http://b",
]
note = """
[[mounts]]
key = 1
"""
headers = { Cookie = "a", X = "b" }
a.b = 1

[mounts.home]

# about it
verify = "off"

[mounts."two words"]
[[mounts.other.portals]]
url = "http://c"
[mounts.other.portals.headers]
X = "y"

  [[ mounts . other . portals ]]  # the second one
api_key = \'\'\'
secret\'\'\'
'''


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        (["portals"], 3),
        (["portals", 1], 3),
        (["note"], 7),
        (["headers", "X"], 11),
        (["a", "b"], 12),
        (["mounts"], 14),
        (["mounts", "home", "verify"], 17),
        (["mounts", "two words"], 19),
        (["mounts", "other", "portals", 0], 20),
        (["mounts", "other", "portals", 0, "url"], 21),
        (["mounts", "other", "portals", 0, "headers"], 22),
        (["mounts", "other", "portals", 1], 25),
        (["mounts", "other", "portals", 1, "api_key"], 26),
        (["key"], None),
        (["portals", 2], None),
        (["portals", "x"], None),
        (["mounts", "other", "portals", 2], None),
    ],
)
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_line(keys: list[str | int], line: int | None, ending: str) -> None:
    assert line_of(TEXT.replace("\n", ending), *keys) == line


def test_no_line_of_a_long_document() -> None:
    """The search is bounded; the file is named then."""
    items = "".join(f'"{n}",\n' for n in range(20_000))
    assert line_of(f"a = [\n{items}]\nb = 1\n", "b") is None


def test_each_line_of_many() -> None:
    text = "".join(f"[[portals]]\nurl = {n}\n" for n in range(100))
    for n in range(100):
        assert line_of(text, "portals", n, "url") == 2 * n + 2


def test_place(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("\na = 1\n")
    read = ConfigFile.read(path, required=True)
    assert read.place("a") == f"{path}: line 2"
    assert read.place("b") == str(path)
    assert ConfigFile.read(tmp_path / "absent", required=False).settings == {}
    with pytest.raises(ConfigError, match="no such file"):
        ConfigFile.read(tmp_path / "absent", required=True)


def test_a_pipe_in_place_of_the_file(tmp_path: Path) -> None:
    """What a program writes to it is read; nobody is waited for without end."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(ConfigError, match=r"pipe: nothing was written to it for 0\.1 s"):
        ConfigFile.read(path, required=True, patience=0.1)
    read, write = os.pipe()
    os.write(write, b"timeout = 5")
    os.close(write)
    try:
        assert ConfigFile.read(Path(f"/dev/fd/{read}"), required=True).settings == {"timeout": 5}
    finally:
        os.close(read)


@pytest.mark.parametrize(
    ("path", "message"), [("/dev/zero", "larger than"), ("/", "Is a directory")]
)
def test_what_is_no_file_at_all(path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ConfigFile.read(Path(path), required=True)
