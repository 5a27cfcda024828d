"""No vector of the contract is left without a test."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.wire.vectors import PROSE, VECTORS

TESTS = Path(__file__).parent
ROOT = TESTS.parents[1]


def strings_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


@pytest.fixture(scope="module")
def strings() -> set[str]:
    """Every string in the tests of the codec."""
    paths = set(TESTS.rglob("test_*.py")) - {Path(__file__)}
    return set().union(*map(strings_of, paths))


@pytest.mark.parametrize("section", sorted(VECTORS.keys() - PROSE))
def test_every_section_is_tested(section, strings):
    """Each section of the vectors is named by a test of the codec."""
    assert section in strings


def test_prose_is_prose():
    """What is left out of the sections holds no cases."""
    assert not [name for name in PROSE if isinstance(VECTORS[name], list)]


def test_every_quoted_value_is_tested_under_its_source():
    """The tests' ids name the source of each value that the vectors quote."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    options = ("--collect-only", "-q", "-p", "no:cacheprovider", "-p", "no:xdist")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(TESTS)],
        check=False,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    sources = {
        case["source"]
        for name in VECTORS.keys() - PROSE
        for case in VECTORS[name]
        if case.get("quoted")
    }
    assert len(sources) > 20
    assert {source for source in sources if source not in done.stdout} == set()
