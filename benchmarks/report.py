"""Prints the figures as tables, and writes the section and the chart of docs/benchmarks.md."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from benchmarks.figures import Figure, Group

DOCS = Path(__file__).parent.parent / "docs"
_PAGE = "benchmarks.md"
_DRAWING = "benchmarks.svg"
_BEGIN = "<!-- measured: written by benchmarks/run -->"
_END = "<!-- /measured -->"

_ROW = 22  # pixels
_LABEL = 400  # pixels for names
_ONE = 150  # pixels of a bar that reaches its aim exactly
_MOST = 3.0  # times the aim; a longer bar is cut off
_WIDTH = _LABEL + int(_ONE * _MOST) + 70


@dataclass(frozen=True, slots=True)
class Measured:
    """What became of a group: its figures, or why there are none."""

    group: Group
    figures: Sequence[Figure]
    problem: str = ""


def table(measured: Measured) -> str:
    """Write one group as Markdown."""
    lines = [f"### {measured.group.title} (`{measured.group.name}`)", "", measured.group.notes, ""]
    if measured.problem:
        lines += [f"**Not measured**: {measured.problem}", ""]
    if measured.group.columns:
        lines += [*_side_by_side(measured), ""]
    elif measured.figures:
        lines += ["| figure | median | least | most | aim | |", "|---|---|---|---|---|---|"]
        lines += [*map(_row, measured.figures), ""]
    return "\n".join(lines)


def _side_by_side(measured: Measured) -> Iterator[str]:
    """Yield a table with a cell for all figures of one row and column: their medians, bold if an
    aim is missed.
    """
    cells: dict[str, dict[str, list[str]]] = {}
    for figure in measured.figures:
        row, column, _ = figure.name.split(" | ")
        median = figure.told(figure.median)
        is_missed = figure.has_aim and figure.reached < 1
        cell = cells.setdefault(row, {}).setdefault(column, [])
        cell.append(f"**{median}**" if is_missed else median)
    columns = measured.group.columns
    yield f"| | {' | '.join(columns)} |"
    yield "|---" * (len(columns) + 1) + "|"
    for row, found in cells.items():
        told = ["; ".join(found.get(column, ())) for column in columns]
        yield f"| {row} | {' | '.join(told)} |"


def _row(figure: Figure) -> str:
    columns = [figure.name, *map(figure.told, (figure.median, *_ends(figure))), figure.aim]
    verdict = ("reached" if figure.reached >= 1 else "**missed**") if figure.has_aim else ""
    return f"| {' | '.join(columns)} | {verdict} |"


def _ends(figure: Figure) -> tuple[float, float]:
    return min(figure.values), max(figure.values)


def summary(everything: Sequence[Measured]) -> str:
    """Say how many aims are reached."""
    aims = [figure for each in everything for figure in each.figures if figure.has_aim]
    reached = sum(figure.reached >= 1 for figure in aims)
    return f"{reached} of {len(aims)} aims are reached."


def section(everything: Sequence[Measured], facts: Sequence[str]) -> str:
    """Write all groups as Markdown, below what has to be known of the run."""
    head = [*facts, f"{summary(everything)} The bars are medians as multiples of the aim."]
    drawing = f"![how much of each aim is reached]({_DRAWING})"
    return "\n\n".join([*head, drawing, "\n".join(map(table, everything)).rstrip()])


def write(everything: Sequence[Measured], facts: Sequence[str], docs: Path = DOCS) -> None:
    """Put a run into its section of the page, and beside it the drawing."""
    page = docs / _PAGE
    before, begin, rest = page.read_text().partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise ValueError(f"{page}: no marks for what was measured")
    text = section(everything, facts)
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")
    figures = [figure for each in everything if not each.group.columns for figure in each.figures]
    (docs / _DRAWING).write_text(drawing(figures))


def drawing(figures: Sequence[Figure]) -> str:
    """Draw a bar for each figure that has an aim; SVG."""
    aims = [figure for figure in figures if figure.has_aim]
    height = _ROW * len(aims) + 30
    aim_at = _LABEL + _ONE
    bars = "\n".join(_bar(figure, 24 + _ROW * number) for number, figure in enumerate(aims))
    return f"""<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" \
font-family="sans-serif" font-size="12">
<rect width="100%" height="100%" fill="white"/>
{bars}
<line x1="{aim_at}" y1="18" x2="{aim_at}" y2="{height}" stroke="black" stroke-dasharray="3 2"/>
<text x="{aim_at}" y="13" text-anchor="middle">aim</text>
</svg>
"""


def _bar(figure: Figure, top: int) -> str:
    length = round(_ONE * min(figure.reached, _MOST))
    colour = "#3a7d44" if figure.reached >= 1 else "#b5482a"
    middle = top + 13
    return (
        f'<text x="{_LABEL - 8}" y="{middle}" text-anchor="end">{escape(figure.name)}</text>\n'
        f'<rect x="{_LABEL}" y="{top}" width="{length}" height="{_ROW - 5}" fill="{colour}"/>\n'
        f'<text x="{_LABEL + length + 6}" y="{middle}">{figure.reached:.2f}</text>'
    )
