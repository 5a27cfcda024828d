"""Which skylink of an upload counts, when portals gave it different ones: the first that its portal
proves, with what was sent behind it.
"""

import logging
from dataclasses import replace

import trio

from skymount.errors import MalformedError, PortalError
from skymount.policies import Verified, VerifyPolicy
from skymount.portal.client.base import PortalReader
from skymount.portal.client.content_check import DownloadCheck
from skymount.portal.client.upload import UploadBody
from skymount.portal.client.verification import ContentProof, ContentProofs
from skymount.portal.ledger.revision_marks import RevisionMarks
from skymount.portal.uploads.copies import Copies
from skymount.wire.metadata import parse_metadata
from skymount.wire.skylink import Skylink

PROOF_TIME = 5.0
"""Seconds that a portal has for its proof."""

_log = logging.getLogger(__name__)


async def settle(body: UploadBody, copies: Copies) -> None:
    """Let the first proved skylink count, if they differ. Errors of the sources are raised.

    Of what a portal encrypted, or cannot be read again, nothing is proved.
    """
    if copies.is_same or body.is_encrypted or body.size is None:
        return
    for client, result in copies.results.items():
        if await proves(client, result.skylink, body):
            for error in copies.keep(result.skylink):
                _log.warning("%s", error)
            return


async def proves(portal: PortalReader, skylink: Skylink, body: UploadBody) -> bool:
    """Return whether a portal proves that it has what a body sends under a skylink."""
    call = replace(portal.options, verify=VerifyPolicy.AVAILABLE)
    proofs = ContentProofs(portal.http, RevisionMarks())
    target = check = proof = None
    with trio.move_on_after(PROOF_TIME):
        try:
            target, check, proof = await proofs.begin(skylink, "", call, archive="concat")
        except PortalError as error:
            _log.info("%s", error)
    if check is None or proof is None or target != skylink or check.verified is not Verified.YES:
        return False
    return await trio.to_thread.run_sync(_is_same, check, proof, body)


def _is_same(check: DownloadCheck, proof: ContentProof, body: UploadBody) -> bool:
    """Compare names, sizes and content with what was sent."""
    stored = parse_metadata(proof.metadata).subfiles
    found = {name: (file.offset, file.len) for name, file in stored.items()}
    if found != body.extents or proof.layout.filesize != body.content_size:
        return False
    for piece in body.payload():
        trio.from_thread.check_cancelled()
        try:
            check.update(piece)
        except MalformedError:
            return False
    return True
