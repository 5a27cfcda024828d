"""A figure: one measured quantity, round by round, and its aim. No IO."""

import statistics
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Figure:
    """One thing that was measured; a round gives one value, `merged` joins the rounds."""

    name: str
    values: tuple[float, ...]
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def has_aim(self) -> bool:
        """Whether there is something that it must reach."""
        return self.at_least is not None or self.at_most is not None

    @property
    def reached(self) -> float:
        """How much of its aim it reaches: 1 is all of it, and more is better for any aim."""
        if self.at_least is not None:
            return self.median / self.at_least
        assert self.at_most is not None
        return self.at_most / self.median if self.median > 0 else float("inf")

    @property
    def aim(self) -> str:
        """The aim in words."""
        if self.at_least is not None:
            return f"at least {self.at_least:g}{self._unit}"
        return f"at most {self.at_most:g}{self._unit}" if self.at_most is not None else ""

    @property
    def _unit(self) -> str:
        return f" {self.unit}" if self.unit else ""

    def told(self, value: float) -> str:
        """Write a value of it, with three digits that count and the unit."""
        return f"{value:,.0f}{self._unit}" if value >= 999.5 else f"{value:.3g}{self._unit}"


Round = Callable[[], Iterator[Figure]]
"""Measures everything of a group once, in turn, and yields figures of one value each."""


@dataclass(frozen=True, slots=True)
class Group:
    """Figures that are measured side by side. `notes` is what a reader must know of them."""

    name: str
    title: str
    notes: str
    prepare: Callable[..., AbstractContextManager[Round]]
    needs: tuple[str, ...] = ("nginx",)
    """Programs without which nothing of it can be measured."""
    columns: tuple[str, ...] = ()
    """Of a table with several. Names of figures are then ROW | COLUMN | WHAT."""


def rate(name: str, size: int, seconds: float) -> Figure:
    """Return a throughput in MB/s."""
    return Figure(name, (size / 1e6 / seconds,), "MB/s")


def ratio(name: str, above: Figure, below: Figure, *, at_least: float | None = None) -> Figure:
    """Return the ratio of two figures of one round."""
    return Figure(name, (above.values[0] / below.values[0],), at_least=at_least)


def merged(figures: Iterable[Figure]) -> list[Figure]:
    """Join the rounds: figures of one name become one, in the order of their first appearance."""
    found: dict[str, Figure] = {}
    for figure in figures:
        before = found.get(figure.name)
        values = (*before.values, *figure.values) if before else figure.values
        found[figure.name] = replace(figure, values=values)
    return list(found.values())
