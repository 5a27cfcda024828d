"""Whether a portal has what was uploaded to it, under the skylink that it gave it."""

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import trio

from skymount.concurrency import off_loop
from skymount.errors import (
    BadContentError,
    DisprovedError,
    MalformedError,
    NotFoundError,
    PortalError,
)
from skymount.policies import Verified, VerifyPolicy
from skymount.portal.client.base import PortalReader
from skymount.portal.client.content_check import DownloadCheck
from skymount.portal.client.upload import UploadBody
from skymount.portal.client.verification import ContentProof, ContentProofs
from skymount.portal.ledger.revision_marks import RevisionMarks
from skymount.wire.base_sector import build_inline, fits_inline
from skymount.wire.merkle import sector_root
from skymount.wire.metadata import Metadata, encode_metadata, parse_metadata
from skymount.wire.skylink import Skylink

_TIME = 5.0  # seconds that a portal has to show what it has
_LOOKS, _PAUSE = 3, 0.5  # how often one that has nothing is asked again, and seconds before

_START_PAGE = ("index.html",)

_log = logging.getLogger(__name__)


def computed(body: UploadBody) -> list[Skylink]:
    """Return the skylinks that content gets which fits a base sector, else none.

    There are two of them: some portals note a start page that nobody asked for (docs/wire.md 2.5).
    """
    payload, found = b"".join(body.payload()), []
    for metadata in map(encode_metadata, _as_stored(body)):
        if fits_inline(len(metadata), len(payload)):
            base = build_inline(metadata, payload)
            found.append(Skylink.v1(sector_root(base), len(base)))
    return found


def _as_stored(body: UploadBody) -> Iterator[Metadata]:
    query, files = dict(body.query), body.subfiles
    default, is_disabled = query.get("defaultpath", ""), "disabledefaultpath" in query
    start_pages: list[tuple[str, ...]] = [()]
    if "tryfiles" in query:
        start_pages = [tuple(json.loads(query["tryfiles"]))]
    elif not default and not is_disabled:
        start_pages.append(_START_PAGE)
    for tryfiles in start_pages:
        yield Metadata(
            body.dirname or next(iter(files), ""),
            body.content_size,
            subfiles=files,
            defaultpath=default and f"/{default.removeprefix('/')}",
            disabledefaultpath=is_disabled,
            tryfiles=tryfiles,
            errorpages=json.loads(query.get("errorpages", "{}")),
        )


async def check(portal: PortalReader, skylink: Skylink, body: UploadBody, *, in_full: bool) -> bool:
    """Whether a portal shows that it has under a skylink what a body sent: names and sizes, and
    `in_full` proves all of the content, for which the sources are read once more.

    DisprovedError if it has nothing there, or something else.
    """
    call = replace(portal.options, verify=VerifyPolicy.AVAILABLE)
    check, proof, has_looked = DownloadCheck(), None, False
    with trio.move_on_after(_TIME):
        try:
            for left in range(0 if in_full else _LOOKS, -1, -1):
                try:
                    await _look(portal, skylink, body)
                    break
                except NotFoundError:  # another server of the same portal may be behind
                    if not left:
                        raise
                    await trio.sleep(_PAUSE)
            if in_full:
                proofs = ContentProofs(portal.http, RevisionMarks())
                _, check, proof = await proofs.begin(skylink, "", call, archive="concat")
            has_looked = True
        except NotFoundError:
            raise _wrong(portal, skylink, "nothing") from None
        except BadContentError as error:
            raise _wrong(portal, skylink, "something else") from error
        except PortalError as error:
            _log.info("%s", error)
    if not in_full or not has_looked:
        return has_looked
    if proof is None or check.verified is not Verified.YES:
        return False
    if not await trio.to_thread.run_sync(_is_same, check, proof, body):
        raise _wrong(portal, skylink, "something else")
    return True


async def _look(portal: PortalReader, skylink: Skylink, body: UploadBody) -> None:
    """BadContentError if a portal describes something else."""
    found = await portal.head(skylink)
    metadata = found.metadata or b"{}"
    files = await off_loop(partial(_sizes, metadata), len(metadata))
    is_other = files and files != {name: file.len for name, file in body.subfiles.items()}
    if skylink.version != 1 or is_other or found.size not in (None, body.content_size):
        raise BadContentError("it is not what was uploaded", url=portal.url)


def _sizes(metadata: bytes) -> dict[str, int]:
    return {name: file.len for name, file in parse_metadata(metadata).subfiles.items()}


def _is_same(check: DownloadCheck, proof: ContentProof, body: UploadBody) -> bool:
    """Compare names, sizes and content with what was sent."""
    stored = parse_metadata(proof.metadata).subfiles
    found, sent = (
        {name: (file.offset, file.len) for name, file in files.items()}
        for files in (stored, body.subfiles)
    )
    if found != sent or proof.layout.filesize != body.content_size:
        return False
    for piece in body.payload():
        trio.from_thread.check_cancelled()
        try:
            check.update(piece)
        except MalformedError:
            return False
    return True


def _wrong(portal: PortalReader, skylink: Skylink, what: str) -> DisprovedError:
    text = f"it gave the upload the skylink {skylink}, and has {what} there"
    error = DisprovedError(text, url=portal.url)
    _log.warning("%s", error)
    return error
