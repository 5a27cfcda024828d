"""All targets: each module makes its own known when it is imported."""

from tests.fuzz import content, portal, server, wire  # noqa: F401
from tests.fuzz.engine import TARGETS

__all__ = ["TARGETS"]
