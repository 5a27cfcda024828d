"""Fixtures for all tests."""

import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.portal_process import running_portal
from tests.skymount_process import LIMIT, Sandbox, clear_mounts


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name a long parameter by its length: names of tests go to every worker, and into its
    environment.
    """
    if isinstance(val, (str, bytes)) and len(val) > 200:
        return f"{argname}-of-{len(val)}"
    return None


@pytest.fixture(scope="session", autouse=True)
def default_signals() -> None:
    """Let the programs that tests start get their signals, also where ours are ignored: SIGHUP
    under nohup, SIGINT and SIGQUIT in the background of a script. Such a program would ignore
    them too.

    A handler that does nothing ignores a signal as well, but exec sets it back.
    """
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


@pytest.fixture(scope="session", autouse=True)
def patient_http() -> None:
    """Let clients of the tests that name no time limit wait longer than the 5 s of httpx: beside
    other tests, a server may have to wait for a processor.
    """
    limit = httpx.Timeout(LIMIT)
    for name in ("connect", "read", "write", "pool"):
        setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, name, getattr(limit, name))


@pytest.fixture(scope="session")
def portal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a portal that the tests of a worker share; `server` and `portal` have others."""
    with running_portal(tmp_path_factory.mktemp("portal")) as url:
        yield url


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    """A home directory for the commands of one test; nothing stays mounted in it."""
    made = Sandbox.make(tmp_path / "sandbox")
    yield made
    clear_mounts(made.root)
