"""The options of file access."""

from pathlib import Path

import pytest

from skymount.errors import MalformedError, WrongTypeError
from skymount.file_api.options import ChosenOptions


def test_what_is_not_said_is_as_configured(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P6: as the configuration says, environment included."""
    file = home / "config/skymount/config.toml"
    file.parent.mkdir(parents=True)
    file.write_text('portals = ["http://file.example"]\nverify = "require"\ndisk_cache = "1 GiB"\n')
    monkeypatch.setenv("SKYMOUNT_VERIFY", "off")
    config = ChosenOptions.parse().settings().config
    assert config.portals == ("http://file.example",)
    assert (config.verify, config.disk_cache) == ("off", 1 << 30)
    given = ChosenOptions.parse(
        portals="http://own.example", verify="available", disk_cache="2 GiB", api_key="key"
    )
    own = given.settings().config
    assert own.portals == ("http://own.example",)
    assert (own.verify, own.disk_cache, own.api_key) == ("available", 2 << 30, "key")


@pytest.mark.parametrize(
    ("given", "size"), [(True, 2 << 30), (None, 2 << 30), (False, 0), (0, 0), ("off", 0), (9, 9)]
)
def test_the_disk_cache(given: bool | int | str | None, size: int) -> None:
    assert ChosenOptions.parse(disk_cache=given).settings().config.disk_cache == size


@pytest.mark.parametrize(
    "given",
    [
        *({"portals": "nonsense"}, {"portals": ["http://user:pass@portal.example"]}),
        *({"verify": "perhaps"}, {"disk_cache": "much"}, {"disk_cache": -1}),
    ],
)
def test_values_that_cannot_be_used(given: dict[str, object]) -> None:
    """P3: an option that cannot be used is a ValueError, at once."""
    with pytest.raises(MalformedError):
        ChosenOptions.parse(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [{"verify": 1}, {"api_key": b"x"}])
def test_values_of_a_wrong_type(given: dict[str, object]) -> None:
    with pytest.raises(WrongTypeError):
        ChosenOptions.parse(**given)  # type: ignore[arg-type]


def test_an_error_does_not_name_a_command_line() -> None:
    with pytest.raises(ValueError, match=r"^options: portals: bad portal URL 'ftp://x': "):
        ChosenOptions.parse(portals="ftp://x")
