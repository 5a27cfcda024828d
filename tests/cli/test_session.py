"""From flags to an open client: what goes wrong comes out as it is."""

from collections.abc import Callable
from typing import NoReturn

import pytest
import trio

from skymount.cli.options import load_settings
from skymount.cli.session import run_with_client, run_with_content
from skymount.errors import NotFoundError, PortalError
from skymount.settings import Config
from skymount.wire.dialect import SKYNET

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


@pytest.mark.parametrize("run", [run_with_client, run_with_content])
def test_an_error_of_a_task_comes_out_bare(run: "Callable[..., None]") -> None:
    with pytest.raises(NotFoundError):
        run(NAMED, failing(NotFoundError("no")))
    with pytest.raises(KeyError):
        run(NAMED, failing(KeyError()))


@pytest.mark.parametrize("run", [run_with_client, run_with_content])
def test_an_interrupt_outweighs_other_errors(run: "Callable[..., None]") -> None:
    with pytest.raises(KeyboardInterrupt):
        run(NAMED, failing(PortalError("no"), KeyboardInterrupt()))


@pytest.mark.parametrize("run", [run_with_client, run_with_content])
def test_the_result_is_returned(run: "Callable[..., str]") -> None:
    async def function(opened: object) -> str:
        return type(opened).__name__

    assert run(NAMED, function) in ("PortalClient", "ContentSession")


def test_flags_go_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYMOUNT_PORTALS", "http://a.example")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nonexistent")
    assert load_settings().portals == ("http://a.example",)
    found = load_settings(portals=("http://b.example",), dialect="skynet", verify="require")
    assert (found.portals, found.dialect) == (("http://b.example",), SKYNET)
    assert found.verify.value == "require"
