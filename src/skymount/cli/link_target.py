"""Owns what LINK on a command line means: a skylink or a name, and a file or directory in the tree
that a mount would show of it.
"""

import re
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

import click

from skymount.cli import EXIT_NOT_FOUND
from skymount.cli.output import escape, warn
from skymount.content.model.skyfile import Verified, VerifyPolicy
from skymount.errors import BadContentError, NotFoundError
from skymount.fs.skylinks.tree import NAME_LIMIT, Directory, File, Node, Tree
from skymount.portal.client.base import PortalReader
from skymount.wire.skylink import Skylink, split_link

if TYPE_CHECKING:
    from skymount.cli.session import Reading
    from skymount.wire.hns import DomainRecord

HNS = "hns://"

_UNSEEN = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
"""Unicode categories of what moves the cursor, turns the direction of text, breaks lines or is not
seen at all, and of bytes that were no UTF-8.
"""

_HIDDEN_SHOWN = 20  # lines of what cannot be shown; --json has all of them


class NoSuchPathError(click.ClickException):
    """The skylink has no such file or directory."""

    exit_code = EXIT_NOT_FOUND


@dataclass(frozen=True, slots=True)
class Link:
    """A link as it was written, taken apart."""

    text: str
    place: Skylink | str
    """A skylink, or a domain in canonical form."""
    path: bytes
    """Without slashes at its ends."""

    @classmethod
    def parse(cls, text: str) -> "Link":
        """Take any form of `split_link`, and ``hns://domain/path``; MalformedError otherwise."""
        if text[: len(HNS)].lower() != HNS:
            skylink, path = split_link(text)
            return cls(text, skylink, _decoded(path))
        from skymount.wire.hns import parse_domain

        plain = re.split(r"[?#]", text[len(HNS) :], maxsplit=1)[0]
        domain, _, path = plain.partition("/")
        return cls(text, parse_domain(domain), _decoded(path))

    async def record(self, client: PortalReader) -> "DomainRecord":
        """Ask a portal what the domain stands for."""
        from skymount.portal.client import hns as names

        domain = str(self.place)
        try:
            return (await names.resolve(client.transport, domain, client.options)).record
        except NotFoundError as error:
            raise NotFoundError(f"{domain}: there is no such name", status=error.status) from None


@dataclass(frozen=True, slots=True)
class Place:
    """Content that a link leads to now."""

    skylink: Skylink
    """A v1 skylink."""
    path: bytes
    verified: bool
    """Whether the registry entries on the way were."""


async def find_place(reading: "Reading", link: Link) -> Place:
    """Follow a link to content, through all portals, and through the registry as a mount does.

    The path in a domain's record is what the domain itself shows (docs/portal.md).
    """
    skylink, path, record = link.place, link.path, None
    if isinstance(skylink, str):
        from skymount.wire.hns import SkylinkRecord

        record = await reading.portals.first(link.record)
        skylink = record.skylink
        if isinstance(record, SkylinkRecord):
            path = path or _decoded(record.path)
    if skylink.version == 1:
        return Place(skylink, path, verified=True)
    names = await reading.known.names()
    if record is not None:
        names.learn_key(record)
    with naming_what_is_absent(skylink):
        found = await names.resolve(skylink)
    return Place(found.skylink, path, found.verified)


def _decoded(path: str) -> bytes:
    """Undo percent-encoding; slashes at the ends and repeated ones say nothing."""
    raw = unquote_to_bytes(path.encode("utf-8", "surrogateescape"))
    return b"/".join(filter(None, raw.split(b"/")))


@dataclass(frozen=True, slots=True)
class LinkTarget:
    """A file or directory of a skylink's tree."""

    link: Link
    tree: Tree
    index: int
    path: bytes
    """Below the root of the tree; empty for the root itself."""

    @property
    def node(self) -> Node:
        """What it is."""
        return self.tree.node(self.index)

    @property
    def name(self) -> str:
        """A name to save it under: its own, or the skylink where that is none.

        Of the names that the upload chose, not the user, one that is hidden is none: a download
        into the home directory must not make a ``.profile``.
        """
        skylink = str(self.tree.skyfile.skylink)
        if self.path:
            return plain_name(self.path.rpartition(b"/")[2].decode(), skylink)
        name = self.tree.skyfile.listing.filename
        try:
            is_long = len(name.encode()) > NAME_LIMIT
        except UnicodeEncodeError:
            is_long = True
        is_none = is_long or not name or name.startswith(".") or "/" in name
        return skylink if is_none else plain_name(name, skylink)

    @property
    def verified(self) -> Verified:
        """How far it was verified; what a domain leads to never is (H1)."""
        is_domain = isinstance(self.link.place, str)
        return Verified.NO if is_domain else self.tree.skyfile.verified

    def warn_of_doubt(self, policy: VerifyPolicy) -> None:
        """Say on stderr what of the content cannot be verified."""
        warn_of_doubt(self.link.text, self.verified, policy)

    def single_file(self) -> File | None:
        """Return the file that this is; the root is one too unless a directory was uploaded.

        Then its name may be one that no tree can show, which says nothing against its content.
        """
        if isinstance(self.node, File):
            return self.node
        listing, total = self.tree.skyfile.listing, self.tree.skyfile.size
        if self.path or listing.rejected or listing.records > 1:
            return None
        if not listing.records:
            return File(0, total, 0o444, "")
        only = listing.record(listing.filename)  # as uploads of one file are stored
        if only is None or sum(only[:2]) > total:
            return None
        return File(*only[:2], 0o444, "")

    def mode_of(self, path: bytes) -> int:
        """Return the permission bits that the metadata has for a path in the tree, 0 for none.

        The empty path stands for the file that the root is.
        """
        listing = self.tree.skyfile.listing
        found = listing.record(path.decode() or listing.filename)
        return (listing.mode if found is None else found[2]) & 0o777

    def walk(self) -> Iterator[tuple[bytes, Node]]:
        """Yield all that is below, by path from here, directories before what is in them."""
        skipped = len(self.path) + 1 if self.path else 0
        for index in self.tree.below(self.index):
            yield self.tree.path(index)[skipped:], self.tree.node(index)

    def children(self) -> Iterator[tuple[bytes, Node]]:
        """Yield what is directly below, by name."""
        if isinstance(self.node, Directory):
            for index in self.tree.children(self.index):
                yield self.tree.name(index), self.tree.node(index)

    def files(self) -> Iterator[tuple[bytes, File]]:
        """Yield the files of `walk`."""
        for path, node in self.walk():
            if isinstance(node, File):
                yield path, node

    def hidden(self) -> list[tuple[str, str]]:
        """Return (path in the skylink, reason) of what cannot be shown at or below this place."""
        if not self.path:
            return list(self.tree.hidden)
        here = self.path.decode()
        return [
            (path, why)
            for path, why in self.tree.hidden
            if path == here or path.startswith(here + "/")
        ]

    def warn_of_hidden(self) -> int:
        """Say on stderr what cannot be shown; return how much there is of it."""
        hidden = self.hidden()
        for path, reason in hidden[:_HIDDEN_SHOWN]:
            warn(f"{path!r} cannot be shown: {reason}")
        if len(hidden) > _HIDDEN_SHOWN:
            warn(f"{len(hidden) - _HIDDEN_SHOWN} more cannot be shown")
        return len(hidden)


def plain_name(name: str, instead: str) -> str:
    """Return a name for a file that tools can be given and that is what it looks like, `instead`
    for any other.
    """
    is_plain = _UNSEEN.isdisjoint(map(unicodedata.category, name)) and not name.startswith("-")
    return name if is_plain else instead


def warn_of_doubt(what: str, verified: Verified, policy: VerifyPolicy) -> None:
    """Say on stderr what of some content cannot be verified, unless nobody wants that."""
    if policy is VerifyPolicy.OFF or verified is Verified.YES:
        return
    if verified is Verified.PARTLY:
        text = "only names and sizes are verified, the content is what a portal says it is"
    elif what[: len(HNS)].lower() == HNS:
        text = "not verified: where a domain leads, and so its content, is what a portal says it is"
    else:
        text = "not verified: no portal proves that this is what the link names; it may be anything"
    warn(f"{what}: {text}; --verify require refuses it")


async def open_target(reading: "Reading", link: Link) -> LinkTarget:
    """Find what a link leads to; NoSuchPathError when its path is not in the tree."""
    check_verifiable(reading, link)
    place = await find_place(reading, link)
    with naming_what_is_absent(place.skylink):
        skyfile = await reading.reader.load(place.skylink)
    tree = Tree(skyfile if place.verified else replace(skyfile, verified=Verified.NO))
    index = 0
    for element in place.path.split(b"/") if place.path else ():
        child = tree.child(index, element)  # a file has none
        if child is None:
            raise _missing(link, tree, place.path)
        index = child
    return LinkTarget(link, tree, index, place.path)


def check_verifiable(reading: "Reading", link: Link) -> None:
    """BadContentError for a domain where verification is required."""
    if isinstance(link.place, str) and reading.policy is VerifyPolicy.REQUIRE:
        raise BadContentError(
            f"{link.place}: what a name stands for is not verified, and verify is require"
        )


@contextmanager
def naming_what_is_absent(what: object) -> Iterator[None]:
    """Name what no portal has: their own answers say little more than the status."""
    try:
        yield
    except NotFoundError as error:
        if not error.url:  # not a portal's words
            raise
        raise NotFoundError(f"{what}: no portal has it", status=error.status) from None


def _missing(link: Link, tree: Tree, path: bytes) -> NoSuchPathError:
    wanted = path.decode("utf-8", "surrogateescape")
    why = dict(tree.hidden).get(wanted)
    reason = f"it cannot be shown: {why}" if why else "there is no such file or directory in it"
    return NoSuchPathError(f"{escape(link.text)}: {reason}")
