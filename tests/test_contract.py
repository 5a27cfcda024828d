"""docs/contract.md has every row of the contract, each with a test that there is."""

import ast
import json
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/contract.md"
VECTORS = json.loads((ROOT / "tests/data/vectors.json").read_text())

ROWS = {
    "HTTP endpoints": [str(number) for number in range(1, 13)],
    "SDK functions": [
        *("uploadFile", "uploadDirectory", "downloadFile", "openFile", "getMetadata"),
        *("getFileContent", "getSkylinkUrl", "getHnsUrl", "getHnsresUrl"),
        *("downloadFileHns / openFileHns", "resolveHns", "registry.getEntry"),
        *("registry.setEntry", "registry.getEntryUrl", "db.getJSON", "db.setJSON"),
        *("createSkykey", "addSkykey", "getSkykeyByName", "getSkykeyById", "getSkykeys"),
        *("genKeyPairAndSeed", "genKeyPairFromSeed", "deriveChildSeed"),
    ],
    "Common options": ["APIKey", "customUserAgent", "onUploadProgress"],
    "Upload options": [
        *("portalFileFieldName", "portalDirectoryFileFieldName", "customFilename"),
        *("customDirname", "timeout_seconds", "skykeyName, skykeyID"),
    ],
    "Download options": ["path", "timeout_seconds", "skykeyName, skykeyID", "download"],
    "Errors": [
        "Any failed call",
        "Download data not found",
        "registry.getEntry, 404",
        "registry.getEntry, any other error",
        "db.getJSON, entry absent",
        "Registry timeout above 300 seconds",
        "Wrongly typed inputs",
        "addSkykey failure",
    ],
    "Limits": [
        *("Registry entry data", "Download timeout", "Registry timeout"),
        *("Skylink length", "Revision"),
    ],
    "Conventions, constants and authentication": [
        *("Default portal", "Option precedence", "Constants", "parseSkylink"),
        *("Password", "User agent"),
    ],
    "Vectors": [name for name, value in VECTORS.items() if isinstance(value, list)],
}
"""The first cell of each row: the contract's tables, what its prose says besides, its vectors."""


def tables() -> dict[str, list[list[str]]]:
    """Return the rows of each section, without the head of its table."""
    found: dict[str, list[list[str]]] = {}
    for section in ("\n" + PAGE.read_text()).split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        lines = [line for line in text.splitlines() if line.startswith("|")]
        if lines:
            found[title] = [
                [cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]
            ]
    return found


@cache
def names_in(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text())
    return frozenset(
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    )


def missing(text: str) -> list[str]:
    """Return the tests that a text names and that are not there."""
    return [
        f"{file}::{name}"
        for file, name in re.findall(r"`([^`]*)::([^`]*)`", text)
        if not (ROOT / file).is_file() or name not in names_in(file)
    ]


@pytest.mark.parametrize("section", ROWS)
def test_each_row_of_the_contract_is_there(section: str) -> None:
    """The rows are those of the contract's table, in its order."""
    found = [row[0].replace("`", "") for row in tables()[section]]
    assert found == ROWS[section]


def test_no_section_is_unknown() -> None:
    """A table that is added is checked too."""
    assert list(tables()) == list(ROWS)


@pytest.mark.parametrize("section", ROWS)
def test_each_row_names_tests_that_there_are(section: str) -> None:
    """The last cell of each row names at least one test, and every test named exists."""
    for row in tables()[section]:
        assert "::test_" in row[-1], row[0]
        assert missing(row[-1]) == [], row[0]


def test_tests_named_in_the_prose_exist() -> None:
    """So do those that stand outside of the tables."""
    assert missing(PAGE.read_text()) == []
