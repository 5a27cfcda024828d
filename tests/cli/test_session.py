"""From flags to an open client: what goes wrong comes out as it is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import trio

from skymount.cli.options import load_settings
from skymount.cli.session import client, content, run
from skymount.errors import NotFoundError, PortalError
from skymount.settings import Config
from skymount.wire.dialect import SKYNET
from tests.fakes.portal import FakePortal, in_thread
from tests.fakes.skyfiles import of_files

NAMED = Config(portals=("http://portal.example",))


def failing(*errors: BaseException) -> "Callable[[object], object]":
    """Return a function that fails in tasks of its own."""

    async def fail(error: BaseException) -> NoReturn:
        raise error

    async def function(_: object) -> None:
        async with trio.open_nursery() as nursery:
            for error in errors:
                nursery.start_soon(fail, error)

    return function


@pytest.mark.parametrize("opens", [client, content])
def test_an_error_of_a_task_comes_out_bare(opens: "Callable[..., Any]") -> None:
    with pytest.raises(NotFoundError):
        run(opens(NAMED), failing(NotFoundError("no")))
    with pytest.raises(KeyError):
        run(opens(NAMED), failing(KeyError()))


@pytest.mark.parametrize("opens", [client, content])
def test_an_interrupt_outweighs_other_errors(opens: "Callable[..., Any]") -> None:
    with pytest.raises(KeyboardInterrupt):
        run(opens(NAMED), failing(PortalError("no"), KeyboardInterrupt()))


@pytest.mark.parametrize("opens", [client, content])
def test_the_result_is_returned(opens: "Callable[..., Any]") -> None:
    async def function(opened: object) -> str:
        return type(opened).__name__

    assert run(opens(NAMED), function) in ("PortalClient", "Content")


def test_flags_go_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYMOUNT_PORTALS", "http://a.example")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nonexistent")
    assert load_settings().portals == ("http://a.example",)
    found = load_settings(portals=("http://b.example",), dialect="skynet", verify="require")
    assert (found.portals, found.dialect) == (("http://b.example",), SKYNET)
    assert found.verify.value == "require"


def test_the_example_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    """DEVELOPMENT.md: a command that reads content takes one file of at most 40 lines."""
    page = (Path(__file__).parents[2] / "DEVELOPMENT.md").read_text()
    code = page.partition("```python\n")[2].partition("```")[0]
    assert code.count("\n") <= 40
    module: dict[str, Any] = {}
    exec(code, module)
    site = of_files({"a": b"1", "b/c": b"2"})
    with in_thread(FakePortal()) as portal:
        portal.add(site)
        module["count"].main([site.name, "--portal", portal.url], standalone_mode=False)
    assert capsys.readouterr().out == "2\n"
