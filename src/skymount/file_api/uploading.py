"""Uploads a file or a directory, which gives a new skylink."""

import logging
import warnings
from collections.abc import Callable
from pathlib import Path

from skymount.file_api.files import Files
from skymount.file_api.session import Session
from skymount.file_api.sessions import SESSIONS
from skymount.portal.client.base import PortalReader
from skymount.portal.client.upload import UploadBody
from skymount.portal.uploads.fallback import upload_to_first
from skymount.upload_selection.selection import SelectionRules, listed, options
from skymount.wire.skylink import Skylink

log = logging.getLogger(__name__)


def upload(
    files: Files,
    path: Path,
    rules: SelectionRules,
    progress: Callable[[int, int | None], None],
) -> Skylink:
    """Upload to the first portal that takes it. There are warnings of what is left out, as by
    `skymount upload`.
    """
    body = UploadBody.of_path(path, rules=rules).with_progress(progress)
    if left_out := body.selection.left_out:
        advice = " and ".join(f"{option}=True" for option in options(left_out))
        more = f"; {advice} takes it along" if advice else ""
        warnings.warn(f"left out: {listed(left_out)}{more}", stacklevel=3)
    for empty in body.selection.empty:
        warnings.warn(f"{empty}: empty, and not part of the upload", stacklevel=3)

    def warn_of_fallback(error: Exception, then: PortalReader) -> None:
        log.warning("%s; now trying %s", error, then.url)

    async def send(session: Session) -> Skylink:
        _, result = await upload_to_first(session.portals, body, warn_of_fallback)
        return result.skylink

    return SESSIONS.run(files.options.settings(), send, path)
