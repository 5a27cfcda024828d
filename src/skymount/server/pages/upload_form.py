"""The upload of pages: a form that JavaScript sends, with its progress, or the browser itself."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from skymount.errors import MalformedError
from skymount.server.config import PortalConfig
from skymount.server.http import responses
from skymount.server.http.access_log import note
from skymount.server.http.requester import takes_page
from skymount.server.http_error import HttpError, refuse_malformed
from skymount.server.pages.sessions import TOKEN_FIELD, TOKEN_HEADER, Sessions
from skymount.server.upload.endpoint import UploadEndpoint
from skymount.server.upload.rules import (
    DIRECTORY_FIELD,
    FILE_FIELD,
    PartList,
    UploadQuery,
    is_form_type,
)
from skymount.wire.http.multipart import PartHeader
from skymount.wire.metadata import Metadata

_SEVERAL = "files"  # the name of a directory of files that were chosen one by one


class PageParts(PartList):
    """The parts of a page's form: its token, then files.

    Files that are all in one folder are stored as that folder, with paths below it.
    """

    def __init__(self, config: PortalConfig, check: Callable[[str], None] | None) -> None:
        """`check` is called with the token before the first file is taken; HttpError."""
        super().__init__(config)
        self._check = check
        self._token = bytearray()
        self._folders: set[str] = set()
        self._has_files = False

    def begin(self, part: PartHeader, offset: int) -> bytearray | None:
        if part.field == TOKEN_FIELD:
            self._token = bytearray()
            return self._token
        if self._check is not None:
            self._check(self._token.decode(errors="replace"))
            self._check = None
        if part.field in (FILE_FIELD, DIRECTORY_FIELD) and not part.filename:
            return bytearray()  # of an input in which nothing was chosen
        folder, slash, _ = part.filename.partition("/")
        self._folders.add(folder if slash else "")
        self._has_files = True
        field = DIRECTORY_FIELD if slash else FILE_FIELD  # only several files make a directory
        return super().begin(replace(part, field=field), offset)

    def metadata(self, query: UploadQuery, length: int) -> Metadata:
        if self._check is not None:
            self._check(self._token.decode(errors="replace"))
        if not self._has_files:
            raise MalformedError("no file was chosen")
        found = super().metadata(replace(query, filename=_SEVERAL), length)
        if len(self._folders) == 1:
            (folder,) = self._folders
            if folder:
                return _without_folder(found, folder)
        if len(found.subfiles) == 1:
            return msgspec.structs.replace(found, filename=next(iter(found.subfiles)))
        return found


def _without_folder(metadata: Metadata, folder: str) -> Metadata:
    start = len(folder) + 1
    subfiles = {
        path[start:]: msgspec.structs.replace(sub, filename=path[start:])
        for path, sub in metadata.subfiles.items()
    }
    return msgspec.structs.replace(metadata, filename=folder, subfiles=subfiles)


@dataclass(frozen=True, slots=True)
class UploadForm:
    """The upload of one portal's pages."""

    upload: UploadEndpoint
    sessions: Sessions

    async def post(self, request: Request) -> Response:
        """Store what a form brings, and lead to the page that shows it."""
        session = await self.sessions.find(request)
        if session is None:
            raise HttpError(401, "sign in first, then upload again")
        content_type = request.headers.get("content-type", "").encode("latin-1")
        if not is_form_type(content_type):
            raise HttpError(400, "failed to upload: the form has to be multipart/form-data")
        header = request.headers.get(TOKEN_HEADER)
        check = None
        if header is None:

            def check(token: str) -> None:
                self.sessions.check(request, session, token)

        else:
            self.sessions.check(request, session, header)
        with refuse_malformed(400, "failed to upload: "):
            query = UploadQuery.parse({}, content_type=content_type, force_disabled=True)
            parts = PageParts(self.upload.config, check)
            skylink = await self.upload.receive(request, query, content_type, parts)
        note(request.scope, skylink=str(skylink))
        target = f"/?stored={skylink}"
        if takes_page(request):
            return responses.BytesResponse(303, [("Location", target)])
        body = msgspec.json.encode({"skylink": str(skylink), "page": target})
        return responses.json_body(body)
