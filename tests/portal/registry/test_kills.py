"""Processes that write entries and are killed: nothing that was acknowledged is lost, and no
revision has two contents (G12, G19).

    SKYMOUNT_KILL_SECONDS=600 scripts/test -n0 -s tests/portal/registry/test_kills.py
"""

import pytest

from tests.portal.ledger.processes import start


@pytest.mark.timeout(300)
@pytest.mark.parametrize("policy", ["any", "all"])
def test_process_that_ends_at_any_point(policy: str):
    """At each statement and at each request, of whatever becomes of a write."""
    child = start(
        f"import sys; sys.argv[1:] = [{policy!r}]; from tests.portal.registry import"
        " kill_points; kill_points.main()"
    )
    out, _ = child.communicate()
    assert child.returncode == 0
    assert int(out) > 100
