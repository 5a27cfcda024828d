"""The guides name commands, options and messages that there are, and the pages make a site."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from skymount.cli import cli
from tests.portal_process import running_portal
from tests.skymount_process import Sandbox

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TROUBLESHOOTING = ROOT / "docs/troubleshooting.md"

_END_OF_COMMAND = re.compile(r"[|&;<>()]+")


def commands(text: str) -> Iterator[list[str]]:
    """Yield the arguments of each use of skymount in the shell blocks of a page."""
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in re.sub(r"\\\n", " ", block).splitlines():
            lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            words = [word for word in lexer if word]
            while "skymount" in words:
                at = words.index("skymount")
                before = words[at - 1] if at else ""
                words = words[at + 1 :]
                if before != "sudo" and before and not _END_OF_COMMAND.fullmatch(before):
                    continue
                end = (n for n, word in enumerate(words) if _END_OF_COMMAND.fullmatch(word))
                found = words[: next(end, len(words))]
                if found:
                    yield [word for word in found if word != "…"]


USES = [
    pytest.param(use, id=f"{page.name}: {' '.join(use)}"[:70])
    for page in PAGES
    for use in commands(page.read_text())
]


@pytest.mark.parametrize("use", USES)
def test_commands_in_pages_exist(use: list[str]) -> None:
    """Each command has that name, and knows its options."""
    command: click.Command = cli
    context = click.Context(cli, info_name="skymount", **cli.context_settings)
    words = list(use)
    while isinstance(command, click.Group):
        name = words.pop(0)
        found = command.get_command(context, name)
        assert found is not None, name
        command, context = (
            found,
            click.Context(found, context, info_name=name, **found.context_settings),
        )
    command.make_parser(context).parse_args(words)


def _told() -> list[str]:
    """Return the messages of the page on trouble: what stands in code in its first columns."""
    rows = re.findall(r"^\| (`.*?) \|", TROUBLESHOOTING.read_text(), re.MULTILINE)
    return [message for row in rows for message in re.findall(r"`([^`]+)`", row.split(" (from")[0])]


@pytest.mark.parametrize("message", [each for each in _told() if "Transport" not in each])
def test_explained_messages_are_in_the_source(message: str) -> None:
    """Each message of the page on trouble is one that skymount prints."""
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    joined = re.sub(r'"\s*\n\s*f?"', "", source)
    parts = [part.strip(" :;,") for part in re.split("…|: ", message)]  # which are put together
    assert any(parts)
    assert all(part in joined for part in parts), parts


def test_site_builds_without_warnings(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "howto" / "offline.html").exists()


def _python_blocks(page: str, heading: str = "") -> str:
    """Return the Python of a page, or of one of its parts, as one program."""
    text = (ROOT / "docs" / page).read_text().partition(heading)[2] if heading else ""
    text = text or (ROOT / "docs" / page).read_text()
    return "".join(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize(
    ("page", "heading"),
    [("howto/python.md", ""), ("library.md", "## Files without a mount")],
)
def test_python_blocks_run_in_order(
    tmp_path: Path, sandbox: Sandbox, page: str, heading: str
) -> None:
    """What a page shows of files without a mount runs as it stands, with a portal and a link."""
    site, results = tmp_path / "site", tmp_path / "results"
    for path in (site / "notes", site / "results", results):
        path.mkdir(parents=True)
    (site / "tides.csv").write_text("time,height\n1,2.5\n")
    (site / "notes/first day.txt").write_text("rain\n")
    (site / "results/run 1.csv").write_text("a,b\n")
    (results / "run.txt").write_text("done")
    with running_portal(tmp_path) as url:
        box = sandbox.with_env(SKYMOUNT_PORTALS=url)
        skylink = box.succeed("upload", site).strip()
        code = _python_blocks(page, heading)
        assert "AAA…" in code
        code = code.replace("AAA…", skylink).replace("https://portal.example", url)
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            cwd=tmp_path,
            env=box.env,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert "skylink://" in done.stdout
