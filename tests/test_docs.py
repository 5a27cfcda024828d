"""The documentation says what the program does."""

import importlib.machinery
import importlib.util
import re
import tomllib
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from skymount.config import KEYS, Config, load
from skymount.config_portals import OPTION_KEYS
from skymount.content.model.skyfile import VerifyPolicy

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def _script(name: str) -> ModuleType:
    loader = importlib.machinery.SourceFileLoader(
        name.replace("-", "_"), str(ROOT / "scripts" / name)
    )
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_cli_reference_is_up_to_date() -> None:
    """docs/cli.md is what scripts/cli-reference prints, so each command and option is in it."""
    assert (ROOT / "docs/cli.md").read_text() == _script("cli-reference").reference()


def test_every_configuration_key_is_documented() -> None:
    """docs/configuration.md has a row for each key, and none for another; of a portal likewise."""
    text = (ROOT / "docs/configuration.md").read_text()
    of_file, of_portal = text.split("## Several portals")
    rows = partial(re.findall, r"^\| `(\w+)` \|", flags=re.MULTILINE)
    assert sorted(rows(of_file)) == sorted(KEYS)
    assert sorted(rows(of_portal)) == sorted(["url", *OPTION_KEYS])


def test_defaults_of_the_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """docs/configuration.md names the default of each key; L1, G5, H2 and R2 name theirs too."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    text, _ = (ROOT / "docs/configuration.md").read_text().split("## Several portals")
    said = dict(
        re.findall(r"^\| `(\w+)` \|[^|]*(?:\\\|[^|]*)*\| `([^`<]+)` \|", text, re.MULTILINE)
    )
    assert {"lookup_grace", "registry_ttl", "hns_ttl", "timeout", "memory_cache"} <= said.keys()
    plain = re.compile(r"true|false|[\d.]+")
    lines = (f"{k} = {v}" if plain.fullmatch(v) else f'{k} = "{v}"' for k, v in said.items())
    file = tmp_path / "config.toml"
    file.write_text("\n".join(lines))
    assert load({}, file=str(file), environ={}) == Config()
    promises = (ROOT / "docs/semantics.md").read_text()
    for key in ("lookup_grace", "registry_ttl", "hns_ttl", "timeout"):
        assert f"`{key}` ({said[key]} s)" in promises


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    """A relative link in a page names a file that is there."""
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def _anchors(page: Path) -> set[str]:
    """Return what each heading of a page is called in a link."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_headings_lead_somewhere(page: Path) -> None:
    """A link to a part of a page names a heading that is there."""
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", page.read_text()):
        assert anchor in _anchors(page.parent / target if target else page), (target, anchor)


_NUMBERS = r"\d+(?:\.\d+)?(?:(?:, | and | to )\d+(?:\.\d+)?)*"


def test_references_to_the_wire_page_lead_somewhere() -> None:
    """Each «docs/wire.md 2.3» names a section that is there, and no other spelling is used."""
    page = (ROOT / "docs/wire.md").read_text()
    sections = set(re.findall(r"^#+ ([\d.]+) ", page, re.MULTILINE))
    folders = ("src", "tests", "docs", "benchmarks", "scripts")
    files = (path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file())
    found, wrong = 0, []
    for path in files:
        if "__pycache__" in path.parts or path == Path(__file__):
            continue
        text = path.read_text(errors="replace")
        for numbers in re.findall(rf"docs/wire\.md(?: ({_NUMBERS}))?", text):
            found += 1
            if not numbers or not sections.issuperset(re.findall(r"[\d.]+", numbers)):
                wrong.append((str(path), numbers))
        if re.search(r"\bwire[ _-]notes\b|\(notes \d", text, re.IGNORECASE):
            wrong.append((str(path), "notes"))
    assert found
    assert wrong == []


def _promises() -> list[str]:
    """Return the names of all promises."""
    pages = (ROOT / "docs" / name for name in ("semantics.md", "library.md", "portal.md"))
    text = "\n".join(page.read_text() for page in pages)
    return re.findall(r"^\*\*([A-Z]\d+)\.\*\*", text, re.MULTILINE)


def test_the_security_page_names_promises_that_there_are() -> None:
    """What SECURITY.md rests on is promised, and the README leads to it."""
    named = set(re.findall(r"\b([A-Z]\d+)\b", (ROOT / "SECURITY.md").read_text()))
    assert named
    assert named <= set(_promises())
    assert "](SECURITY.md)" in (ROOT / "README.md").read_text()


def test_the_security_page_names_every_way_to_report() -> None:
    """Reports go where there is somebody: no address is made up."""
    text = (ROOT / "SECURITY.md").read_text()
    assert "private vulnerability reporting" in text
    assert "authors" in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert not re.search(r"\S@\S+\.\w", text)


def test_quick_start_is_the_two_scripts() -> None:
    """The commands of the README's quick start are there and executable."""
    quick_start = (ROOT / "README.md").read_text().split("## Quick start")[1].split("```")[1]
    scripts = re.findall(r"^(scripts/\w+)", quick_start, re.MULTILINE)
    assert scripts == ["scripts/demo", "scripts/test"]
    assert all((ROOT / script).stat().st_mode & 0o111 for script in scripts)


def test_the_example_configuration_is_one() -> None:
    """docs/config.toml is read without complaint, and each of its mounts can be chosen."""
    example = str(ROOT / "docs/config.toml")
    assert load({}, environ={}, file=example).memory_cache == Config().memory_cache
    assert load({}, environ={}, file=example, name="home").mountpoint == "~/sky"
    assert load({}, environ={}, file=example, name="strict").verify is VerifyPolicy.REQUIRE


def test_each_promise_is_quoted_by_a_test() -> None:
    """Each promise of docs/semantics.md, library.md and portal.md has a test that names its id."""
    promises = _promises()
    assert promises
    tests = "\n".join(
        path.read_text()
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if path != Path(__file__)
    )
    missing = [name for name in promises if not re.search(rf"\b{name}:", tests)]
    assert missing == []
