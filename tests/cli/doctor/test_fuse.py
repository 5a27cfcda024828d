"""Checks of what mounting needs, where a machine is not easily broken so."""

from pathlib import Path

import pytest

from skymount.cli.doctor.finding import Level
from skymount.cli.doctor.fuse import check_background_limit, check_kernel


@pytest.mark.parametrize(
    ("release", "level"),
    [
        ("6.1.0-18-amd64", Level.OK),
        ("5.10", Level.OK),
        ("5.9.1", Level.WARNING),
        ("4.19.0", Level.WARNING),
        ("odd", Level.WARNING),
    ],
)
def test_kernels(release: str, level: Level) -> None:
    assert check_kernel(release).level is level


def test_limits_of_background_reads(tmp_path: Path) -> None:
    parameter = tmp_path / "max_user_bgreq"
    for text, level in (("4\n", Level.WARNING), ("12\n", Level.OK), ("", Level.OK)):
        parameter.write_text(text)
        assert check_background_limit(is_root=False, parameter=parameter).level is level
    assert check_background_limit(is_root=True, parameter=parameter).level is Level.OK
