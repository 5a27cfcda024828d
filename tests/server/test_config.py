"""The settings of a portal where nothing is said."""

from pathlib import Path

from skymount.server.config import PortalConfig


def test_times_of_the_docs(tmp_path: Path) -> None:
    """docs/portal.md names these."""
    config = PortalConfig(tmp_path)
    assert (config.body_timeout, config.idle_timeout, config.send_timeout) == (60, 75, 600)
    assert config.graceful_timeout == 1


def test_the_password_is_not_shown(tmp_path: Path) -> None:
    """The settings may be printed."""
    assert "secret" not in repr(PortalConfig(tmp_path, password=b"secret"))
