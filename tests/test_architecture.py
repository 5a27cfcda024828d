"""docs/architecture.md describes the tree as it is."""

import re
from html import unescape
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src/skymount"
PAGE = ROOT / "docs/architecture.md"
DIAGRAMS = sorted((ROOT / "docs/diagrams").glob("*.dot"))


def modules() -> list[str]:
    """Return each source file of the package, but for the faces of sub-packages."""
    faces = ("portal/__init__.py", "server/__init__.py", "cli/__init__.py")
    found = (str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.[pc]*"))
    return sorted(
        name
        for name in found
        if name.endswith((".py", ".c")) and (not name.endswith("__init__.py") or name in faces)
    )


def listed() -> list[str]:
    """Return the modules that the page has a row for."""
    return re.findall(r"^\| `([\w/]+\.(?:py|c))` \|", PAGE.read_text(), re.MULTILINE)


def test_each_module_has_one_line():
    """The page has exactly one row for each module, and none for another."""
    assert sorted(listed()) == modules()


def test_no_folder_is_crowded():
    """No folder of the package holds more than 16 modules."""
    folders = [path for path in [SOURCE, *SOURCE.rglob("*")] if path.is_dir()]
    crowded = {
        str(folder): count
        for folder in folders
        if (count := len([path for path in folder.glob("*.py") if path.name != "__init__.py"])) > 16
    }
    assert crowded == {}


@pytest.mark.parametrize("diagram", DIAGRAMS, ids=lambda path: path.stem)
def test_diagrams_show_their_text(diagram: Path):
    """Each SVG was drawn from its text as it is now, and the page shows it."""
    svg = unescape(diagram.with_suffix(".svg").read_text()).replace("\xa0", " ")
    lines = [
        line
        for label in re.findall(r'label="([^"]*)"', diagram.read_text())
        for line in re.split(r"\\[nl]", label)
        if line.strip()
    ]
    assert lines
    assert [line for line in lines if line.strip() not in svg] == []
    assert f"](diagrams/{diagram.stem}.svg)" in PAGE.read_text()


@pytest.mark.parametrize("diagram", DIAGRAMS, ids=lambda path: path.stem)
def test_diagrams_name_files_that_there_are(diagram: Path):
    """A path in a diagram or on the page is one of the package."""
    for text in (diagram.read_text(), PAGE.read_text()):
        for name in re.findall(r"\b((?:[a-z_]+/)+[a-z_0-9]+\.py)\b", text):
            assert (SOURCE / name).exists() or (ROOT / name).exists(), name
