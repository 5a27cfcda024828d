"""The library's class for one portal. Calls check their arguments before any request."""

import errno
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Unpack

import trio

from skymount.errors import MalformedError, PortalTimeoutError, WrongTypeError
from skymount.portal.client import arguments, download, metadata, upload
from skymount.portal.client.base import PortalReader
from skymount.portal.client.content_check import DownloadCheck
from skymount.portal.client.download import DownloadResult
from skymount.portal.client.hns import HnsCalls, canonical_domain
from skymount.portal.client.metadata import CONTENT_LIMIT, FileContent, MetadataResult
from skymount.portal.client.registry import Registry
from skymount.portal.client.skydb import SkyDB
from skymount.portal.client.skykeys import SkykeyCalls
from skymount.portal.client.upload import DIRECTORY_FIELD, FILE_FIELD, UploadBody, upload_query
from skymount.portal.client.upload_source import (
    Content,
    UploadSource,
    checked_name,
    mapping_sources,
)
from skymount.portal.client.verification import (
    DOMAIN_UNVERIFIABLE,
    ContentProofs,
    refuse_unverified,
)
from skymount.portal.ledger.ledger import Ledger
from skymount.portal.ledger.revision_marks import RevisionMarks
from skymount.settings import ClientOptions, CommonOptions, PortalOptions
from skymount.upload_selection.selection import EVERYTHING, listed
from skymount.values import callback, flag, integer, text
from skymount.wire.http import requests
from skymount.wire.http.responses import UploadResult
from skymount.wire.skylink import Skylink

Seconds = float | str | None
"""A time in seconds, or decimal digits of one; None: the default."""


class PortalClient(HnsCalls, SkykeyCalls, PortalReader):
    """A client of one portal. Safe for many tasks at once; an async context manager.

    Options of a call override those of the client (contract, client conventions). Links may have
    every form that `parse_skylink` knows, followed by a path. Every method raises WrongTypeError or
    MalformedError for wrong arguments, before any request, OSError for local files, and only
    `PortalError` for what happens on the wire.
    """

    def __init__(
        self,
        portal_url: str = "",
        *,
        ledger: Ledger | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        """Select a portal, as `PortalReader`.

        A registry entry older than one seen before is refused: seen by this client, or with a
        `ledger` by anyone who uses it. StorageError when the ledger cannot be read.
        """
        if not isinstance(ledger, Ledger | None):
            raise WrongTypeError(f"ledger must be a Ledger, not {type(ledger).__name__}")
        super().__init__(portal_url, **options)
        self._use_marks(RevisionMarks(ledger))

    def _select(self, options: PortalOptions) -> None:
        super()._select(options)
        self._use_marks(RevisionMarks())

    def _use_marks(self, marks: RevisionMarks) -> None:
        self._proofs = ContentProofs(self.http, marks)
        self._registry = Registry(self.http, marks)
        self._db = SkyDB(self.http, self._registry, self._proofs)

    @property
    def registry(self) -> Registry:
        return self._registry

    @property
    def db(self) -> SkyDB:
        return self._db

    # --- upload (contract, endpoints 1 and 2)

    async def upload_file(
        self,
        file: Content,
        *,
        custom_filename: str = "",
        portal_file_field_name: str = FILE_FIELD,
        timeout_seconds: Seconds = None,
        skykey_name: str = "",
        skykey_id: str = "",
        dry_run: bool = False,
        **options: Unpack[CommonOptions],
    ) -> UploadResult:
        """Upload a file: a path, a binary file object, or bytes with a `custom_filename`.

        ``str()`` of the result is ``<scheme>://<skylink>``. `timeout_seconds` limits the whole
        upload. With a skykey the portal encrypts the content; with `dry_run` it stores nothing.
        """
        call = self.options.overridden(**options)
        name = text(custom_filename, "custom_filename")
        field = checked_name(text(portal_file_field_name, "portal_file_field_name"))
        query = upload_query(skykey_name=skykey_name, skykey_id=skykey_id, dry_run=dry_run)
        limit = arguments.optional_seconds(timeout_seconds, arguments.UPLOAD_TIMEOUT_LIMIT)
        source = await trio.to_thread.run_sync(UploadSource.of, file, name)
        body = UploadBody([source], field=field or FILE_FIELD, query=query)
        return await self._send(body, limit, call)

    async def upload_directory(
        self,
        directory: str | os.PathLike[str] | Mapping[str, Content],
        *,
        custom_dirname: str = "",
        portal_directory_file_field_name: str = DIRECTORY_FIELD,
        timeout_seconds: Seconds = None,
        skykey_name: str = "",
        skykey_id: str = "",
        default_path: str = "",
        disable_default_path: bool = False,
        try_files: Sequence[str] | None = None,
        error_pages: Mapping[str, str] | None = None,
        dry_run: bool = False,
        follow_outside: bool = False,
        **options: Unpack[CommonOptions],
    ) -> UploadResult:
        """Upload a directory, or a mapping of relative paths to files, bytes or file objects.

        `custom_dirname` is required with a mapping; otherwise it replaces the directory's name.
        Of a directory everything is taken, whatever it is, but loops and, without `follow_outside`,
        what links lead to outside: a warning names them. `default_path` to `error_pages` say what a
        browser is shown (docs/wire.md 3.2). Everything else is as in `upload_file`.
        """
        call = self.options.overridden(**options)
        field = checked_name(
            text(portal_directory_file_field_name, "portal_directory_file_field_name")
        )
        query = upload_query(
            skykey_name=skykey_name,
            skykey_id=skykey_id,
            default_path=default_path,
            disable_default_path=disable_default_path,
            try_files=try_files,
            error_pages=error_pages,
            dry_run=dry_run,
        )
        limit = arguments.optional_seconds(timeout_seconds, arguments.UPLOAD_TIMEOUT_LIMIT)
        name = text(custom_dirname, "custom_dirname")
        body = await trio.to_thread.run_sync(
            _directory_body,
            directory,
            name,
            field or DIRECTORY_FIELD,
            query,
            flag(follow_outside, "follow_outside"),
        )
        if left_out := body.selection.left_out:
            warnings.warn(f"left out: {listed(left_out)}", stacklevel=2)
        return await self._send(body, limit, call)

    async def send_upload(self, body: UploadBody, **options: Unpack[CommonOptions]) -> UploadResult:
        return await upload.send(self.http, body, self.options.overridden(**options))

    async def _send(self, body: UploadBody, limit: int | None, call: PortalOptions) -> UploadResult:
        with trio.move_on_after(math.inf if limit is None else limit):
            return await upload.send(self.http, body, call.with_extra_time(limit))
        raise PortalTimeoutError(f"not done in {limit} s", method="POST", url=call.url)

    # --- content (contract, endpoints 3 and 4)

    async def download_file(
        self,
        destination: str | os.PathLike[str],
        skylink: str | Skylink,
        *,
        path: str = "",
        timeout_seconds: Seconds = None,
        skykey_name: str = "",
        skykey_id: str = "",
        archive: str = "",
        on_progress: download.Progress | None = None,
        **options: Unpack[CommonOptions],
    ) -> DownloadResult:
        """Download content into a file, which is replaced when the download is complete.

        A symbolic link is followed; a directory or a device is refused. A directory comes as a zip
        archive, or as what `archive` says: ``tar``, ``targz``, ``concat``. BadContentError for
        bytes that are not the skylink's. Content that cannot be verified is refused, or the result
        says so (`verify`). `timeout_seconds`, at most 900, is how long the portal may look for the
        content. Skykeys are sent along, but present portals find the right one by themselves.
        """
        limit = arguments.optional_seconds(timeout_seconds, arguments.DOWNLOAD_TIMEOUT_LIMIT)
        call = self.options.overridden(**options).with_extra_time(limit)
        target, inner = arguments.link(skylink, path)
        archive_format = text(archive, "archive")
        request_for = partial(
            requests.download,
            path=inner,
            archive=archive_format,
            timeout=limit,
            with_metadata=False,
            skykey_name=text(skykey_name, "skykey_name"),
            skykey_id=text(skykey_id, "skykey_id"),
        )
        request = request_for(target)
        file = arguments.local_path(destination, "destination")
        progress = callback(on_progress, "on_progress")

        async def find_check() -> tuple[requests.Request, DownloadCheck]:
            found, check, _ = await self._proofs.begin(target, inner, call, archive_format)
            return request_for(found), check

        return await download.to_file(self.http, request, file, call, progress, find_check)

    async def get_file_content(
        self,
        skylink: str | Skylink,
        *,
        path: str = "",
        timeout_seconds: Seconds = None,
        skykey_name: str = "",
        skykey_id: str = "",
        max_size: int = CONTENT_LIMIT,
        **options: Unpack[CommonOptions],
    ) -> FileContent:
        """Download a file into memory; JSON is parsed. BadContentError beyond `max_size` bytes.

        It is verified as in `download_file`.
        """
        limit = arguments.optional_seconds(timeout_seconds, arguments.DOWNLOAD_TIMEOUT_LIMIT)
        call = self.options.overridden(**options).with_extra_time(limit)
        target, inner = arguments.link(skylink, path)
        request_for = partial(
            requests.download,
            path=inner,
            timeout=limit,
            skykey_name=text(skykey_name, "skykey_name"),
            skykey_id=text(skykey_id, "skykey_id"),
        )
        request_for(target)  # MalformedError before any request
        size = integer(max_size, "max_size")
        found, check, proof = await self._proofs.begin(target, inner, call)
        return await metadata.get_file_content(
            self.http, found, request_for(found), inner, size, call, check, proof
        )

    async def get_metadata(
        self, skylink: str | Skylink, *, path: str = "", **options: Unpack[CommonOptions]
    ) -> MetadataResult:
        """Ask for the metadata, content type and skylink of content.

        The metadata are verified, or the result says that they are not (`verify`).
        """
        call = self.options.overridden(**options)
        target, inner = arguments.link(skylink, path)
        found, proof, _ = await self._proofs.find(target, call)
        return await metadata.get_metadata(self.http, found, inner, call, proof)

    async def download_file_hns(
        self,
        destination: str | os.PathLike[str],
        domain: str,
        *,
        path: str = "",
        timeout_seconds: Seconds = None,
        skykey_name: str = "",
        skykey_id: str = "",
        on_progress: download.Progress | None = None,
        **options: Unpack[CommonOptions],
    ) -> DownloadResult:
        """Download what a domain resolves to, as `download_file`, but it cannot be verified."""
        limit = arguments.optional_seconds(timeout_seconds, arguments.DOWNLOAD_TIMEOUT_LIMIT)
        call = self.options.overridden(**options).with_extra_time(limit)
        name = canonical_domain(domain)
        request = requests.hns_download(
            name,
            arguments.inner_path(path),
            timeout=limit,
            skykey_name=text(skykey_name, "skykey_name"),
            skykey_id=text(skykey_id, "skykey_id"),
        )
        file = arguments.local_path(destination, "destination")
        progress = callback(on_progress, "on_progress")
        refuse_unverified(call, name, DOMAIN_UNVERIFIABLE)
        return await download.to_file(self.http, request, file, call, progress)


def _directory_body(
    directory: object,
    name: str,
    field: str,
    query: Sequence[tuple[str, str]],
    follow_outside: bool,
) -> UploadBody:
    if isinstance(directory, Mapping):
        if not name:
            raise MalformedError("a mapping has no name: give a custom_dirname with it")
        sources = mapping_sources(directory)
        if not sources:
            raise MalformedError("there is no file in the mapping")
        return UploadBody(sources, field=field, dirname=checked_name(name), query=query)
    path = arguments.local_path(directory, "directory")
    if not path.is_dir():
        path.stat()  # FileNotFoundError
        raise NotADirectoryError(errno.ENOTDIR, "Not a directory", str(path))
    rules = replace(EVERYTHING, follow_outside=follow_outside)
    return UploadBody.of_path(path, name=name, field=field, query=query, rules=rules)
