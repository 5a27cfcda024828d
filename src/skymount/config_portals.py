"""The tables ``[[portals]]`` of the configuration file: what is set for one portal alone."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeGuard

from skymount.config_file import Faults, shown
from skymount.errors import ConfigError, MalformedError, WrongTypeError
from skymount.portal.options import (
    ClientOptions,
    PortalOptions,
    parse_portal_url,
    portal_identity,
)
from skymount.portal.validation import refuse_variables, text
from skymount.wording import did_you_mean

OPTION_KEYS = (
    "dialect",
    "api_key",
    "headers",
    "node_url",
    "ca_file",
    "redirect_hosts",
    "read_only",
)
"""Keys of a table besides `url`. All but the last may also stand outside, for the portals that do
not set them."""

CREDENTIALS = ("api_key", "headers")

Place = Callable[..., str]
"""Returns where the value stands that some keys lead to, for a message."""


def _nowhere(*_: object) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class PortalTable:
    """One portal, and what its table sets."""

    url: str
    options: ClientOptions = field(default_factory=ClientOptions, repr=False, hash=False)
    place: Place = field(default=_nowhere, repr=False, compare=False)
    """Where the table's keys stand."""

    @property
    def has_credentials(self) -> bool:
        return any(self.options.get(key) for key in CREDENTIALS)

    def without(self, keys: Collection[str]) -> "PortalTable":
        options: Any = {key: value for key, value in self.options.items() if key not in keys}
        return PortalTable(self.url, options, self.place)


def is_tables(value: object) -> TypeGuard[list[object]]:
    """Whether a value of the key `portals` is tables, not addresses."""
    return isinstance(value, list) and any(isinstance(each, dict) for each in value)


def parse_tables(
    tables: list[object], place: Place, other_keys: Collection[str]
) -> tuple[PortalTable, ...]:
    """Parse the tables; ConfigError says where one is wrong.

    `place` is asked with positions and keys in `tables`; `other_keys` belong outside of them.
    """
    parsed, faults = [], Faults()
    for number, table in enumerate(tables):
        with faults.noted():
            parsed.append(_parse(table, number, place, other_keys))
    faults.check()
    found = tuple(parsed)
    repeated = first_repeated([table.url for table in found])
    if repeated is not None:
        raise _error(place(repeated), repeated, f"{found[repeated].url} is listed twice")
    return found


def first_repeated(urls: Iterable[str]) -> int | None:
    """Return the position of the first address of a portal that was listed before."""
    seen = set()
    for position, url in enumerate(urls):
        identity = portal_identity(url)
        if identity in seen:
            return position
        seen.add(identity)
    return None


def _parse(table: object, number: int, place: Place, other_keys: Collection[str]) -> PortalTable:
    if not isinstance(table, dict):
        raise _error(place(number), number, "addresses and tables cannot be mixed")
    known = ("url", *OPTION_KEYS)
    faults = Faults()
    for key in sorted(table.keys() - set(known)):
        advice = did_you_mean(key, known) or f"; known ones: {', '.join(known)}"
        said = f"unknown key '{shown(key)}'{advice}"
        if key in other_keys:
            said += f"; put '{key}' above the first table, it is not of one portal"
        faults.add(str(_error(place(number, key), number, said)))
    if "url" not in table:
        faults.add(str(_error(place(number), number, "it has no url")))
    for key in filter(table.__contains__, known):
        try:
            _check(key, table[key])
        except (MalformedError, WrongTypeError) as error:
            named = shown(error) if str(error).startswith(key) else f"{key}: {shown(error)}"
            faults.add(str(_error(place(number, key), number, named)))
    faults.check()
    options: Any = {key: table[key] for key in OPTION_KEYS if key in table}
    return PortalTable(parse_portal_url(table["url"]), options, partial(place, number))


def _check(key: str, value: object) -> None:
    if key == "url":
        parse_portal_url(text(value, key))
    else:
        if key == "ca_file":
            refuse_variables(value, key)
        options: Mapping[str, Any] = {key: value}
        PortalOptions.parse(**options)


def _error(place: str, number: int, what: str) -> ConfigError:
    return ConfigError(f"{place}: [[portals]] {number + 1}: {what}")
