"""``skymount pin``: brings content from one portal to another."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import TYPE_CHECKING

import click

from skymount.cli import completion
from skymount.cli.options import copying_options, removed_option
from skymount.cli.output import Progress, emit, interruption, json_option, progress, warn
from skymount.errors import PortalError, ReadOnlyPortalError, SkymountError, UnavailableError

if TYPE_CHECKING:
    from skymount.cli.key_argument import EntryArgument
    from skymount.cli.link_target import ParsedLink
    from skymount.content.opening import Content
    from skymount.content.replication.pinner import Pinner
    from skymount.settings import Config
    from skymount.wire.skylink import Skylink


@click.command()
@click.argument(
    "links", metavar="LINK...", nargs=-1, required=True, shell_complete=completion.files
)
@removed_option(
    "--recursive",
    "no links inside documents are followed; name them: skymount pin LINK...",
    is_flag=True,
)
@click.option("--again", is_flag=True, help="Send also what the portal has: it may be damaged.")
@copying_options
@json_option
def pin(
    links: tuple[str, ...],
    again: bool,
    source: "Config",
    target: "Config",
    as_json: bool,
) -> None:
    """Bring the content of each LINK to another portal.

    It has the same skylink there, which is printed. LINK is a skylink in any form, a domain
    (hns://NAME) or a document (skydb/KEY/DATAKEY.json); what a v2 skylink, a domain or a document
    leads to now is brought. With a path all of the content is brought. Content is sent only if it
    is proved, and not if the portal has it already: --again sends it even then, which replaces what
    is damaged there.

    Some content cannot keep its skylink: what a portal encrypted, and large content that is stored
    in another layout than the portal uses. It is refused, and not sent. After a failure the same
    command goes on where it was: large content is kept on disk until the portal has it. Links
    inside documents are not followed.

    --json prints an object for each content, with `link`, `skylink`, `size`, `portal`, `sent`
    (false if the portal had it), `pinned` (whether the portal says that it keeps it), and
    `verified`: "no" if only a portal says that the link leads to it.

    \b
    Examples:
      skymount pin SKYLINK --from https://portal.example
      skymount pin SKYLINK --from https://portal.example --to https://b.example
      skymount pin skydb/home/album.json --from https://portal.example
    """
    from skymount.cli.session import content, run
    from skymount.content.replication.pinner import Pinner
    from skymount.content.replication.spool import default_place
    from skymount.policies import VerifyPolicy

    wanted = [_Task(link, _parse(link)) for link in links]
    url = _target_url(source, target)
    if source.verify is VerifyPolicy.OFF:  # what is brought is always proved
        source = replace(source, verify=VerifyPolicy.AVAILABLE)
    proved = replace(target, portals=(url,), verify=VerifyPolicy.AVAILABLE)
    done = _Summary()

    def outcome() -> str:
        brought = done.tried - done.failed - 1
        counts = f"{max(brought, 0)} of {len(wanted)} were brought; " if len(wanted) > 1 else ""
        return f"{counts}the same command goes on from here"

    with interruption(outcome), progress() as bar:

        async def main(opened: "Content") -> None:
            async with content(proved, cached=False) as there:
                pinner = Pinner(opened, there, default_place(), warn)
                await _Run(opened, pinner, done, bar, again=again, as_json=as_json).bring(wanted)

        run(content(source), main)
    if done.failed:
        raise click.ClickException(f"{done.failed} of {done.tried} were not brought, see above")
    if not (done.sent or as_json):
        click.echo(f"everything was at {url} already; nothing was sent", err=True)


def _target_url(source: "Config", target: "Config") -> str:
    """Return the portal that is to have it; an error if that cannot work."""
    from skymount.values import portal_identity

    url = target.writing_url
    if portal_identity(url) in map(portal_identity, source.portal_urls):
        raise click.UsageError(f"{url} is both source and target; name another one with --to")
    if target.portal_options[url].read_only:
        raise ReadOnlyPortalError(f"{url}: nothing is sent there, the configuration says read_only")
    return url


def _parse(text: str) -> "ParsedLink | EntryArgument":
    from skymount.cli.link_target import ParsedLink, parse_skydb_path

    return parse_skydb_path(text) or ParsedLink.parse(text)


@dataclass(frozen=True, slots=True)
class _Task:
    """A link to bring the content of."""

    text: str
    link: "ParsedLink | EntryArgument"


@dataclass(slots=True)
class _Summary:
    tried: int = 0
    failed: int = 0
    sent: int = 0


class _Run:
    """One run of the command."""

    def __init__(
        self,
        content: "Content",
        pinner: "Pinner",
        summary: _Summary,
        bar: Progress | None,
        *,
        again: bool,
        as_json: bool,
    ) -> None:
        self._content = content
        self._pinner = pinner
        self._summary = summary
        self._bar = bar
        self._again = again
        self._as_json = as_json

    async def bring(self, tasks: Sequence[_Task]) -> None:
        """Bring what they lead to; the error of the only one is raised, and so is one that the
        target has for everything.
        """
        for task in tasks:
            self._summary.tried += 1
            try:
                await self._bring(task)
            except (SkymountError, click.ClickException) as error:
                if self._is_for_all(error) or len(tasks) == 1:
                    raise
                warn(f"{task.text}: {error}")
                self._summary.failed += 1

    def _is_for_all(self, error: Exception) -> bool:
        """Whether the target would fail so with any content."""
        if not isinstance(error, PortalError):
            return False
        is_general = isinstance(error, UnavailableError | ReadOnlyPortalError)
        is_of_target = error.url.startswith(f"{self._pinner.portal.url}/")
        return is_of_target and (is_general or error.status == HTTPStatus.UNAUTHORIZED)

    async def _bring(self, task: _Task) -> None:
        from skymount.cli.link_target import naming_absent_content

        skylink, is_verified = await self._resolve(task)
        with naming_absent_content(skylink):
            pinned = await self._pinner.pin(skylink, self._bar, again=self._again)
        self._summary.sent += not pinned.was_there
        found = {
            "link": task.text,
            "skylink": str(skylink),
            "size": pinned.size,
            "portal": self._pinner.portal.url,
            "sent": not pinned.was_there,
            "pinned": pinned.is_pinned,
            "verified": "yes" if is_verified else "no",
        }
        emit(found, self._as_json, [str(skylink)])

    async def _resolve(self, task: _Task) -> "tuple[Skylink, bool]":
        """Return the content that a link leads to now, and whether that is verified."""
        from skymount.cli.commands.db import find_document
        from skymount.cli.link_target import (
            ParsedLink,
            check_verifiable,
            resolve_link,
            warn_of_unverified,
        )
        from skymount.policies import Verified

        link = task.link
        if not isinstance(link, ParsedLink):
            skylink, _ = await find_document(self._content, link.id, link.data_key)
            return skylink, True
        check_verifiable(self._content, link)
        found = await resolve_link(self._content, link)
        is_verified = found.verified and not link.is_domain
        if not is_verified:
            warn_of_unverified(link.text, Verified.NO, self._content.settings.verify)
        return found.skylink, is_verified
