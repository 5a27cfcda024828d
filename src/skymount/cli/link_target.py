"""The argument LINK: a skylink or a domain, with a path in the tree that a mount shows of it."""

import os
import re
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote_to_bytes

import click

from skymount.cli import EXIT_NOT_FOUND
from skymount.cli.output import warn
from skymount.content.model.skyfile import Verified, VerifyPolicy
from skymount.errors import BadContentError, MalformedError, NotFoundError
from skymount.fs.skylinks.tree import Tree, TreeDirectory, TreeFile, TreeNode
from skymount.fs.subtree import NAME_MAX
from skymount.wire.skylink import Skylink, split_link
from skymount.wording import visible

if TYPE_CHECKING:
    from skymount.cli.key_argument import EntryArgument
    from skymount.content.opening import Content

HNS = "hns://"
_HNS_DIRECTORY = "hns/"  # as in a mount
_SKYDB = "skydb/"
_SUFFIX = b".json"  # of files in it

_SKYLINK_LIKE = re.compile(r"[A-Za-z0-9_-]{40,60}")

# Unicode: control characters, invisible ones, line breaks, and surrogates (bytes, not UTF-8).
_UNSAFE_CATEGORIES = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))

_HIDDEN_LIMIT = 20  # lines of what cannot be shown; --json has all of it


class NoSuchPathError(click.ClickException):
    """The content has no such file or directory."""

    exit_code = EXIT_NOT_FOUND


@dataclass(frozen=True, slots=True)
class ParsedLink:
    """A link from the command line."""

    text: str
    root: Skylink | str  # a domain in canonical form
    path: bytes  # without slashes at its ends

    @property
    def is_domain(self) -> bool:
        return not isinstance(self.root, Skylink)

    @classmethod
    def parse(cls, text: str) -> "ParsedLink":
        """Parse any form of `split_link` or `split_domain_link`, ``hns/domain/path``, or a path
        inside a mount; MalformedError otherwise.
        """
        from skymount.wire.hns import split_domain_link

        if text[: len(_HNS_DIRECTORY)] == _HNS_DIRECTORY:
            text = HNS + text[len(_HNS_DIRECTORY) :]
        named = split_domain_link(text)
        if named is not None:
            domain, path = named
            text = text if text[: len(HNS)].lower() == HNS else f"{HNS}{domain}{path}"
            return cls(text, domain, _decoded(path))
        try:
            skylink, path = split_link(text)
        except MalformedError as error:
            inside = _inside_mount(text)
            if inside is None:
                raise MalformedError(f"{error}{_advice(text)}") from None
            found = cls.parse(inside)
            return cls(text, found.root, found.path)
        return cls(text, skylink, _decoded(path))


def _inside_mount(text: str) -> str | None:
    """Return the link of a path inside a mount of ours: what is below ``skylinks`` or ``hns``."""
    for kind, rest in paths_in_mounts(text):
        if kind in ("skylinks", "hns"):
            return (HNS if kind == "hns" else "") + quote(os.fsencode(rest))
    return None


def paths_in_mounts(text: str) -> Iterator[tuple[str, str]]:
    """Yield (directory at the root, path in it) of a path inside a mount of ours."""
    for _, path in _in_mounts(text):
        kind, _, rest = path.partition("/")
        if rest:
            yield kind, rest


def _in_mounts(text: str) -> Iterator[tuple[str, str]]:
    """Yield (mount point, path in it) of a path inside a mount of ours."""
    from skymount.fs import mountpoint

    path = os.path.abspath(os.path.expanduser(text))
    for mounted in mountpoint.mounts_of(os.getuid()):
        if f"{path}/".startswith(f"{mounted}/"):
            yield mounted, path[len(mounted) + 1 :]


def parse_skydb_path(text: str) -> "EntryArgument | None":
    """Read ``skydb/KEY/DATAKEY.json``, or the path of such a file inside a mount; None for anything
    else, MalformedError if it names no document.
    """
    from skymount.cli.key_argument import EntryArgument
    from skymount.fs.registry.file_names import KeyFileNames

    if text.startswith(_SKYDB):
        path = text.removeprefix(_SKYDB)
    else:
        path = next((rest for kind, rest in paths_in_mounts(text) if kind == "skydb"), "")
        if not path:
            return None
    owner, _, name = path.partition("/")
    if not owner or not name or "/" in name:
        raise MalformedError(f"{text}: a document is skydb/KEY/DATAKEY.json")
    try:
        found = KeyFileNames(_SUFFIX).parse(os.fsencode(name))
    except MalformedError as error:
        raise MalformedError(f"{text}: {error}") from None
    if found.data_key is None:
        return EntryArgument(owner, found.tweak.hex(), hashed=True)
    return EntryArgument(owner, found.data_key, hashed=False)


_SHOWN = 255  # characters of a text that a message repeats


def _advice(text: str) -> str:
    """Return what may have been meant that is no skylink."""
    first = text.rpartition("://")[2].partition("/")[0]
    for mounted, _ in _in_mounts(text):
        return f"; in the mount {mounted} a LINK is below skylinks or hns"
    if os.path.exists(text):
        kind = "directory" if os.path.isdir(text) else "file"
        return f"; it is a {kind} on this machine, which `skymount upload` uploads"
    if _SKYLINK_LIKE.fullmatch(first):
        return f"; a skylink has 46 characters, this one {len(first)}"
    if "." in first and "://" not in text and text.isprintable() and len(text) <= _SHOWN:
        return f"; did you mean the domain {HNS}{text}?"
    return "; a skylink has 46 characters, a domain begins with hns://"


@dataclass(frozen=True, slots=True)
class ResolvedLink:
    """The content that a link leads to now."""

    skylink: Skylink  # a v1 skylink
    path: bytes
    verified: bool  # of the registry entries on the way


async def resolve_link(content: "Content", link: ParsedLink) -> ResolvedLink:
    """Follow a link to content. The path in a domain's record holds for a link without a path."""
    skylink, path, record = link.root, link.path, None
    if not isinstance(skylink, Skylink):
        from skymount.wire.hns import SkylinkRecord

        await content.entries()
        try:
            record, _ = await content.names.record(skylink)
        except NotFoundError as error:
            text = f"{skylink}: there is no such name"
            raise NotFoundError(text, status=error.status) from None
        skylink = record.skylink
        if isinstance(record, SkylinkRecord):
            path = path or _decoded(record.path)
    if skylink.version == 1:
        return ResolvedLink(skylink, path, verified=True)
    await content.entries()
    if record is not None:
        content.names.learn_key(record)
    with naming_absent_content(skylink):
        found = await content.names.resolve(skylink)
    return ResolvedLink(found.skylink, path, found.verified)


def _decoded(path: str) -> bytes:
    raw = unquote_to_bytes(path.encode("utf-8", "surrogateescape"))
    return b"/".join(filter(None, raw.split(b"/")))


@dataclass(frozen=True, slots=True)
class LinkTarget:
    """A file or directory of a skylink's tree."""

    link: ParsedLink
    tree: Tree
    index: int
    path: bytes  # from the root of the tree; empty for the root itself

    @property
    def node(self) -> TreeNode:
        return self.tree.node(self.index)

    @property
    def name(self) -> str:
        """A name to save it under: its own, or the skylink where that name is unsafe.

        A hidden name is unsafe if the upload chose it and not the user: a download into the home
        directory must not make a ``.profile``.
        """
        skylink = str(self.tree.skyfile.skylink)
        if self.path:
            return safe_name(self.path.rpartition(b"/")[2].decode(), skylink)
        name = self.tree.skyfile.listing.filename
        try:
            is_long = len(name.encode()) > NAME_MAX
        except UnicodeEncodeError:
            is_long = True
        is_unsafe = is_long or not name or name.startswith(".") or "/" in name
        return skylink if is_unsafe else safe_name(name, skylink)

    @property
    def verified(self) -> Verified:
        """How far it is verified; what a domain leads to never is (H1)."""
        return Verified.NO if self.link.is_domain else self.tree.skyfile.verified

    def single_file(self) -> TreeFile | None:
        """Return the file that this is; the root is one unless a directory was uploaded."""
        if isinstance(self.node, TreeFile):
            return self.node
        return None if self.path else self.tree.single_file()

    def mode_of(self, path: bytes) -> int:
        """Return the permission bits of a path, 0 without any; b"" is a root that is a file."""
        listing = self.tree.skyfile.listing
        found = listing.record(path.decode() or listing.filename)
        return (listing.mode if found is None else found[2]) & 0o777

    def walk(self) -> Iterator[tuple[bytes, TreeNode]]:
        """Yield (path from here, node) of all that is below, parents first."""
        skipped = len(self.path) + 1 if self.path else 0
        for index in range(self.index + 1, self.tree.listing.ends[self.index]):
            yield self.tree.listing.path(index)[skipped:], self.tree.node(index)

    def children(self) -> Iterator[tuple[bytes, TreeNode]]:
        if isinstance(self.node, TreeDirectory):
            for index in self.tree.listing.children(self.index):
                yield self.tree.listing.names[index], self.tree.node(index)

    def files(self) -> Iterator[tuple[bytes, TreeFile]]:
        for path, node in self.walk():
            if isinstance(node, TreeFile):
                yield path, node

    def hidden(self) -> list[tuple[str, str]]:
        """Return (path in the skylink, reason) of what cannot be shown here or below."""
        if not self.path:
            return list(self.tree.listing.hidden)
        here = self.path.decode()
        return [
            (path, why)
            for path, why in self.tree.listing.hidden
            if path == here or path.startswith(here + "/")
        ]

    def warn_of_hidden(self) -> int:
        """Warn of what cannot be shown; return the number of such paths."""
        hidden = self.hidden()
        for path, reason in hidden[:_HIDDEN_LIMIT]:
            warn(f"{path!r} cannot be shown: {reason}")
        if len(hidden) > _HIDDEN_LIMIT:
            warn(f"{len(hidden) - _HIDDEN_LIMIT} more cannot be shown")
        return len(hidden)


def safe_name(name: str, instead: str) -> str:
    """Return a name, or `instead` for one with a leading dash, control or invisible characters."""
    is_safe = _UNSAFE_CATEGORIES.isdisjoint(map(unicodedata.category, name))
    return name if is_safe and not name.startswith("-") else instead


def warn_of_unverified(what: str, verified: Verified, policy: VerifyPolicy) -> None:
    """Warn of content that cannot be verified, unless the policy is off."""
    if policy is VerifyPolicy.OFF or verified is Verified.YES:
        return
    if verified is Verified.PARTLY:
        text = "only names and sizes are verified, the content is what a portal says it is"
    elif what[: len(HNS)].lower() == HNS:
        text = "not verified: what a domain leads to, and so its content, is what a portal says"
    else:
        text = "not verified: no portal proves that the link names this content; it may be anything"
    warn(f"{what}: {text}; --verify require refuses it")


async def open_target(content: "Content", link: ParsedLink) -> LinkTarget:
    """Find what a link leads to; NoSuchPathError when its path is not in the tree."""
    check_verifiable(content, link)
    found = await resolve_link(content, link)
    with naming_absent_content(found.skylink):
        skyfile = await content.reader.load(found.skylink)
    tree = Tree(skyfile if found.verified else replace(skyfile, verified=Verified.NO))
    index = 0
    for element in found.path.split(b"/") if found.path else ():
        child = tree.listing.find(index, element)  # a file has none
        if child is None:
            raise _missing(link, tree, found.path)
        index = child
    return LinkTarget(link, tree, index, found.path)


def check_verifiable(content: "Content", link: ParsedLink) -> None:
    """BadContentError for a domain where verification is required."""
    if link.is_domain and content.settings.verify is VerifyPolicy.REQUIRE:
        raise BadContentError(
            f"{link.root}: what a name stands for is not verified, and verify is require"
        )


@contextmanager
def naming_absent_content(what: object) -> Iterator[None]:
    """Name what no portal has: a portal's answer says little more than the status."""
    try:
        yield
    except NotFoundError as error:
        if not error.url:  # raised here, not by a portal
            raise
        raise NotFoundError(f"{what}: no portal has it", status=error.status) from None


def _missing(link: ParsedLink, tree: Tree, path: bytes) -> NoSuchPathError:
    wanted = path.decode("utf-8", "surrogateescape")
    why = dict(tree.listing.hidden).get(wanted)
    reason = f"it cannot be shown: {why}" if why else "there is no such file or directory in it"
    name, dropped = link.text, re.search(r"[?#]", link.text)
    if dropped:
        name = f"{HNS if link.is_domain else ''}{link.root}/{wanted}"
        code = quote(dropped[0])
        reason += f"; in a link {dropped[0]} ends the path, in a file name it is written {code}"
    return NoSuchPathError(f"{visible(name)}: {reason}")
