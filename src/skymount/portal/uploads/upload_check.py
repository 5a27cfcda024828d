"""Whether a portal has what was uploaded to it under the skylink that it gave: it proves what is
there, and that is compared with what was sent.
"""

from dataclasses import replace

import trio

from skymount.errors import (
    BadContentError,
    DisprovedError,
    MalformedError,
    NotFoundError,
    PortalTimeoutError,
)
from skymount.portal.client.base import PortalReader
from skymount.portal.client.content_check import DownloadCheck
from skymount.portal.client.upload import UploadBody
from skymount.portal.client.verification import ContentProof, ContentProofs
from skymount.portal.ledger.revision_marks import RevisionMarks
from skymount.portal.policies import Verified, VerifyPolicy
from skymount.wire.metadata import parse_metadata
from skymount.wire.skylink import Skylink

PROOF_TIME = 5.0
"""Seconds that a portal has for its proof."""


async def check_upload(portal: PortalReader, skylink: Skylink, body: UploadBody) -> bool:
    """Return whether a portal proves that it has what a body sends under a skylink.

    DisprovedError if it has something else there, or nothing. PortalError if it fails, errors of
    the sources as they are.
    """
    call = replace(portal.options, verify=VerifyPolicy.AVAILABLE)
    proofs = ContentProofs(portal.http, RevisionMarks())
    with trio.move_on_after(PROOF_TIME) as scope:
        try:
            _, check, proof = await proofs.begin(skylink, "", call, archive="concat")
            if proof is None:
                await portal.head(skylink)
        except NotFoundError:
            raise _disproved(portal, skylink, "has nothing there") from None
        except BadContentError as error:
            said = f"cannot show that: {error.message}"
            raise _disproved(portal, skylink, said) from None
    if scope.cancelled_caught:
        text = f"no proof of {skylink} in {PROOF_TIME:g} s"
        raise PortalTimeoutError(text, url=portal.url)
    if proof is None or check.verified is not Verified.YES:
        return False
    if not await trio.to_thread.run_sync(_is_same, check, proof, body):
        raise _disproved(portal, skylink, "has other content there")
    return True


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


def _disproved(portal: PortalReader, skylink: Skylink, said: str) -> DisprovedError:
    text = f"it says that it stored the upload as {skylink}, and {said}"
    return DisprovedError(text, url=portal.url)
