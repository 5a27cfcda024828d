"""Known answers: the contract's vectors, each as a case whose id names the source of its value."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

VECTORS = json.loads((Path(__file__).parents[1] / "data" / "vectors.json").read_text())

PROSE = {"about", "bitfield_note"}
"""Members of the file that hold no values."""


def cases(section: str) -> list:
    """Parametrize over a section of the vectors."""
    return [
        pytest.param(SimpleNamespace(**case), id=f"{section} {number} {case['source']}")
        for number, case in enumerate(VECTORS[section])
    ]
