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
from skymount.portal.client.upload_source import empty_directories
from skymount.portal.uploads.fallback import upload_to_first
from skymount.upload_selection import UploadSelection
from skymount.wire.skylink import Skylink

log = logging.getLogger(__name__)


def upload(
    files: Files, path: Path, *, take_all: bool, progress: Callable[[int, int | None], None]
) -> Skylink:
    """Upload to the first portal that takes it; what `skymount upload` leaves out is left out, with
    a warning.
    """
    selection = UploadSelection(take_all)
    body = UploadBody.of_path(path, skips=selection.skips).with_progress(progress)
    if left_out := selection.report():
        text = f"{path}: left out: {left_out}; take_all=True takes them along"
        warnings.warn(text, stacklevel=3)
    for empty in empty_directories(path, selection.skips):
        warnings.warn(f"{empty}: empty, and not part of the upload", stacklevel=3)

    def warn_of_fallback(error: Exception, then: PortalReader) -> None:
        log.warning("%s; now trying %s", error, then.url)

    async def send(session: Session) -> Skylink:
        _, result = await upload_to_first(session.portals, body, warn_of_fallback)
        return result.skylink

    return SESSIONS.run(files.options.settings(), send, path)
